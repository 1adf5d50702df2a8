"""An ack that did not reach the broker: what it delivers again is recognised, or kept with a mark."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from shinar.brokers import Broker, Outgoing, connect
from shinar.clock import PinnedClock
from shinar.envelope import build, encode
from shinar.errors import BrokerUnavailable
from shinar.pipeline.rows import schema
from shinar.pipeline.source.options import StreamOptions, stream_options
from shinar.pipeline.source.wal import capture, segments
from shinar.pipeline.source.wal.capture import CapturePartition, read_partition
from shinar.pipeline.source.wal.planner import START, WalPlanner
from shinar.pipeline.source.wal.redelivery import POSSIBLE
from shinar.pipeline.source.wal.segments import Landing, SegmentRef
from shinar.pipeline.source.wal.unsettled import KEPT_S, UnsettledLog

#: Equal in every byte, among others that are not.
EQUAL = b"{"


def options_of(folder: Path, url: str, queue: str) -> StreamOptions:
    (folder / "url").write_text(url)
    given = {"urlFile": str(folder / "url"), "queue": queue, "landing": str(folder / "landing")}
    return stream_options({**given, "minPartitions": "2"})


def rows_of(partition: CapturePartition, options: StreamOptions) -> list[tuple[bytes, str | None]]:
    """(body, mark)"""
    columns = [
        batch.select(["body", "redelivery"]).to_pylist() for batch in read_partition(partition, options)
    ]
    return [(row["body"], row["redelivery"]) for part in columns for row in part]


def read(partition: CapturePartition, options: StreamOptions) -> list[bytes]:
    return [body for body, _ in rows_of(partition, options)]


def bodies_of(count: int) -> list[bytes]:
    return [
        EQUAL if n % 5 == 0 else encode(build("urn:babel:orders:created", {"n": n})) for n in range(count)
    ]


def dies_before_the_ack(partition: CapturePartition, options: StreamOptions, monkeypatch) -> list[bytes]:
    """The segment is there, nothing was acknowledged, and the connection is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_acknowledge", lambda *_: None)
        return read(partition, options)


def drained(
    options: StreamOptions, start: dict, commit: dict | None = None
) -> list[tuple[bytes, str | None]]:
    """Everything the stream still gives, as a new run of the query would read it."""
    planner, rows = WalPlanner(options), []
    if commit:
        planner.commit(commit)
    planner.prepare_available_now()
    while (end := planner.latest_offset(start, 100, None)) != start:
        for partition in planner.partitions(start, end):
            rows += rows_of(partition, options)
        planner.commit(end)
        start = end
    planner.close()
    return rows


def two_partitions(folder: Path, queue: str, rows: int) -> tuple[dict, list[CapturePartition]]:
    """A batch of two tasks, as the planner would plan it for a long queue."""
    planned = [(queue, rows, None)] * 2
    end = {**START, "stream": "default", "epoch": "e", "batch": 1, "partitions": planned}
    landing = Landing(folder / "landing" / "default" / "e")
    landing.begin()
    landing.open(1)
    return end, [CapturePartition(landing.segment(1, n), queue, rows, None) for n in range(2)]


def published(url: str, queue: str, bodies: list[bytes]) -> Broker:
    broker = connect(url)
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    return broker


def test_positions_prove_a_redelivery(tmp_path, monkeypatch):
    # Long enough for one capture on a slow machine; the wait below is for its end.
    url, queue = f"memory://{uuid.uuid4().hex}?lease_s=5", "orders"
    bodies = bodies_of(40)
    broker = published(url, queue, bodies)
    options = options_of(tmp_path, url, queue)
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 20, None)
    (partition,) = planner.partitions(dict(START), end)
    captured = dies_before_the_ack(partition, options, monkeypatch)
    assert len(captured) == 20
    planner.close()
    time.sleep(6.0)
    rest = drained(options, end, commit=end)
    assert Counter([*captured, *(body for body, _ in rest)]) == Counter(bodies)
    assert {mark for _, mark in rest} == {None}
    broker.publish(queue, [Outgoing(body=EQUAL)])
    assert drained(options, {**end, "batch": 900}) == [(EQUAL, None)], "another message of the same bytes"
    later = WalPlanner(options)
    later.latest_offset({**end, "batch": 901}, 1, None)
    shown = later.report_latest_offset()
    assert (shown["redelivered"], shown["came_again"], shown["possible_redeliveries"]) == (20, 20, 0)
    later.close()
    found = broker.depth(queue)
    assert (found.ready, found.reserved or 0) == (0, 0)
    broker.close()


