"""The engine against a model a child could check: lists of messages, with crashes at any moment.

Whatever sequence of publishes, reserves, settlements, hang-ups, lease ends and restarts comes: every
message is in exactly one place, order is kept, and delivery counts are exact.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shinar.clock import PinnedClock
from shinar.phpmq import maintenance
from shinar.phpmq.engine import BrokerEngine, Options
from shinar.phpmq.engine import queue as queue_module
from shinar.phpmq.engine.accounts import Account
from shinar.phpmq.engine.queue import Waiter
from shinar.phpmq.protocol.extension import Copy, Extra, Held, Item
from shinar.phpmq.store import BrokerStore

LEASE_S = 10.0


class FakePeer:
    """A connection without a socket: it remembers what it was handed."""

    def __init__(self) -> None:
        self.leases: dict = {}
        self.waiting: dict = {}
        self.account = Account("test")
        self.replies: list = []

    def writable(self) -> bool:
        return True

    def deliver(self, waiter, lease, entries) -> None:
        self.replies.append((lease, entries))

    def dispatch(self, consumer, entries) -> None:
        raise AssertionError("no plain consumers here")

    def refuse(self, tag, refused) -> None:
        raise refused

    def cut_off(self, reason) -> None:
        raise AssertionError(reason)


class EngineMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        # Tiny windows, so that a handful of messages already lives partly on disk.
        self._sizes = queue_module.WINDOW_ROWS, queue_module.REFILL_ROWS
        queue_module.WINDOW_ROWS, queue_module.REFILL_ROWS = 3, 2  # type: ignore[misc]  # Final, but not here
        self._folder = tempfile.TemporaryDirectory()
        self.clock = PinnedClock(1_000_000.0)
        self.number = 0
        #: The model. A message is its number; lists are in delivery order.
        self.ready: dict[str, list[int]] = {"a": [], "b": []}
        self.delayed: list[tuple[float, int, str, int]] = []
        self.held: dict[tuple[int, int], tuple[str, int, float, FakePeer]] = {}
        self.deliveries: dict[int, int] = {}
        self.place: dict[int, int] = {}
        self.places = 0
        self._start()

    def _start(self) -> None:
        self.store = BrokerStore(Path(self._folder.name), durability="os", archive=True)
        self.engine = BrokerEngine(self.store, Options(min_free_bytes=0), self.clock)
        self.peers = [FakePeer(), FakePeer()]

    def teardown(self) -> None:
        queue_module.WINDOW_ROWS, queue_module.REFILL_ROWS = self._sizes  # type: ignore[misc]  # back again
        if hasattr(self, "store"):
            self.store.close()
            assert maintenance.check(self.store.folder) == []
            self._folder.cleanup()

    # -- the model's own moves

    def _new(self, queue: str, count: int) -> list[int]:
        numbers = list(range(self.number, self.number + count))
        self.number += count
        for number in numbers:
            self.deliveries[number] = 0
        return numbers

    def _append(self, queue: str, numbers: list[int]) -> None:
        for number in numbers:
            self.places += 1
            self.place[number] = self.places
        self.ready[queue] += numbers

    def _back(self, receipt: tuple[int, int]) -> None:
        queue, number, _, _ = self.held.pop(receipt)
        self.ready[queue].append(number)
        self.ready[queue].sort(key=self.place.__getitem__)

    def _settle_time(self) -> None:
        now = self.clock.monotonic_s()
        for row in sorted(row for row in self.delayed if row[0] <= now):
            self.delayed.remove(row)
            self._append(row[2], [row[3]])
        for receipt in [r for r, held in self.held.items() if held[2] <= now]:
            self._back(receipt)

    # -- rules

    @rule(queue=st.sampled_from("ab"), count=st.integers(1, 6), extra=st.booleans())
    def publish(self, queue: str, count: int, extra: bool) -> None:
        numbers = self._new(queue, count)
        note = Extra({"h": "v"}, b"k") if extra else None
        self.engine.intake.publish(queue, [Item(b"%d" % number, note) for number in numbers])
        self.engine.tick()
        self._settle_time()
        self._append(queue, numbers)

    @rule(queue=st.sampled_from("ab"), delay=st.integers(1, 20))
    def publish_delayed(self, queue: str, delay: int) -> None:
        (number,) = self._new(queue, 1)
        self.engine.intake.publish(queue, [Item(b"%d" % number, None, delay * 1000)])
        self.engine.tick()
        self._settle_time()
        self.delayed.append((self.clock.monotonic_s() + delay, number, queue, number))

    @rule(queue=st.sampled_from("ab"), limit=st.integers(1, 8), who=st.integers(0, 1))
    def reserve(self, queue: str, limit: int, who: int) -> None:
        peer = self.peers[who]
        now = self.clock.monotonic_s()
        self.engine.tick()
        self._settle_time()
        self.engine.dispatcher.reserve(
            queue, Waiter(peer, 1, limit, deadline_s=now, lease_s=LEASE_S, detached=False)
        )
        self.engine.tick()
        lease, entries = peer.replies.pop()
        expected = self.ready[queue][:limit]
        assert [int(entry[1]) for entry in entries] == expected
        for entry, number in zip(entries, expected, strict=True):
            assert (entry[5] if len(entry) == 6 else 0) == self.deliveries[number]
            self.deliveries[number] += 1
            self.held[lease.token, entry[0]] = (queue, number, now + LEASE_S, peer)
        del self.ready[queue][:limit]

    def _pick(self, data: st.DataObject) -> list[tuple[int, int]]:
        return data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        picked = self._pick(data)
        assert self.engine.settlement.ack([Held(token, [key]) for token, key in picked]) == []
        self.engine.tick()
        for receipt in picked:
            del self.held[receipt]
        assert self.engine.settlement.ack([Held(token, [key]) for token, key in picked]) == [], "idempotent"
        assert self.engine.settlement.release([Held(token, [key]) for token, key in picked], 0) != []
        self._settle_time()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=st.integers(0, 5), counted=st.booleans())
    def release(self, data: st.DataObject, delay: int, counted: bool) -> None:
        picked = self._pick(data)
        held = [Held(token, [key]) for token, key in picked]
        assert self.engine.settlement.release(held, delay * 1000, counted=counted) == []
        self.engine.tick()
        self._settle_time()
        for receipt in picked:
            self.deliveries[self.held[receipt][1]] -= not counted
            if delay:
                queue, number, _, _ = self.held.pop(receipt)
                self.delayed.append((self.clock.monotonic_s() + delay, self.number, queue, number))
                self.number += 1
            else:
                self._back(receipt)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.integers(1, 30))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        picked = self._pick(data)
        assert self.engine.settlement.extend([Held(token, [key]) for token, key in picked], seconds) == []
        for receipt in picked:
            queue, number, _, peer = self.held[receipt]
            self.held[receipt] = (queue, number, self.clock.monotonic_s() + seconds, peer)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), to=st.sampled_from("ab"))
    def move(self, data: st.DataObject, to: str) -> None:
        picked = self._pick(data)
        moved = [self.held[receipt][1] for receipt in picked]
        copies = [
            Copy(token, key, Item(b"%d" % number)) for (token, key), number in zip(picked, moved, strict=True)
        ]
        assert self.engine.settlement.move(to, copies) == []
        assert len(self.engine.settlement.move(to, copies)) == len(copies), "a second move moves nothing"
        self.engine.tick()
        self._settle_time()
        for receipt, number in zip(picked, moved, strict=True):
            del self.held[receipt]
            self.deliveries[number] = 0
        self._append(to, moved)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.engine.tick()
        self._settle_time()

    @rule(who=st.integers(0, 1))
    def hang_up(self, who: int) -> None:
        self.engine.dispatcher.leave(self.peers[who])
        self.engine.tick()
        self._settle_time()
        for receipt in [r for r, held in self.held.items() if held[3] is self.peers[who]]:
            self._back(receipt)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        """As after SIGKILL: nothing but the file is left."""
        if not clean:
            self.engine.intake.publish("a", [Item(b"never committed")])
            self.store.rollback()
        self.store.close()
        self._start()
        self.engine.tick()
        for receipt in list(self.held):
            self._back(receipt)
        self._settle_time()

    @invariant()
    def figures_add_up(self) -> None:
        if not hasattr(self, "engine"):
            return
        for name in "ab":
            queue = self.engine.queues.find(name)
            held = sum(1 for held in self.held.values() if held[0] == name)
            late = sum(1 for row in self.delayed if row[2] == name)
            figures = (queue.ready, len(queue.reserved), queue.row.delayed) if queue else (0, 0, 0)
            assert figures == (len(self.ready[name]), held, late)
            if queue:
                seen = [
                    int(entry[1])
                    for entry in queue.browse(queue.row.first, 10**6, 10**9, self.clock.epoch_ms())
                ]
                assert seen == self.ready[name]


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
