"""memory:// — a full broker inside this process: leases, redelivery, delay, browse, at-least-once.

For tests, examples and single-process programs. Queues live as long as the process and are shared
by every broker object with the same name (`memory://name/queue`). Nothing is durable.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from shinar.brokers.contract import NOTHING, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.settlement.traits import Traits

#: Seconds a reservation lasts unless the URL says otherwise (?lease_s=).
DEFAULT_LEASE_S: Final = 60.0

TRAITS: Final = Traits(
    name="memory",
    durable=False,
    shared=False,
    key=True,
    attempts="max",
    count_base=0,
    lease_s=DEFAULT_LEASE_S,
    portable_receipts=True,
    stable_position=True,
    atomic_move=True,
    release_counts=True,
    release_uncounted=True,
)
OPTIONS: Final = frozenset({"lease_s"})
#: The number of the reservation.
RECEIPT: Final = int


class _Item(msgspec.Struct, gc=False):
    number: int
    position: str
    body: bytes
    headers: Mapping[str, str]
    key: bytes | None
    since_ms: int
    deliveries: int = 0
    #: When the lease ends, while somebody has it.
    until_ms: int = 0


class _Queue:
    """One queue's state. Guarded by its space's lock."""

    def __init__(self) -> None:
        self.ready: deque[_Item] = deque()
        self.delayed: list[tuple[int, int, _Item]] = []
        #: By the number of the reservation.
        self.held: dict[int, _Item] = {}
        #: No lease ends before this; lets `wake` skip looking.
        self.next_lapse_ms = 0

    def wake(self, now_ms: int) -> None:
        """Move what is due, and what nobody settled in time, to ready."""
        while self.delayed and self.delayed[0][0] <= now_ms:
            self.ready.append(heapq.heappop(self.delayed)[2])
        if self.held and now_ms >= self.next_lapse_ms:
            lapsed = [number for number, item in self.held.items() if item.until_ms <= now_ms]
            # Back to where they were: in front, oldest first.
            self.ready.extendleft(self.held.pop(number) for number in reversed(lapsed))
            self.next_lapse_ms = min((item.until_ms for item in self.held.values()), default=0)

    def hold(self, number: int, item: _Item, until_ms: int) -> None:
        if not self.held or until_ms < self.next_lapse_ms:
            self.next_lapse_ms = until_ms
        item.until_ms = until_ms
        self.held[number] = item

    def next_due_ms(self) -> int | None:
        """When something becomes ready by itself; None when only a publish can help."""
        times = [self.delayed[0][0]] if self.delayed else []
        times += [self.next_lapse_ms] if self.held else []
        return min(times, default=None)


class _Space:
    """The queues behind one `memory://name`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues: dict[str, _Queue] = {}
        self.numbers = itertools.count(1)

    def queue(self, name: str) -> _Queue:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = _Queue()
        return found

    def put(self, name: str, message: Outgoing, now_ms: int) -> None:
        number = next(self.numbers)
        item = _Item(number, str(number), message.body, message.headers, message.key, now_ms)
        queue = self.queue(name)
        if message.delay_s > 0:
            heapq.heappush(queue.delayed, (now_ms + int(message.delay_s * 1000), number, item))
        else:
            queue.ready.append(item)


_spaces: dict[str, _Space] = {}
_spaces_lock = threading.Lock()


def traits(url: BrokerUrl) -> Traits:
    return dataclasses.replace(TRAITS, lease_s=url.number("lease_s", DEFAULT_LEASE_S, least=0.001))


def connect(url: BrokerUrl, clock: Clock) -> MemoryBroker:
    with _spaces_lock:
        space = _spaces.setdefault(url.netloc, _Space())
    return MemoryBroker(space, clock, traits(url))