@pytest.mark.live("rabbitmq")
def test_without_positions_every_redelivery_is_a_marked_row(server, tmp_path, monkeypatch):
    queue = f"unsettled.{uuid.uuid4().hex}"
    bodies = bodies_of(40)
    broker = published(server.url, queue, bodies)
    options = options_of(tmp_path, server.url, queue)
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 20, None)
    (partition,) = planner.partitions(dict(START), end)
    captured = dies_before_the_ack(partition, options, monkeypatch)
    planner.close()
    rest = drained(options, end, commit=end)
    assert Counter([*captured, *(body for body, _ in rest)]) == Counter(bodies) + Counter(captured)
    assert Counter(body for body, mark in rest if mark) == Counter(captured)
    broker.publish(queue, [Outgoing(body=EQUAL)])
    assert drained(options, {**end, "batch": 900}) == [(EQUAL, None)], "RabbitMQ says it is a first delivery"
    later = WalPlanner(options)
    later.latest_offset({**end, "batch": 901}, 1, None)
    shown = later.report_latest_offset()
    assert (shown["redelivered"], shown["possible_redeliveries"]) == (0, 20)
    later.close()
    broker.close()


@pytest.mark.live("rabbitmq")
def test_a_task_marks_what_another_task_of_its_batch_captured(server, tmp_path, monkeypatch):
    queue = f"unsettled.{uuid.uuid4().hex}"
    bodies = bodies_of(20)
    broker = published(server.url, queue, bodies)
    options = options_of(tmp_path, server.url, queue)
    _, (first, second) = two_partitions(tmp_path, queue, 12)
    captured = dies_before_the_ack(first, options, monkeypatch)
    assert len(captured) == 12
    rest = rows_of(second, options)
    assert Counter(body for body, mark in rest if mark) == Counter(captured)
    broker.close()


@pytest.mark.live("redis")
def test_a_task_that_stops_before_its_ack_swallows_nothing(server, tmp_path, monkeypatch):
    """Stopped for longer than its lease, while a task of the same batch reads what lapsed. The rows that are
    there twice carry a mark; the late ack of the stopped task leaves no mark for messages to come."""
    queue = f"unsettled.{uuid.uuid4().hex}"
    url = f"{server.url}{'&' if '?' in server.url else '?'}lease_s=2"
    bodies = bodies_of(20)
    broker = published(url, queue, bodies)
    options = options_of(tmp_path, url, queue)
    end, (first, second) = two_partitions(tmp_path, queue, 20)
    honest, stopped, go_on = capture._acknowledge, threading.Event(), threading.Event()

    def stops(*args) -> None:
        monkeypatch.setattr(capture, "_acknowledge", honest)
        stopped.set()
        go_on.wait(60)
        honest(*args)

    monkeypatch.setattr(capture, "_acknowledge", stops)
    captured: list[bytes] = []
    task = threading.Thread(target=lambda: captured.extend(read(first, options)))
    task.start()
    assert stopped.wait(60)
    time.sleep(3.5)
    again = rows_of(second, options)
    go_on.set()
    task.join()
    assert Counter(captured) == Counter(bodies)
    assert Counter(again) == Counter((body, POSSIBLE) for body in bodies)
    # The two segments account for each other: new messages of the same bytes are new.
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    later = drained(options, end, commit=end)
    assert Counter(later) == Counter((body, None) for body in bodies)
    assert broker.depth(queue).ready == 0
    broker.close()


