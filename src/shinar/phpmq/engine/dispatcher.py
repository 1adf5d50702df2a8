"""Handing out: who waits, who may take how much, and what goes back.

A client is handed at most a quantum of messages in one tick, and never more than its limit of reserved
messages in all, so that nobody is kept waiting by another's appetite. Must not know requests or sockets.
"""

from __future__ import annotations

import heapq
from itertools import count as counter
from typing import Final

from shinar.phpmq.engine.accounts import Account
from shinar.phpmq.engine.catalogue import Catalogue, damage_text
from shinar.phpmq.engine.changes import Changes
from shinar.phpmq.engine.intake import Intake
from shinar.phpmq.engine.leases import Leases
from shinar.phpmq.engine.options import Options, RequestRefused
from shinar.phpmq.engine.queue import PLAIN_TAKE_BYTES, TAKE_BYTES, Peer, PlainConsumer, Queue, Waiter
from shinar.phpmq.store import BrokerStore, DamagedPage, Entry

#: Why a message was buried.
EXPIRED: Final = "expired"
#: What one client is handed in one tick before the others have their turn.
QUANTUM_MESSAGES: Final = 2_000
QUANTUM_BYTES: Final = 4 * 1024 * 1024
#: Waiters that were served stay in the deadline heap until it has this many spare rows.
SPARE_DEADLINES: Final = 1000


