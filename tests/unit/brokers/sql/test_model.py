"""The table queue against a model of what a queue is: any order of calls, on SQLite, with a pinned clock."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shinar.brokers import Delivery, Outgoing, connect
from shinar.clock import PinnedClock

QUEUES = st.sampled_from(["a", "b"])
DELAYS = st.sampled_from([0.0, 0.0, 1.0, 5.0])
LEASE_S = 3.0


@dataclass
class Row:
    id: int
    queue: str
    body: bytes
    at_ms: int
    #: The reservation that holds or held it last; None when nobody has since it was handed back.
    held_by: int | None = None
    deliveries: int = 0


class TableQueue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = PinnedClock(2_000_000_000)
        url = f"sqlite://{self.folder.name}/q.db?durability=os&lease_s={LEASE_S}"
        self.broker = connect(url, self.clock)
        self.rows: dict[int, Row] = {}
        self.next_id = 1
        self.reservations = 0
        #: Everything ever reserved, with the number of its reservation: old ones are tried again.
        self.taken: list[tuple[Delivery, int]] = []

    def now_ms(self) -> int:
        return self.clock.epoch_ms()

    def put(self, queue: str, body: bytes, delay_s: float) -> None:
        at_ms = self.now_ms() + round(delay_s * 1000)
        self.rows[self.next_id] = Row(self.next_id, queue, body, at_ms)
        self.next_id += 1

    def split(self, picked: list[tuple[Delivery, int]]) -> tuple[list[Row], tuple[Delivery, ...]]:
        """The rows these deliveries still hold, and the deliveries that hold none."""
        held, lapsed = [], []
        for delivery, reservation in picked:
            row = self.rows.get(int(delivery.position))
            if row is not None and row.held_by == reservation:
                held.append(row)
            else:
                lapsed.append(delivery)
        return held, tuple(lapsed)

    def pick(self, data: st.DataObject) -> list[tuple[Delivery, int]]:
        if not self.taken:
            return []
        indices = data.draw(st.sets(st.integers(0, len(self.taken) - 1), max_size=4))
        return [self.taken[index] for index in sorted(indices)]

    @rule(queue=QUEUES, delays=st.lists(DELAYS, max_size=4))
    def publish(self, queue: str, delays: list[float]) -> None:
        messages = [Outgoing(f"{self.next_id + n}".encode(), delay_s=delay) for n, delay in enumerate(delays)]
        self.broker.publish(queue, messages)
        for message in messages:
            self.put(queue, message.body, message.delay_s)

    @rule(queue=QUEUES, limit=st.integers(0, 4))
    def reserve(self, queue: str, limit: int) -> None:
        due = [row for row in self.rows.values() if row.queue == queue and row.at_ms <= self.now_ms()]
        due = sorted(sorted(due, key=lambda row: (row.at_ms, row.id))[:limit], key=lambda row: row.id)
        got = self.broker.reserve(queue, limit, 0)
        assert [(d.body, d.native_count) for d in got] == [(row.body, row.deliveries) for row in due]
        self.reservations += 1
        for row, delivery in zip(due, got, strict=True):
            row.held_by, row.deliveries = self.reservations, row.deliveries + 1
            row.at_ms = self.now_ms() + round(LEASE_S * 1000)
            self.taken.append((delivery, self.reservations))

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        picked = self.pick(data)
        held, lapsed = self.split(picked)
        # A message that is gone was settled before: acking it again is no news.
        expected = tuple(d for d in lapsed if int(d.position) in self.rows)
        assert set(self.ids(self.broker.ack([d for d, _ in picked]))) == set(self.ids(expected))
        for row in held:
            del self.rows[row.id]

    @rule(data=st.data(), delay_s=DELAYS)
    def release(self, data: st.DataObject, delay_s: float) -> None:
        picked = self.pick(data)
        held, lapsed = self.split(picked)
        assert self.broker.release([d for d, _ in picked], delay_s) == lapsed
        for row in held:
            row.held_by, row.at_ms = None, self.now_ms() + round(delay_s * 1000)

    @rule(data=st.data(), lease_s=st.sampled_from([1.0, 10.0]))
    def extend(self, data: st.DataObject, lease_s: float) -> None:
        picked = self.pick(data)
        held, lapsed = self.split(picked)
        assert self.broker.extend([d for d, _ in picked], lease_s) == lapsed
        for row in held:
            row.at_ms = self.now_ms() + round(lease_s * 1000)

    @rule(data=st.data(), queue=QUEUES, delay_s=DELAYS)
    def move(self, data: st.DataObject, queue: str, delay_s: float) -> None:
        picked = self.pick(data)
        held, lapsed = self.split(picked)
        copies = [(d, Outgoing(b"copy of " + d.body, delay_s=delay_s)) for d, _ in picked]
        assert self.broker.move(queue, copies) == lapsed
        for row in held:
            del self.rows[row.id]
        for row in held:
            self.put(queue, b"copy of " + row.body, delay_s)

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def the_queues_are_what_the_model_says(self) -> None:
        for queue in ("a", "b"):
            rows = [row for row in self.rows.values() if row.queue == queue]
            rows.sort(key=lambda row: (row.at_ms, row.id))
            assert [d.body for d in self.broker.browse(queue)] == [row.body for row in rows]
            hidden = [row for row in rows if row.at_ms > self.now_ms()]
            depth = self.broker.depth(queue)
            assert depth.ready == len(rows) - len(hidden)
            assert depth.reserved == sum(row.held_by is not None for row in hidden)
            assert depth.delayed == sum(row.held_by is None for row in hidden)

    def ids(self, deliveries: tuple[Delivery, ...]) -> list[tuple[int, int]]:
        return [delivery.receipt for delivery in deliveries]

    def teardown(self) -> None:
        self.broker.close()
        self.folder.cleanup()


TableQueue.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTableQueue = TableQueue.TestCase