@pytest.mark.live("redis")
def test_a_task_that_stops_before_it_publishes_is_compared_too(server, tmp_path, monkeypatch):
    """Its leases were good when it looked, and are over when it goes on and publishes."""
    queue = f"unsettled.{uuid.uuid4().hex}"
    url = f"{server.url}{'&' if '?' in server.url else '?'}lease_s=2"
    bodies = bodies_of(20)
    broker = published(url, queue, bodies)
    options = options_of(tmp_path, url, queue)
    _, (first, second) = two_partitions(tmp_path, queue, 20)
    honest, stopped, go_on = segments.Attempt.publish, threading.Event(), threading.Event()

    def stops(self) -> bool:
        monkeypatch.setattr(segments.Attempt, "publish", honest)
        stopped.set()
        go_on.wait(60)
        return honest(self)

    monkeypatch.setattr(segments.Attempt, "publish", stops)
    captured: list[bytes] = []
    task = threading.Thread(target=lambda: captured.extend(read(first, options)))
    task.start()
    assert stopped.wait(60)
    time.sleep(3.5)
    again = rows_of(second, options)
    go_on.set()
    task.join()
    assert Counter(captured) == Counter(bodies)
    assert Counter(again) == Counter((body, POSSIBLE) for body in bodies)
    broker.close()


@pytest.mark.live("redis")
def test_messages_of_equal_bytes_are_not_marked_while_leases_last(server, tmp_path, monkeypatch):
    """Between a segment and its ack there is always a moment: no reason to doubt what comes in meanwhile."""
    queue = f"unsettled.{uuid.uuid4().hex}"
    broker = published(server.url, queue, [EQUAL] * 20)
    options = options_of(tmp_path, server.url, queue)
    end, (first, second) = two_partitions(tmp_path, queue, 10)
    assert dies_before_the_ack(first, options, monkeypatch) == [EQUAL] * 10
    assert rows_of(second, options) == [(EQUAL, None)] * 10
    # The commit acknowledges what the dead task did not; it finds nothing that lapsed.
    broker.publish(queue, [Outgoing(body=EQUAL)])
    assert drained(options, end, commit=end) == [(EQUAL, None)]
    assert broker.depth(queue) == broker.depth(f"{queue}.none")
    broker.close()


def test_a_batch_whose_commit_did_not_reach_the_broker_is_still_compared(tmp_path, monkeypatch):
    url, queue = f"memory://{uuid.uuid4().hex}?lease_s=1", "orders"
    bodies = bodies_of(10)
    broker = published(url, queue, bodies)
    options = options_of(tmp_path, url, queue)
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 10, None)
    (partition,) = planner.partitions(dict(START), end)
    captured = dies_before_the_ack(partition, options, monkeypatch)

    def away(*_: object) -> None:
        raise BrokerUnavailable("gone fishing", broker="memory")

    with monkeypatch.context() as patch:
        patch.setattr("shinar.pipeline.source.wal.planner.settle_segment", away)
        planner.commit(end)
        time.sleep(1.5)
        after = planner.latest_offset(end, 10, None)
        (next_one,) = planner.partitions(end, after)
        assert read(next_one, options) == [], "all of it is in the batch before"
    assert Counter(captured) == Counter(bodies)
    planner.close()
    assert broker.depth(queue).ready == 0
    broker.close()


def test_a_reservation_that_ended_meanwhile_starts_the_attempt_again(tmp_path, monkeypatch):
    url = f"sqlite://{tmp_path}/q.db?lease_s=2"
    bodies = bodies_of(10)
    broker = published(url, "orders", bodies)
    options = options_of(tmp_path, url, "orders")
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 10, None)
    (partition,) = planner.partitions(dict(START), end)
    honest, other = capture.chunk_of, []

    def stopped(*args):
        # As if the process had been stopped: the lease ends, and somebody else has the messages.
        monkeypatch.setattr(capture, "chunk_of", honest)
        time.sleep(2.5)
        other.extend(broker.reserve("orders", 4, 0))
        return honest(*args)

    monkeypatch.setattr(capture, "chunk_of", stopped)
    mine = read(partition, options)
    assert len(other) == 4
    assert Counter([*mine, *(delivery.body for delivery in other)]) == Counter(bodies)
    planner.close()
    broker.close()