class Dispatcher:
    def __init__(
        self, store: BrokerStore, catalogue: Catalogue, intake: Intake, leases: Leases, changes: Changes,
        options: Options,
    ) -> None:  # fmt: skip
        self._store = store
        self._catalogue = catalogue
        self._intake = intake
        self._leases = leases
        self._changes = changes
        self._options = options
        #: Queues whose messages somebody wanted who was at a limit.
        self._starved: set[Queue] = set()
        self._arrived: list[tuple[Queue, Waiter]] = []
        self._deadlines: list[tuple[float, int, Queue, Waiter]] = []
        self._order = counter()
        self._turn = 0

    # -- who wants messages

    def reserve(self, name: str, waiter: Waiter, create: bool = True) -> None:
        queue = self._catalogue.get(name, create)
        queue.waiters[waiter] = None
        waiter.peer.waiting[waiter] = queue
        self._arrived.append((queue, waiter))
        self._changes.wake(queue)

    def consume(self, peer: Peer, name: str, window: int) -> PlainConsumer:
        queue = self._catalogue.get(name)
        consumer = PlainConsumer(peer, queue, min(window, self._options.max_held))
        queue.consumers.append(consumer)
        self._changes.wake(queue)
        return consumer

    def stop_consuming(self, consumer: PlainConsumer) -> None:
        """The consumer is gone, and what it held goes back to its place."""
        queue = consumer.queue
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
        for token in set(consumer.held.values()):
            self._leases.end(token)

    def leave(self, peer: Peer) -> None:
        """A connection ended: its leases end, and nobody waits for it any more."""
        for token in list(peer.leases):
            self._leases.end(token)
        for waiter, queue in peer.waiting.items():
            waiter.done = True
            queue.waiters.pop(waiter, None)
        peer.waiting.clear()

    # -- what comes back

    def give_back(self, queue: Queue, counts: dict[int, int]) -> None:
        """Messages return to their places: key -> how often each has been delivered."""
        if counts:
            queue.give_back(counts)
            self.freed(queue)

    def freed(self, queue: Queue) -> None:
        """Somebody settled: there is room again, perhaps for others too."""
        self._changes.wake(queue)
        for starved in self._starved:
            self._changes.wake(starved)
        self._starved.clear()

    # -- handing out

    def run(self, now_ms: int, now_s: float) -> None:
        """Hand out what can be handed out, and answer those whose wait is over."""
        self._turn += 1
        awake, self._changes.awake = self._changes.awake, {}
        for queue in awake:
            try:
                if not queue.damage:
                    self._dispatch(queue, now_ms, now_s)
            except DamagedPage as exc:
                self._catalogue.isolate(exc.queue, exc)
            if queue.damage:
                self._turn_away(queue)
        self._end_waits(now_s)

    def _dispatch(self, queue: Queue, now_ms: int, now_s: float) -> None:
        progress = True
        while progress and queue.ready > 0:
            progress = False
            demand = queue.demand()
            share = max(1, queue.ready // len(demand)) if demand else 0
            for taker, wanted in demand:
                room, max_bytes = self._room(queue, taker)
                if room <= 0:
                    continue
                if isinstance(taker, PlainConsumer):
                    max_bytes = min(max_bytes, PLAIN_TAKE_BYTES)
                entries = queue.take(min(wanted, share, room), now_ms, min(max_bytes, TAKE_BYTES))
                self._bury_overdue(queue)
                if not entries:
                    return
                self._hand_out(queue, taker, entries, now_s)
                progress = True

    def _room(self, queue: Queue, taker: Waiter | PlainConsumer) -> tuple[int, int]:
        """Messages and bytes this taker may have now. None left: it is refused, or its turn comes later."""
        account = taker.peer.account
        if account.turn != self._turn:
            account.turn, account.handed_messages, account.handed_bytes = self._turn, 0, 0
        of_client = self._options.max_held - account.reserved
        of_all = self._options.max_inflight - self._leases.held
        if of_client <= 0 or of_all <= 0:
            self._starved.add(queue)
            if isinstance(taker, Waiter) and of_client <= 0:
                self._served(queue, taker)
                taker.peer.refuse(taker.tag, self.client_full(account))
            return 0, 0
        messages = QUANTUM_MESSAGES - account.handed_messages
        max_bytes = QUANTUM_BYTES - account.handed_bytes
        if messages <= 0 or max_bytes <= 0:
            self._changes.wake(queue)
            return 0, 0
        return min(of_client, of_all, messages), max_bytes

    def client_full(self, account: Account) -> RequestRefused:
        self._changes.totals.limit_reached("reserved_by_client")
        return RequestRefused(
            "full",
            f"this client has {account.reserved} messages reserved, which is its limit; settle some first",
        )

    def _hand_out(
        self, queue: Queue, taker: Waiter | PlainConsumer, entries: list[Entry], now_s: float
    ) -> None:
        account = taker.peer.account
        account.handed_messages += len(entries)
        account.handed_bytes += sum(len(entry[1]) for entry in entries)
        queue.row.mark = max(queue.row.mark, entries[-1][0])
        self._changes.changed.add(queue)
        self._changes.counts.extend([(entry[0], entry[5] + 1) for entry in entries if len(entry) == 6])
        self._changes.totals.delivered += len(entries)
        if isinstance(taker, PlainConsumer):
            until_s = now_s + self._options.plain_lease_s
            lease = self._leases.grant(
                queue, entries, until_s, account=account, owner=taker.peer, consumer=taker
            )
            taker.held.update(dict.fromkeys(lease.held, lease.token))
            taker.peer.dispatch(taker, entries)
        else:
            owner = None if taker.detached else taker.peer
            lease = self._leases.grant(queue, entries, now_s + taker.lease_s, account=account, owner=owner)
            self._served(queue, taker)
            taker.peer.deliver(taker, lease, entries)

    def _bury_overdue(self, queue: Queue) -> None:
        """Messages that turned out to be expired when somebody wanted them."""
        overdue, queue.overdue = queue.overdue, []
        for entry in overdue:
            # The sweep may have been there first: then the row is gone, and counted.
            if self._store.get(entry[0], 0) is not None:
                self.bury_expired(queue, entry)

    def bury_expired(self, queue: Queue, entry: Entry) -> None:
        self._intake.bury(queue, entry, EXPIRED)
        queue.row.expired += 1
        self._changes.totals.expired += 1

    def take_ready(self, queue: Queue, limit: int, now_ms: int) -> list[Entry]:
        """Ready messages out of a queue for a transfer; they are nobody's yet."""
        entries = queue.take(limit, now_ms)
        self._bury_overdue(queue)
        return entries

    def _turn_away(self, queue: Queue) -> None:
        """Whoever waits at a damaged queue is told so; plain consumers can only be cut off."""
        refused = RequestRefused("failed", damage_text(queue))
        for waiter in list(queue.waiters):
            self._served(queue, waiter)
            waiter.peer.refuse(waiter.tag, refused)
        for consumer in list(queue.consumers):
            consumer.peer.cut_off(f"queue {queue.name} is damaged")

    def _served(self, queue: Queue, waiter: Waiter) -> None:
        waiter.done = True
        queue.waiters.pop(waiter, None)
        waiter.peer.waiting.pop(waiter, None)

    # -- waits that end

    def _end_waits(self, now_s: float) -> None:
        """Answer those whose wait is over: with nothing, or with the limit that kept messages from them."""
        for queue, waiter in self._arrived:
            if not waiter.done:
                heapq.heappush(self._deadlines, (waiter.deadline_s, next(self._order), queue, waiter))
        self._arrived.clear()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][3].done or deadlines[0][0] <= now_s):
            _, _, queue, waiter = heapq.heappop(deadlines)
            if waiter.done:
                continue
            if queue.ready > 0 and queue in self._changes.awake:
                # Its turn comes with the next tick; the wait has not been for nothing.
                self._arrived.append((queue, waiter))
                continue
            self._served(queue, waiter)
            if queue.ready > 0 and self._leases.held >= self._options.max_inflight:
                self._changes.totals.limit_reached("reserved_by_all")
                text = f"all clients together have {self._leases.held} messages reserved; try again later"
                waiter.peer.refuse(waiter.tag, RequestRefused("full", text))
            else:
                waiter.peer.deliver(waiter, None, [])
        if len(deadlines) > SPARE_DEADLINES and sum(row[3].done for row in deadlines) > len(deadlines) // 2:
            self._deadlines = [row for row in deadlines if not row[3].done]
            heapq.heapify(self._deadlines)

    @property
    def next_deadline_s(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None
