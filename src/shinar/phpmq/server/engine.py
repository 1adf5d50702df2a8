"""The broker itself: publish, hand out, settle, expire. Synchronous, without sockets.

Requests change the store's open transaction and memory together; `tick` hands out what can be handed
out, commits everything that came in since the last tick at once, and only then may replies leave. If
the store fails, memory is no longer to be trusted: `reload` begins again from the file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count as counter
from typing import Final

import msgspec

from shinar.clock import Clock
from shinar.phpmq.protocol.extension import Copy, Extra, Held, Item, pack_extra, unpack_extra
from shinar.phpmq.server.leases import Leases
from shinar.phpmq.server.options import Options, Refused
from shinar.phpmq.server.queue import Budget, Consumer, Peer, Queue, Waiter
from shinar.phpmq.store import Entry, Store, queue_of

#: Behind a queue's name: where its dead letters and its expired messages are kept.
DLQ_SUFFIX: Final = ".dlq"
#: Headers of a message that was buried, beside its own.
REASON_HEADER: Final = "phpmq-reason"
SOURCE_HEADER: Final = "phpmq-queue"
#: Headers and key of one message, packed.
MAX_EXTRA_BYTES: Final = 64 * 1024
#: Delayed messages made visible, and expired ones buried, in one tick.
STEP: Final = 1000
#: Seconds between two looks at the free disk space.
DISK_CHECK_S: Final = 1.0


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
        self._budget = Budget(self.options.memory_bytes)
        rows = self.store.queues()
        self.queues = {row.name: Queue(row, self.store, self._budget) for row in rows}
        self._by_id = {queue.row.id: queue for queue in self.queues.values()}
        self._hot: set[Queue] = set()
        self._dirty: set[Queue] = set()
        self._counts: list[tuple[int, int]] = []
        self._deadlines: list[tuple[float, int, Queue, Waiter]] = []
        self._order = counter()
        self._due_ms = self.store.next_due_ms()
        self._expiry_ms = self.store.next_expiry_ms()
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
        if len(name.encode()) > self.options.limits.max_queue_bytes or not name or not name.isprintable():
            raise Refused("bad-request", "a queue name is 1 to 255 bytes of printable text")
        if len(self.queues) >= self.options.max_queues:
            raise Refused("full", f"there are {len(self.queues)} queues already; raise --max-queues")
        return self._create(name)

    def _create(self, name: str) -> Queue:
        queue = Queue(self.store.create_queue(name), self.store, self._budget)
        self.queues[name] = queue
        self._by_id[queue.row.id] = queue
        return queue

    def wake(self, queue: Queue) -> None:
        """Somebody may be able to take from this queue now."""
        self._hot.add(queue)

    # -- publishing

    def publish(self, name: str, items: Sequence[Item], create: bool = True) -> None:
        self._check(items)
        queue = self.queue(name, create)
        self._add(queue, items)
        queue.row.published += len(items)
        self.totals.published += len(items)

    def send(self, name: str, bodies: Sequence[tuple[bytes, int]]) -> None:
        """Plain sends: bodies with their TTL in seconds."""
        self._check_disk()
        queue = self.queue(name)
        now_ms = self.clock.epoch_ms()
        key = queue.row.next
        entries: list[Entry] = []
        for body, ttl_s in bodies:
            entries.append((key, body, None, now_ms, now_ms + ttl_s * 1000 if ttl_s else 0))
            key += 1
        self._insert(queue, entries, entries)
        queue.row.published += len(entries)
        self.totals.published += len(entries)

    def _check(self, items: Sequence[Item]) -> None:
        limit = self.options.limits.max_body_bytes
        for item in items:
            if len(item.body) > limit:
                raise Refused(
                    "too-large",
                    f"a body of {len(item.body)} bytes; the limit is {limit}",
                    (len(item.body), limit),
                )
            if item.extra is not None and (size := _extra_bytes(item.extra)) > MAX_EXTRA_BYTES:
                raise Refused(
                    "too-large",
                    f"headers of {size} bytes; the limit is {MAX_EXTRA_BYTES}",
                    (size, MAX_EXTRA_BYTES),
                )
        self._check_disk()

    def _check_disk(self) -> None:
        now_s = self.clock.monotonic_s()
        if now_s - self._disk_checked_s >= DISK_CHECK_S:
            self._disk_checked_s = now_s
            self._disk_full = self.store.free_bytes() < self.options.min_free_bytes
        if self._disk_full:
            raise Refused("full", "the broker's disk is nearly full; consume, or free some space")

    def _add(self, queue: Queue, items: Sequence[Item]) -> None:
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
            self._insert(queue, rows, entries)
        if later:
            self._delay(queue, later)

    def _insert(self, queue: Queue, rows: Sequence[Entry], entries: list[Entry]) -> None:
        self.store.insert(rows)
        queue.published(entries)
        soonest = min((entry[4] for entry in entries if entry[4]), default=None)
        if soonest is not None:
            self._expiry_ms = min(self._expiry_ms or soonest, soonest)
        self._dirty.add(queue)
        self._hot.add(queue)

    def _delay(self, queue: Queue, rows: Sequence[tuple[object, ...]]) -> None:
        self.store.delay(rows)
        queue.row.delayed += len(rows)
        self._dirty.add(queue)
        soonest = min(row[0] for row in rows if isinstance(row[0], int))
        self._due_ms = soonest if self._due_ms is None else min(self._due_ms, soonest)

    # -- handing out

    def reserve(self, name: str, waiter: Waiter, create: bool = True) -> None:
        queue = self.queue(name, create)
        queue.waiters.append(waiter)
        heapq.heappush(self._deadlines, (waiter.deadline_s, next(self._order), queue, waiter))
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
            _, taken, _ = self.leases.claim(token, [k for k, t in consumer.held.items() if t == token])
            self._give_back(queue, taken)

    def leave(self, peer: Peer) -> None:
        """A connection ended: its leases end, and nobody waits for it any more."""
        for lease in list(peer.leases.values()):
            self._give_back(lease.queue, self.leases.end(lease))
        for queue in self.queues.values():
            if queue.waiters:
                kept = [waiter for waiter in queue.waiters if waiter.peer is not peer]
                queue.waiters.clear()
                queue.waiters.extend(kept)

    def peek(self, queue: Queue, after: int, limit: int, max_bytes: int) -> list[Entry]:
        """Ready messages behind a key, oldest first; nothing is taken."""
        held = self.leases.keys_of(queue) if queue.inflight else set()
        while True:
            page = self.store.load(after, queue.row, limit, max_bytes)
            ready = [entry for entry in page if entry[0] not in held]
            if ready or not page:
                return ready
            after = page[-1][0]

    def _dispatch(self, queue: Queue, now_ms: int, now_s: float) -> None:
        while queue.ready > 0:
            demand = queue.demand()
            if not demand:
                return
            share = max(1, queue.ready // len(demand))
            for taker, wanted in demand:
                entries = queue.take(min(wanted, share), now_ms)
                if queue.overdue:
                    self._bury_overdue(queue, now_ms)
                if not entries:
                    return
                self._hand_out(queue, taker, entries, now_s)

    def _hand_out(self, queue: Queue, taker: Waiter | Consumer, entries: list[Entry], now_s: float) -> None:
        consumer = taker if isinstance(taker, Consumer) else None
        lease_s = self.options.plain_lease_s if isinstance(taker, Consumer) else taker.lease_s
        owner = None if isinstance(taker, Waiter) and taker.detached else taker.peer
        lease = self.leases.grant(queue, entries, now_s + lease_s, owner=owner, consumer=consumer)
        queue.inflight += len(entries)
        queue.row.mark = max(queue.row.mark, entries[-1][0])
        self._dirty.add(queue)
        self._counts.extend([(entry[0], entry[5] + 1) for entry in entries if len(entry) == 6])
        self.totals.delivered += len(entries)
        if isinstance(taker, Consumer):
            taker.held.update(dict.fromkeys(lease.held, lease.token))
            taker.peer.dispatch(taker, entries)
        else:
            taker.done = True
            queue.waiters.remove(taker)
            taker.peer.deliver(taker, lease, entries)

    # -- settling

    def ack(self, held: Iterable[Held]) -> list[Held]:
        """Forget these for good; returns the receipts that were not held any more."""
        lapsed: list[Held] = []
        for part in held:
            lease, taken, missing = self.leases.claim(part.token, part.keys)
            if lease is not None and taken:
                self._forget(lease.queue, taken)
                self.leases.remember_settled(part.token, taken)
                lease.queue.row.acked += len(taken)
                self.totals.acked += len(taken)
            if missing:
                missing = self.leases.not_settled(part.token, missing)
                lapsed.extend([Held(part.token, missing)] if missing else [])
        return lapsed

    def release(self, held: Iterable[Held], delay_ms: int) -> list[Held]:
        lapsed: list[Held] = []
        for part in held:
            lease, taken, missing = self.leases.claim(part.token, part.keys)
            if lease is not None and taken:
                self.totals.released += len(taken)
                if delay_ms:
                    self._put_off(lease.queue, taken, delay_ms)
                else:
                    self._give_back(lease.queue, taken)
            lapsed.extend([Held(part.token, missing)] if missing else [])
        return lapsed

    def extend(self, held: Iterable[Held], lease_s: float) -> list[Held]:
        until_s = self.clock.monotonic_s() + lease_s
        missing = [(part.token, self.leases.extend(part.token, part.keys, until_s)) for part in held]
        return [Held(token, keys) for token, keys in missing if keys]

    def move(self, name: str, copies: Sequence[Copy], create: bool = True) -> list[Held]:
        """Publish each copy and forget its original, in one transaction."""
        self._check([copy.item for copy in copies])
        target = self.queue(name, create)
        lapsed: list[Held] = []
        items: list[Item] = []
        sources: dict[Queue, dict[int, int]] = {}
        for copy in copies:
            lease, taken, missing = self.leases.claim(copy.token, (copy.key,))
            if lease is None or missing:
                lapsed.append(Held(copy.token, [copy.key]))
            else:
                sources.setdefault(lease.queue, {}).update(taken)
                items.append(copy.item)
                self.leases.remember_settled(copy.token, taken)
        if items:
            self._add(target, items)
            target.row.published += len(items)
            self.totals.moved += len(items)
        for queue, taken in sources.items():
            self._forget(queue, taken)
        return lapsed

    def requeue(self, consumer: Consumer, key: int, ttl_s: int) -> bool:
        """To the end of its queue with a new TTL; False when this consumer does not hold it."""
        queue = consumer.queue
        _, taken, _ = self.leases.claim(consumer.held.get(key, 0), (key,))
        entry = self.store.get(key, taken[key] + 1) if taken else None
        if entry is None:
            return False
        now_ms = self.clock.epoch_ms()
        self._forget(queue, taken)
        extra = None if entry[2] is None else bytes(entry[2])
        new = (queue.row.next, entry[1], extra, entry[3], now_ms + ttl_s * 1000 if ttl_s else 0)
        self._counts.append((new[0], entry[5]))
        self._insert(queue, [new], [(new[0], new[1], entry[2], new[3], new[4], entry[5])])
        self.totals.released += 1
        return True

    def bury(self, consumer: Consumer, key: int) -> bool:
        """To the queue's dead letters; False when this consumer does not hold it."""
        _, taken, _ = self.leases.claim(consumer.held.get(key, 0), (key,))
        entry = self.store.get(key, taken[key] + 1) if taken else None
        if entry is None:
            return False
        consumer.queue.inflight -= 1
        self._bury(consumer.queue, [entry], "dead-letter")
        consumer.queue.row.dead += 1
        self.totals.dead += 1
        return True

    def _forget(self, queue: Queue, taken: dict[int, int]) -> None:
        """Held messages leave the store."""
        keys = list(taken)
        if self.store.archiving:
            self.store.to_archive(keys, queue.name, self.clock.epoch_ms())
        self.store.delete(keys, counted=any(taken.values()))
        queue.inflight -= len(keys)
        queue.row.messages -= len(keys)
        self._dirty.add(queue)
        if queue.consumers:
            self._hot.add(queue)

    def _give_back(self, queue: Queue, taken: dict[int, int]) -> None:
        if taken:
            queue.give_back(taken)
            self._hot.add(queue)

    def _put_off(self, queue: Queue, taken: dict[int, int], delay_ms: int) -> None:
        due_ms = self.clock.epoch_ms() + delay_ms
        rows = []
        for key, count in taken.items():
            entry = self.store.get(key, count + 1)
            if entry is not None:
                extra = None if entry[2] is None else bytes(entry[2])
                rows.append((due_ms, queue.row.id, entry[1], extra, entry[3], entry[4], count + 1))
        self.store.delete(list(taken), counted=True)
        queue.inflight -= len(taken)
        queue.row.messages -= len(taken)
        self._delay(queue, rows)

    # -- time

    def tick(self) -> None:
        """Do what is due, hand out, and make it all durable. Replies may leave when this returns."""
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        if self._due_ms is not None and self._due_ms <= now_ms:
            self._promote(now_ms)
        if (end_s := self.leases.next_end_s) is not None and end_s <= now_s:
            self._lapse(now_s)
        if self._expiry_ms is not None and self._expiry_ms <= now_ms:
            self._expire(now_ms)
        hot, self._hot = self._hot, set()
        for queue in hot:
            self._dispatch(queue, now_ms, now_s)
        while self._deadlines and (self._deadlines[0][3].done or self._deadlines[0][0] <= now_s):
            _, _, queue, waiter = heapq.heappop(self._deadlines)
            if not waiter.done and waiter in queue.waiters:
                queue.waiters.remove(waiter)
                waiter.peer.deliver(waiter, None, [])
        self.store.commit([queue.row for queue in self._dirty], self._counts)
        self.totals.commits += 1
        self._dirty.clear()
        self._counts.clear()

    def next_wake_s(self) -> float | None:
        """Seconds until `tick` has something to do of its own; None when nothing is planned."""
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        if self._hot:
            return 0.0
        plans = [(ms - now_ms) / 1000 for ms in (self._due_ms, self._expiry_ms) if ms is not None]
        if self.leases.next_end_s is not None:
            plans.append(self.leases.next_end_s - now_s)
        if self._deadlines:
            plans.append(self._deadlines[0][0] - now_s)
        return max(0.0, min(plans)) if plans else None

    def _promote(self, now_ms: int) -> None:
        """Delayed messages whose time has come join the end of their queues."""
        later = self.store.due(now_ms, STEP)
        for row in later:
            queue = self._by_id[row.queue]
            key = queue.row.next
            new: Entry = (key, row.body, row.extra, row.published_ms, row.expires_ms)
            raw = None if row.extra is None else msgspec.Raw(row.extra)
            entry: Entry = (key, row.body, raw, row.published_ms, row.expires_ms)
            if row.count:
                self._counts.append((key, row.count))
                entry = (*entry, row.count)
            self._insert(queue, [new], [entry])
            queue.row.delayed -= 1
        if later:
            self.store.delete_delayed([row.id for row in later])
        self._due_ms = self.store.next_due_ms()

    def _lapse(self, now_s: float) -> None:
        for lease, taken in self.leases.lapse(now_s):
            self.totals.lapsed += len(taken)
            self._give_back(lease.queue, taken)

    def _expire(self, now_ms: int) -> None:
        """Bury what expired unseen. Held messages are left to whoever holds them."""
        held = self.leases.all_keys()
        found: list[int] = []
        rows = self.store.expired(now_ms)
        for key in rows:
            if key not in held:
                found.append(key)
                if len(found) == STEP:
                    break
        rows.close()
        for key in found:
            entry = self.store.get(key, 0)
            if entry is not None:
                self._bury_overdue_entry(self._by_id[queue_of(key)], entry)
        if len(found) < STEP:
            upcoming = self.store.next_expiry_ms()
            # Held ones are in the past already; look again in a while.
            self._expiry_ms = None if upcoming is None else max(upcoming, now_ms + 1000)

    def _bury_overdue(self, queue: Queue, now_ms: int) -> None:
        overdue, queue.overdue = queue.overdue, []
        for entry in overdue:
            # The sweep may have been faster: then the row is gone, and counted.
            if self.store.get(entry[0], 0) is not None:
                self._bury_overdue_entry(queue, entry)

    def _bury_overdue_entry(self, queue: Queue, entry: Entry) -> None:
        self._bury(queue, [entry], "expired")
        queue.row.expired += 1
        self.totals.expired += 1

    def _bury(self, queue: Queue, entries: Sequence[Entry], reason: str) -> None:
        """Move messages, with a note, to the queue's dead letters; they never expire there."""
        name = queue.name + DLQ_SUFFIX
        too_long = len(name.encode()) > self.options.limits.max_queue_bytes
        target = queue if too_long else self.queues.get(name) or self._create(name)
        items = []
        for entry in entries:
            extra = unpack_extra(None if entry[2] is None else bytes(entry[2])) or Extra({})
            headers = {**extra.headers, REASON_HEADER: reason, SOURCE_HEADER: queue.name}
            items.append(Item(entry[1], Extra(headers, extra.key)))
        self._add(target, items)
        self.store.delete([entry[0] for entry in entries], counted=True)
        queue.row.messages -= len(entries)
        self._dirty.add(queue)


def _extra_bytes(extra: Extra) -> int:
    return sum(len(name) + len(value) for name, value in extra.headers.items()) + len(extra.key or b"")
