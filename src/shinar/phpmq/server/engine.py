"""The broker itself: queues, publishing and handing out. Synchronous, without sockets.

Requests change the store's open transaction and memory together; `tick` hands out what can be handed
out, commits everything that came in since the last tick at once, and only then may replies leave. If
the store fails, memory is no longer to be trusted: `reload` begins again from the file. Settling is in
`settle`, what time brings about in `upkeep`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as counter
from typing import Final

import msgspec

from shinar.clock import Clock
from shinar.phpmq.protocol.extension import Extra, Item, pack_extra
from shinar.phpmq.server import upkeep
from shinar.phpmq.server.leases import Leases
from shinar.phpmq.server.options import Options, Refused
from shinar.phpmq.server.queue import (
    PLAIN_TAKE_BYTES,
    TAKE_BYTES,
    Budget,
    Consumer,
    Peer,
    Queue,
    Waiter,
)
from shinar.phpmq.store import Entry, Store

#: Headers and key of one message together.
MAX_EXTRA_BYTES: Final = 64 * 1024
#: Seconds between two looks at the free disk space.
DISK_CHECK_S: Final = 1.0
#: Waiters that were served keep a place in the deadline heap until it has this many spare ones.
SPARE_DEADLINES: Final = 1000


@dataclass(slots=True)
class Totals:
    """Counters since the start, for metrics."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    released: int = 0
    moved: int = 0
    lapsed: int = 0
    expired: int = 0
    dead: int = 0
    commits: int = 0
    commit_s: float = 0.0
    store_failures: int = 0
    cut_off: dict[str, int] = field(default_factory=dict)