def test_records_are_forgotten_after_a_week(tmp_path):
    ref = SegmentRef(str(tmp_path), 1, 0)
    traits = connect(f"memory://{uuid.uuid4().hex}").traits
    UnsettledLog(ref, traits).record(ref, [b"x" * 16])
    UnsettledLog(ref, traits).record_marked(SegmentRef(str(tmp_path), 2, 1), [("1-0", b"x" * 16)])
    now_s = time.time()
    UnsettledLog(ref, traits, PinnedClock(now_s + KEPT_S - 60)).forget_old()
    kept = UnsettledLog(ref, traits)
    assert kept.unsettled() == {"1-0": Counter({b"x" * 16: 1})}
    assert kept.marked() == Counter({("1-0", b"x" * 16): 1})
    UnsettledLog(ref, traits, PinnedClock(now_s + KEPT_S + 60)).forget_old()
    assert (kept.unsettled(), kept.marked(), kept.counts()) == ({}, Counter(), (0, 0))


def test_the_first_answer_to_an_ack_stands(tmp_path):
    """A repeated ack also misses what the first one removed: it must not widen the record."""
    ref = SegmentRef(str(tmp_path), 1, 0)
    log = UnsettledLog(ref, connect(f"memory://{uuid.uuid4().hex}").traits)
    log.record(ref, [b"x" * 16])
    log.record(ref, [b"x" * 16, b"y" * 16])
    assert log.unsettled() == {"1-0": Counter({b"x" * 16: 1})}


class Explosive:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("key", [b"shinar.receipts", b"shinar.receipts.2"])
def test_a_hostile_segment_runs_no_code(tmp_path, monkeypatch, caplog, key):
    """Old receipts were a pickle. A segment that has one, or pretends to, is read; its receipts are not."""
    url, queue, trap = f"memory://{uuid.uuid4().hex}", "orders", tmp_path / "trap"
    broker = published(url, queue, bodies_of(5))
    options = options_of(tmp_path, url, queue)
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 5, None)
    (partition,) = planner.partitions(dict(START), end)
    captured = dies_before_the_ack(partition, options, monkeypatch)
    _rewrite(partition.segment.path, {key: pickle.dumps([Explosive(trap)] * 5)})
    assert read(partition, options) == captured, "its rows are what they are"
    planner.commit(end)
    planner.close()
    assert not trap.exists()
    said = {b"shinar.receipts": "an earlier version", b"shinar.receipts.2": "its broker did not write"}
    assert said[key] in caplog.text
    assert broker.depth(queue).reserved == 5, "nothing was acknowledged: their leases return them"
    broker.close()


def test_rows_of_an_earlier_version_have_a_null_for_every_new_column(tmp_path):
    before = [field for field in schema.ARROW if field.name != "redelivery"]
    row = pa.record_batch([pa.array([None], field.type) for field in before], schema=pa.schema(before))
    with pa.ipc.new_stream(str(tmp_path / "old.arrow"), row.schema) as writer:
        writer.write_batch(row)
    (chunk,) = segments.read_segment(tmp_path / "old.arrow")
    assert chunk.rows.schema == schema.ARROW


def _rewrite(path: Path, metadata: dict[bytes, bytes]) -> None:
    rows = [chunk.rows for chunk in segments.read_segment(path)]
    path.unlink()
    with pa.ipc.new_stream(str(path), schema.ARROW) as writer:
        for batch in rows:
            writer.write_batch(batch, custom_metadata=metadata)