class MemoryBroker:
    def __init__(self, space: _Space, clock: Clock, traits: Traits) -> None:
        self.traits = traits
        self._space = space
        self._clock = clock
        self._lease_ms = int((traits.lease_s or DEFAULT_LEASE_S) * 1000)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        now_ms = self._clock.epoch_ms()
        with self._space.changed:
            for message in messages:
                self._space.put(queue, message, now_ms)
            self._space.changed.notify_all()

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        deadline_s = self._clock.monotonic_s() + wait_s
        with self._space.changed:
            while True:
                now_ms = self._clock.epoch_ms()
                source = self._space.queue(queue)
                source.wake(now_ms)
                if source.ready:
                    return self._take(queue, source, limit, now_ms)
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return []
                due_ms = source.next_due_ms()
                if due_ms is not None:
                    left_s = min(left_s, max(0.001, (due_ms - now_ms) / 1000))
                self._space.changed.wait(left_s)

    def _take(self, name: str, queue: _Queue, limit: int, now_ms: int) -> list[Delivery]:
        until_ms = now_ms + self._lease_ms
        ready, held, numbers = queue.ready, queue.held, self._space.numbers
        if ready and (not held or until_ms < queue.next_lapse_ms):
            queue.next_lapse_ms = until_ms
        taken: list[Delivery] = []
        for _ in range(min(limit, len(ready))):
            item = ready.popleft()
            number = next(numbers)
            held[number] = item
            count = item.deliveries
            item.deliveries = count + 1
            item.until_ms = until_ms
            # By position, in the order of the fields: this is the hot loop of every in-process test.
            delivery = Delivery(
                item.body,
                name,
                number,
                item.headers,
                NOTHING,
                item.key,
                count,
                now_ms,
                until_ms,
                item.position,
            )
            taken.append(delivery)
        return taken

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        now_ms = self._clock.epoch_ms()
        lapsed = []
        queues = self._space.queues
        with self._space.changed:
            for delivery in deliveries:
                held = queues[delivery.queue].held
                found = held.pop(delivery.receipt, None)
                if found is None or found.until_ms <= now_ms:
                    lapsed.append(delivery)
                    if found is not None:
                        held[delivery.receipt] = found  # for `wake`, which hands it out again
        return tuple(lapsed)

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        due_ms = self._clock.epoch_ms() + int(delay_s * 1000)
        lapsed = []
        with self._space.changed:
            for delivery in reversed(deliveries):
                item = self._settle(delivery)
                if item is None:
                    lapsed.append(delivery)
                    continue
                if not count:
                    item.deliveries -= 1
                if delay_s > 0:
                    queue = self._space.queue(delivery.queue)
                    heapq.heappush(queue.delayed, (due_ms, item.number, item))
                else:
                    self._space.queue(delivery.queue).ready.appendleft(item)
            self._space.changed.notify_all()
        return tuple(reversed(lapsed))

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        now_ms = self._clock.epoch_ms()
        lapsed = []
        with self._space.changed:
            for delivery, copy in copies:
                if self._settle(delivery) is None:
                    lapsed.append(delivery)
                else:
                    self._space.put(queue, copy, now_ms)
            self._space.changed.notify_all()
        return tuple(lapsed)

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        until_ms = self._clock.epoch_ms() + int(lease_s * 1000)
        lapsed = []
        with self._space.changed:
            for delivery in deliveries:
                item = self._settle(delivery)
                if item is None:
                    lapsed.append(delivery)
                else:
                    self._space.queue(delivery.queue).hold(delivery.receipt, item, until_ms)
        return tuple(lapsed)

    def _settle(self, delivery: Delivery) -> _Item | None:
        """Take the item out of its reservation; None when that has lapsed."""
        held = self._space.queues[delivery.queue].held
        item = held.get(delivery.receipt)
        if item is None or item.until_ms <= self._clock.epoch_ms():
            return None
        del held[delivery.receipt]
        return item

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        with self._space.changed:
            source = self._space.queue(queue)
            source.wake(self._clock.epoch_ms())
            items = list(itertools.islice(source.ready, limit))
        for item in items:
            yield Delivery(
                item.body,
                queue,
                None,
                item.headers,
                key=item.key,
                native_count=item.deliveries,
                received_ms=item.since_ms,
                position=item.position,
            )

    def depth(self, queue: str) -> Depth:
        now_ms = self._clock.epoch_ms()
        with self._space.changed:
            source = self._space.queue(queue)
            source.wake(now_ms)
            oldest = source.ready[0].since_ms if source.ready else None
            age_s = None if oldest is None else max(0.0, (now_ms - oldest) / 1000)
            return Depth(len(source.ready), len(source.held), len(source.delayed), age_s)

    def close(self) -> None:
        """Nothing to hang up: reservations end with their leases, as with every other broker."""