class Engine:
    def __init__(self, store: Store, options: Options, clock: Clock) -> None:
        self.store = store
        self.options = options
        self.clock = clock
        self.totals = Totals()
        self.reload()

    def reload(self) -> None:
        """Memory as after a start: nobody holds or waits for anything."""
        self.store.rollback()
        self.leases = Leases()
        self.budget = Budget(self.options.memory_bytes)
        rows = self.store.queues()
        self.queues = {row.name: Queue(row, self.store, self.budget) for row in rows}
        self.by_id = {queue.row.id: queue for queue in self.queues.values()}
        #: Long work (a flush, a transfer), one step a tick so that traffic flows on.
        self.jobs: deque[Iterator[None]] = deque()
        #: (key, count) of messages that were delivered before, for the next commit.
        self.counts: list[tuple[int, int]] = []
        #: When the next delayed message is due, and when the next message may expire.
        self.due_ms = self.store.next_due_ms()
        self.expiry_ms = self.store.next_expiry_ms()
        self._hot: set[Queue] = set()
        self._starved: set[Queue] = set()
        self._dirty: set[Queue] = set()
        self._arrived: list[tuple[Queue, Waiter]] = []
        self._deadlines: list[tuple[float, int, Queue, Waiter]] = []
        self._order = counter()
        self._disk_checked_s = float("-inf")
        self._disk_full = False

    # -- queues

    def find(self, name: str) -> Queue | None:
        return self.queues.get(name)

    def queue(self, name: str, create: bool = True) -> Queue:
        found = self.queues.get(name)
        if found is not None:
            return found
        if not create:
            raise Refused("no-queue", f"there is no queue {name}; publish to it first or allow creating it")
        if not name or not name.isprintable() or self.too_long(name):
            raise Refused("bad-request", "a queue name is 1 to 255 bytes of printable text")
        if len(self.queues) >= self.options.max_queues and not self._drop_unused():
            raise Refused("full", f"there are {len(self.queues)} queues already; raise --max-queues")
        return self.create(name)

    def create(self, name: str) -> Queue:
        queue = Queue(self.store.create_queue(name), self.store, self.budget)
        self.queues[name] = queue
        self.by_id[queue.row.id] = queue
        return queue

    def _drop_unused(self) -> bool:
        """Forget queues that were only ever waited for."""
        unused = [queue for queue in self.queues.values() if queue.never_used]
        for queue in unused:
            self.store.drop_queue(queue.row.id)
            del self.queues[queue.name], self.by_id[queue.row.id]
            self._dirty.discard(queue)
        return bool(unused)

    def too_long(self, name: str) -> bool:
        return len(name.encode("utf-8", "surrogatepass")) > self.options.limits.max_queue_bytes

    def wake(self, queue: Queue) -> None:
        """Somebody may be able to take from this queue now."""
        self._hot.add(queue)

    def changed(self, queue: Queue) -> None:
        """Its figures go into the next commit."""
        self._dirty.add(queue)

    # -- publishing

    def publish(self, name: str, items: Sequence[Item], create: bool = True) -> None:
        self.check(items)
        queue = self.queue(name, create)
        self.add(queue, items)
        queue.row.published += len(items)
        self.totals.published += len(items)

    def send(self, name: str, bodies: Sequence[tuple[bytes, int]]) -> None:
        """Plain sends: bodies with their TTL in seconds."""
        self._check_disk()
        queue = self.queue(name)
        now_ms = self.clock.epoch_ms()
        entries: list[Entry] = [
            (key, body, None, now_ms, now_ms + ttl_s * 1000 if ttl_s else 0)
            for key, (body, ttl_s) in enumerate(bodies, queue.row.next)
        ]
        self.insert(queue, entries, entries)
        queue.row.published += len(entries)
        self.totals.published += len(entries)

    def check(self, items: Sequence[Item]) -> None:
        """Refuse before anything is written what could not be written."""
        limit = self.options.limits.max_body_bytes
        for item in items:
            size = len(item.body)
            if size > limit:
                raise Refused("too-large", f"a body of {size} bytes; the limit is {limit}", (size, limit))
            if item.extra is not None and (size := _extra_bytes(item.extra)) > MAX_EXTRA_BYTES:
                text = f"headers of {size} bytes; the limit is {MAX_EXTRA_BYTES}"
                raise Refused("too-large", text, (size, MAX_EXTRA_BYTES))
        self._check_disk()

    def _check_disk(self) -> None:
        now_s = self.clock.monotonic_s()
        if now_s - self._disk_checked_s >= DISK_CHECK_S:
            self._disk_checked_s = now_s
            self._disk_full = self.store.free_bytes() < self.options.min_free_bytes
        if self._disk_full:
            raise Refused("full", "the broker's disk is nearly full; consume, or free some space")

    def add(self, queue: Queue, items: Sequence[Item]) -> None:
        """Checked items into a queue, or aside until they are due."""
        now_ms = self.clock.epoch_ms()
        key = queue.row.next
        rows: list[Entry] = []
        entries: list[Entry] = []
        later: list[tuple[object, ...]] = []
        for item in items:
            expires_ms = now_ms + item.ttl_ms if item.ttl_ms else 0
            extra = pack_extra(item.extra)
            if item.delay_ms:
                due_ms = now_ms + item.delay_ms
                later.append((due_ms, queue.row.id, item.body, extra, now_ms, expires_ms, 0))
                continue
            row = (key, item.body, extra, now_ms, expires_ms)
            rows.append(row)
            entries.append(row if extra is None else (key, item.body, msgspec.Raw(extra), now_ms, expires_ms))
            key += 1
        if rows:
            self.insert(queue, rows, entries)
        if later:
            self.delay(queue, later)

    def insert(self, queue: Queue, rows: Sequence[Entry], entries: list[Entry]) -> None:
        """The same messages twice: `rows` as the store keeps them, `entries` as memory does."""
        self.store.insert(rows)
        queue.published(entries)
        soonest = min((entry[4] for entry in entries if entry[4]), default=None)
        if soonest is not None:
            self.expiry_ms = soonest if self.expiry_ms is None else min(self.expiry_ms, soonest)
        self._dirty.add(queue)
        self._hot.add(queue)

    def delay(self, queue: Queue, rows: Sequence[tuple[object, ...]]) -> None:
        self.store.delay(rows)
        queue.row.delayed += len(rows)
        self._dirty.add(queue)
        soonest = min((row[0] for row in rows if isinstance(row[0], int)), default=None)
        if soonest is not None:
            self.due_ms = soonest if self.due_ms is None else min(self.due_ms, soonest)

    # -- handing out

    def reserve(self, name: str, waiter: Waiter, create: bool = True) -> None:
        queue = self.queue(name, create)
        queue.waiters[waiter] = None
        waiter.peer.waiting[waiter] = queue
        self._arrived.append((queue, waiter))
        self._hot.add(queue)

    def consume(self, peer: Peer, name: str, window: int) -> Consumer:
        queue = self.queue(name)
        consumer = Consumer(peer, queue, min(window, self.options.max_held))
        queue.consumers.append(consumer)
        self._hot.add(queue)
        return consumer

    def stop_consuming(self, consumer: Consumer) -> None:
        """The consumer is gone, and what it held goes back to its place."""
        queue = consumer.queue
        if consumer in queue.consumers:
            queue.consumers.remove(consumer)
        for token in set(consumer.held.values()):
            lease, taken = self.leases.end(token)
            if lease is not None:
                self.give_back(queue, taken)

    def leave(self, peer: Peer) -> None:
        """A connection ended: its leases end, and nobody waits for it any more."""
        for token in list(peer.leases):
            lease, taken = self.leases.end(token)
            if lease is not None:
                self.give_back(lease.queue, taken)
        for waiter, queue in peer.waiting.items():
            waiter.done = True
            queue.waiters.pop(waiter, None)
        peer.waiting.clear()

    def peek(self, queue: Queue, after: int, limit: int, max_bytes: int) -> list[Entry]:
        """Ready messages behind a key, oldest first; nothing is taken."""
        held = self.leases.keys_of(queue) if queue.inflight else set()
        while True:
            page = self.store.load(after, queue.row, limit, max_bytes)
            ready = [entry for entry in page if entry[0] not in held]
            if ready or not page:
                return ready
            after = page[-1][0]

    def give_back(self, queue: Queue, taken: dict[int, int]) -> None:
        """Held messages return to their places: key -> deliveries before the one that ended."""
        if taken:
            queue.give_back(taken)
            self.freed(queue)

    def forget(self, queue: Queue, taken: dict[int, int]) -> None:
        """Held messages leave the store."""
        keys = list(taken)
        if self.store.archiving:
            self.store.to_archive(keys, queue.name, self.clock.epoch_ms())
        self.store.delete(keys, counted=any(taken.values()))
        self.gone(queue, len(keys))

    def gone(self, queue: Queue, count: int) -> None:
        queue.inflight -= count
        queue.row.messages -= count
        self._dirty.add(queue)
        self.freed(queue)

    def freed(self, queue: Queue) -> None:
        """Somebody settled: there is credit again, perhaps for others too."""
        self._hot.add(queue)
        if self._starved:
            self._hot |= self._starved
            self._starved.clear()

    def _dispatch(self, queue: Queue, now_ms: int, now_s: float) -> None:
        while queue.ready > 0:
            demand = queue.demand()
            if not demand:
                return
            share = max(1, queue.ready // len(demand))
            for taker, wanted in demand:
                room = self.options.max_inflight - self.leases.held
                if room <= 0:
                    self._starved.add(queue)
                    return
                max_bytes = PLAIN_TAKE_BYTES if isinstance(taker, Consumer) else TAKE_BYTES
                entries = queue.take(min(wanted, share, room), now_ms, max_bytes)
                if queue.overdue:
                    upkeep.bury_overdue(self, queue)
                if not entries:
                    return
                self._hand_out(queue, taker, entries, now_s)

    def _hand_out(self, queue: Queue, taker: Waiter | Consumer, entries: list[Entry], now_s: float) -> None:
        queue.inflight += len(entries)
        queue.row.mark = max(queue.row.mark, entries[-1][0])
        self._dirty.add(queue)
        self.counts.extend([(entry[0], entry[5] + 1) for entry in entries if len(entry) == 6])
        self.totals.delivered += len(entries)
        if isinstance(taker, Consumer):
            until_s = now_s + self.options.plain_lease_s
            lease = self.leases.grant(queue, entries, until_s, owner=taker.peer, consumer=taker)
            taker.held.update(dict.fromkeys(lease.held, lease.token))
            taker.peer.dispatch(taker, entries)
        else:
            owner = None if taker.detached else taker.peer
            lease = self.leases.grant(queue, entries, now_s + taker.lease_s, owner=owner)
            self._served(queue, taker)
            taker.peer.deliver(taker, lease, entries)

    def _served(self, queue: Queue, waiter: Waiter) -> None:
        waiter.done = True
        queue.waiters.pop(waiter, None)
        waiter.peer.waiting.pop(waiter, None)

    # -- time

    def tick(self) -> None:
        """Do what is due, hand out, and make it all durable. Replies may leave when this returns."""
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        upkeep.run(self, now_ms, now_s)
        hot, self._hot = self._hot, set()
        for queue in hot:
            self._dispatch(queue, now_ms, now_s)
        self._disappoint(now_s)
        started_s = self.clock.monotonic_s()
        self.store.commit([queue.row for queue in self._dirty], self.counts)
        self.totals.commit_s += self.clock.monotonic_s() - started_s
        self.totals.commits += 1
        self._dirty.clear()
        self.counts.clear()

    def _disappoint(self, now_s: float) -> None:
        """Answer those whose wait is over with nothing."""
        for queue, waiter in self._arrived:
            if not waiter.done:
                heapq.heappush(self._deadlines, (waiter.deadline_s, next(self._order), queue, waiter))
        self._arrived.clear()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][3].done or deadlines[0][0] <= now_s):
            _, _, queue, waiter = heapq.heappop(deadlines)
            if not waiter.done:
                self._served(queue, waiter)
                waiter.peer.deliver(waiter, None, [])
        if len(deadlines) > SPARE_DEADLINES and sum(row[3].done for row in deadlines) > len(deadlines) // 2:
            self._deadlines = [row for row in deadlines if not row[3].done]
            heapq.heapify(self._deadlines)

    def next_wake_s(self) -> float | None:
        """Seconds until `tick` has something to do of its own; None when nothing is planned."""
        if self._hot or self.jobs:
            return 0.0
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        plans = [(ms - now_ms) / 1000 for ms in (self.due_ms, self.expiry_ms) if ms is not None]
        if self.leases.next_end_s is not None:
            plans.append(self.leases.next_end_s - now_s)
        if self._deadlines:
            plans.append(self._deadlines[0][0] - now_s)
        return max(0.0, min(plans)) if plans else None


def _extra_bytes(extra: Extra) -> int:
    return sum(len(name) + len(value) for name, value in extra.headers.items()) + len(extra.key or b"")
