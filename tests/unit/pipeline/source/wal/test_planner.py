"""The write-ahead log without Spark: every step may fail, nothing may be lost or doubled."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.brokers import Broker, Depth, Outgoing, connect
from shinar.brokers.memory import MemoryBroker
from shinar.envelope import build, encode
from shinar.errors import BrokerUnavailable, ConfigError, StoreError
from shinar.pipeline.source.options import StreamOptions, stream_options
from shinar.pipeline.source.wal import capture, segments
from shinar.pipeline.source.wal import planner as planning
from shinar.pipeline.source.wal.capture import CapturePartition, read_partition
from shinar.pipeline.source.wal.planner import START, WalPlanner, plan_partitions
from shinar.pipeline.source.wal.segments import Attempt, Fenced, Landing


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code may catch it."""


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/orders"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    opened = connect(url)
    yield opened
    opened.close()


def options_of(url: str, folder: Path, **more: object) -> StreamOptions:
    return stream_options(
        {"url": url, "landing": str(folder), "minPartitions": "2", **{k: str(v) for k, v in more.items()}}
    )


def put(broker: Broker, count: int) -> list[bytes]:
    bodies = [encode(build("urn:babel:orders:created", {"n": n})) for n in range(count)]
    broker.publish("orders", [Outgoing(body=body) for body in bodies])
    return bodies


def read(partition: CapturePartition, options: StreamOptions) -> list[bytes]:
    return [body for batch in read_partition(partition, options) for body in batch.column("body").to_pylist()]


def one_partition(tmp_path: Path, rows: int = 100) -> CapturePartition:
    landing = Landing(tmp_path / "default" / "e")
    landing.open(1)
    return CapturePartition(landing.segment(1, 0), "orders", rows, None)


def depth(broker: Broker) -> tuple[int | None, int | None]:
    found = broker.depth("orders")
    return found.ready, found.reserved


def test_a_frozen_partition_is_the_same_again_and_the_queue_is_done_with_it(url, broker, tmp_path):
    bodies = put(broker, 50)
    options, partition = options_of(url, tmp_path), one_partition(tmp_path)
    assert read(partition, options) == bodies
    assert depth(broker) == (0, 0)
    put(broker, 5)
    assert read(partition, options) == bodies, "whatever the queue holds now"
    assert depth(broker) == (5, 0)
    assert partition.segment.settled.exists()


def test_rows_say_where_they_come_from(url, broker, tmp_path):
    body = encode(build("urn:babel:orders:created", {}))
    broker.publish("orders", [Outgoing(body=body, headers={"traceparent": "00-a"}, key=b"k")])
    (first,) = broker.reserve("orders", 1, 0)
    broker.release([first])
    (batch,) = read_partition(one_partition(tmp_path), options_of(url, tmp_path))
    (row,) = batch.to_pylist()
    assert (row["queue"], row["broker"], row["headers"], row["key"]) == (
        "orders",
        "memory",
        [("traceparent", "00-a")],
        b"k",
    )
    assert row["attempts"] == 1, "the broker counted one earlier delivery"
    assert row["verdict"] == "accepted"
    assert row["received_at"] is not None


def test_headers_can_be_left_out(url, broker, tmp_path):
    broker.publish("orders", [Outgoing(body=b"{}", headers={"a": "b"})])
    (batch,) = read_partition(one_partition(tmp_path), options_of(url, tmp_path, includeHeaders="false"))
    assert batch.column("headers").to_pylist() == [None]


def test_a_crash_before_the_publish_leaves_all_to_the_broker(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 20)
    options, partition = options_of(url, tmp_path), one_partition(tmp_path)

    def dies(self: Attempt) -> bool:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "publish", dies)
        with pytest.raises(OSError, match="disk full"):
            read(partition, options)
    assert depth(broker) == (20, 0)
    assert sorted(read(partition, options)) == sorted(bodies)
    assert list((tmp_path / "default" / "e" / "attempts").iterdir()) == []


def test_a_crash_between_publish_and_ack_is_made_good_by_the_next_reader(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 20)
    options, partition = options_of(url, tmp_path), one_partition(tmp_path)

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(capture, "_acknowledge", dies)
        with pytest.raises(Killed):
            read(partition, options)
    assert depth(broker) == (0, 20)
    assert read(partition, options) == bodies
    assert depth(broker) == (0, 0)


def test_a_killed_attempt_is_handed_back_by_the_commit_and_the_winner_is_not(
    url, broker, tmp_path, monkeypatch
):
    put(broker, 30)
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    end = planner.latest_offset(dict(START), 10, None)
    (partition,) = planner.partitions(dict(START), end)

    # A first attempt dies without a word: nothing of its `finally` runs.
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "publish", lambda self: (_ for _ in ()).throw(Killed))
        patch.setattr(capture, "_release", lambda *_: None)
        patch.setattr(Attempt, "discard", lambda self: None)
        with pytest.raises(Killed):
            read(partition, options)
    # The second wins, and dies before it could acknowledge or tidy up.
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_acknowledge", lambda *_: None)
        patch.setattr(Attempt, "discard", lambda self: None)
        captured = read(partition, options)
    assert depth(broker) == (10, 20)

    planner.commit(end)
    assert depth(broker) == (20, 0), "ten acknowledged, the dead attempt's ten handed back"
    left = {delivery.body for delivery in broker.reserve("orders", 100, 0)}
    assert not left & set(captured)


def test_the_loser_of_a_race_hands_back_and_emits_the_winner(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 40)
    options, partition = options_of(url, tmp_path), one_partition(tmp_path, rows=20)
    honest = Attempt.publish
    twin: list[list[bytes]] = []

    def late(self: Attempt) -> bool:
        monkeypatch.setattr(Attempt, "publish", honest)
        twin.append(read(partition, options))  # a speculative copy of the task overtakes us
        return honest(self)

    monkeypatch.setattr(Attempt, "publish", late)
    mine = read(partition, options)
    assert mine == twin[0]
    assert len(mine) == 20
    assert depth(broker) == (20, 0)
    left = [delivery.body for delivery in broker.reserve("orders", 100, 0)]
    assert sorted(mine + left) == sorted(bodies)


def test_a_zombie_after_the_commit_meets_the_fence(url, broker, tmp_path, monkeypatch):
    put(broker, 10)
    options, partition = options_of(url, tmp_path), one_partition(tmp_path)
    landing = Landing(tmp_path / "default" / "e")
    honest = Attempt.publish

    def late(self: Attempt) -> bool:
        landing.close(1, keep=False)
        return honest(self)

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "publish", late)
        with pytest.raises(Fenced):
            read(partition, options)
    assert depth(broker) == (10, 0)
    with pytest.raises(Fenced, match="batch 1 is committed"):
        read(partition, options)
    assert depth(broker) == (10, 0), "it did not even reserve"


def test_leases_are_kept_alive_while_a_partition_is_frozen(broker, tmp_path, monkeypatch):
    lease = f"memory://{uuid.uuid4().hex}/orders?lease_s=0.6"
    short = connect(lease)
    bodies = put(short, 60)
    monkeypatch.setattr(capture, "FIRST_ROWS", 10)
    monkeypatch.setattr(capture, "MOST_ROWS", 10)
    honest = capture.chunk_of

    def slow(*args):
        time.sleep(0.2)
        return honest(*args)

    monkeypatch.setattr(capture, "chunk_of", slow)
    assert read(one_partition(tmp_path), options_of(lease, tmp_path)) == bodies
    time.sleep(0.7)
    assert depth(short) == (0, 0)
    assert short.reserve("orders", 10, 0) == []


def test_a_broker_that_is_away_for_a_moment_fails_no_task(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 10)
    calls = []
    honest = capture._Reserving.chunk

    def flaky(self):
        calls.append(1)
        if len(calls) < 3:
            raise BrokerUnavailable("gone fishing", broker="memory")
        return honest(self)

    monkeypatch.setattr(capture._Reserving, "chunk", flaky)
    assert read(one_partition(tmp_path), options_of(url, tmp_path)) == bodies


def test_one_thread_has_the_broker_and_the_task_waits_for_its_ack(url, broker, tmp_path, monkeypatch):
    put(broker, 9_000)
    threads = set()

    def noted(name):
        honest = getattr(MemoryBroker, name)

        def call(self, *given):
            threads.add(threading.current_thread().name)
            if name == "ack":
                time.sleep(0.3)
            return honest(self, *given)

        monkeypatch.setattr(MemoryBroker, name, call)

    for name in ("reserve", "ack", "extend", "close"):
        noted(name)
    rows = read_partition(one_partition(tmp_path, 9_000), options_of(url, tmp_path))
    assert next(rows).num_rows > 0
    assert depth(broker)[1] > 0, "Spark has rows while the ack is under way"
    assert sum(batch.num_rows for batch in rows) > 0
    assert depth(broker) == (0, 0), "and the task has ended only after it"
    assert len(threads) == 1
    assert threads != {threading.current_thread().name}


def test_an_ack_that_fails_in_an_unknown_way_fails_the_task(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 10)

    def broken(*_):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(capture, "_acknowledge", broken)
    partition = one_partition(tmp_path)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        read(partition, options_of(url, tmp_path))
    monkeypatch.undo()
    assert read(partition, options_of(url, tmp_path)) == bodies, "its next try finds the segment"
    assert depth(broker) == (0, 0)


def test_bytes_bound_a_partition(url, broker, tmp_path, monkeypatch):
    monkeypatch.setattr(capture, "FIRST_ROWS", 1)
    bodies = put(broker, 20)
    landing = Landing(tmp_path / "default" / "e")
    landing.open(1)
    partition = CapturePartition(landing.segment(1, 0), "orders", 20, len(bodies[0]) * 3)
    monkeypatch.setattr(capture, "CHUNK_BYTES", len(bodies[0]))
    assert 3 <= len(read(partition, options_of(url, tmp_path))) <= 5
    assert depth(broker)[1] == 0


def test_ack_never_leaves_the_messages_to_their_leases(url, broker, tmp_path):
    put(broker, 10)
    options = options_of(url, tmp_path, ackMode="never")
    assert len(read(one_partition(tmp_path), options)) == 10
    assert depth(broker) == (0, 10)


# -- the driver's half


def run(planner: WalPlanner, options: StreamOptions, start: dict, rows: int = 10) -> tuple[dict, list[bytes]]:
    """One micro-batch, as Spark does it."""
    end = json.loads(json.dumps(planner.latest_offset(start, rows, None)))
    if end == start:
        return start, []
    return end, [body for partition in planner.partitions(start, end) for body in read(partition, options)]


def test_batches_add_up_and_their_folders_go(url, broker, tmp_path):
    bodies = put(broker, 25)
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    offset, seen = dict(START), []
    while True:
        after, rows = run(planner, options, offset)
        if after == offset:
            break
        if offset["batch"]:
            planner.commit(offset)
        offset, seen = after, seen + rows
    assert seen == bodies
    assert offset["batch"] == 3
    root = tmp_path / "default" / offset["epoch"]
    assert Landing(root).open_batches() == [3], "the last batch has had no commit"
    # The next start knows it is in the sink.
    assert run(WalPlanner(options), options, offset) == (offset, [])
    assert Landing(root).open_batches() == []


def test_a_restart_replays_the_logged_batch_whatever_the_queue_holds(url, broker, tmp_path, monkeypatch):
    bodies = put(broker, 5)
    options = options_of(url, tmp_path)
    end = WalPlanner(options).latest_offset(dict(START), 10, None)
    # Killed before any task ran; the offset is in the log.
    put(broker, 5)
    planner = WalPlanner(options)
    rows = [body for partition in planner.partitions(dict(START), end) for body in read(partition, options)]
    assert rows == bodies, "the plan is in the offset: five rows, not ten"
    again = [
        body
        for partition in WalPlanner(options).partitions(dict(START), end)
        for body in read(partition, options)
    ]
    assert again == rows


def test_a_deleted_checkpoint_does_not_meet_old_segments(url, broker, tmp_path, caplog):
    put(broker, 5)
    options = options_of(url, tmp_path)
    first, _ = run(WalPlanner(options), options, dict(START))
    later = put(broker, 3)
    with caplog.at_level(logging.WARNING):
        second, rows = run(WalPlanner(options), options, dict(START))
    assert rows == later
    assert second["epoch"] != first["epoch"]
    assert "1 segments of an earlier checkpoint" in caplog.text
    assert list((tmp_path / "default" / first["epoch"]).glob("batch-*/part-*.arrow")), "they are kept"


def test_a_committed_batch_that_is_asked_for_again_is_an_error_or_left_out(url, broker, tmp_path):
    put(broker, 5)
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    end, _ = run(planner, options, dict(START))
    planner.commit(end)
    with pytest.raises(StoreError, match="failOnDataLoss"):
        WalPlanner(options).partitions(dict(START), end)
    assert WalPlanner(options_of(url, tmp_path, failOnDataLoss="false")).partitions(dict(START), end) == []


def test_an_empty_batch_at_the_beginning_and_idle_polls_keep_one_epoch(url, broker, tmp_path):
    """Spark starts on an empty queue with a batch from nothing to nothing."""
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    assert planner.latest_offset(dict(START), 10, None) == START
    assert planner.partitions(dict(START), dict(START)) == []
    planner.commit(dict(START))
    assert planner.latest_offset(dict(START), 10, None) == START
    bodies = put(broker, 5)
    planner._watch.forget()
    end, rows = run(planner, options, dict(START))
    assert rows == bodies
    again = [
        body
        for partition in WalPlanner(options).partitions(dict(START), end)
        for body in read(partition, options)
    ]
    assert again == rows, "the segments lie where the offset says"


def test_a_landing_that_is_gone_is_an_error_or_is_said(url, broker, tmp_path, caplog):
    """What was frozen there is acknowledged and in no sink."""
    put(broker, 5)
    options = options_of(url, tmp_path / "landing")
    end, _ = run(WalPlanner(options), options, dict(START))
    shutil.rmtree(tmp_path / "landing")
    with pytest.raises(StoreError, match="deleted or moved"):
        WalPlanner(options).partitions(dict(START), end)
    careless = options_of(url, tmp_path / "landing", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert len(WalPlanner(careless).partitions(dict(START), end)) == 1
    assert "going on without them" in caplog.text


def test_a_broker_that_cannot_count_is_tried_once_and_then_now_and_then(url, broker, tmp_path, monkeypatch):
    monkeypatch.setattr(planning.DepthWatch, "_ask", lambda self: {"orders": Depth()})
    bodies = put(broker, 3)
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    planner.prepare_available_now()
    offset, seen = dict(START), []
    for _ in range(6):
        after, rows = run(planner, options, offset)
        if after == offset:
            break
        offset, seen = after, seen + rows
    assert seen == bodies
    assert after == offset, "AvailableNow ends"


def test_available_now_waits_for_each_queue(tmp_path):
    """One queue goes on growing after its partition was read; the other's messages are reserved."""
    url = f"memory://{uuid.uuid4().hex}?lease_s=0.5"
    broker = connect(url)
    for queue, count in (("a", 3), ("b", 2)):
        broker.publish(queue, [Outgoing(encode(build("urn:babel:x:y", {"n": n}))) for n in range(count)])
    broker.reserve("b", 2, 0)  # by a consumer that dies
    options = options_of(url, tmp_path, queue="a,b")
    planner = WalPlanner(options)
    planner.prepare_available_now()
    broker.publish("a", [Outgoing(b"{}")] * 10)
    offset, seen = dict(START), []
    for _ in range(6):
        after, rows = run(planner, options, offset, rows=100)
        if after == offset:
            break
        offset, seen = after, seen + rows
    assert len(seen) == 5


def test_kept_segments_can_be_replayed(url, broker, tmp_path):
    bodies = put(broker, 5)
    options = options_of(url, tmp_path, keepSegments="true")
    planner = WalPlanner(options)
    end, _ = run(planner, options, dict(START))
    planner.commit(end)
    put(broker, 2)
    again = [
        body
        for partition in WalPlanner(options).partitions(dict(START), end)
        for body in read(partition, options)
    ]
    assert again == bodies


def test_available_now_waits_for_what_a_dead_consumer_holds_and_takes_no_more(tmp_path):
    url = f"memory://{uuid.uuid4().hex}/orders?lease_s=0.5"
    broker = connect(url)
    bodies = put(broker, 12)
    broker.reserve("orders", 12, 0)  # by a consumer that dies
    options = options_of(url, tmp_path)
    planner = WalPlanner(options)
    planner.prepare_available_now()
    offset, seen = dict(START), []
    for _ in range(10):
        after, rows = run(planner, options, offset, rows=5)
        if after == offset:
            break
        put(broker, 4)  # comes after the start: not this run's
        offset, seen = after, seen + rows
    assert len(seen) == 12
    assert set(seen) >= set(bodies) - set(seen)
    assert depth(broker) == (12, 0)


def test_a_checkpoint_of_another_stream_is_refused(url, broker, tmp_path):
    put(broker, 1)
    end = WalPlanner(options_of(url, tmp_path)).latest_offset(dict(START), 10, None)
    with pytest.raises(ConfigError, match="belongs to stream 'default'"):
        WalPlanner(options_of(url, tmp_path, streamId="other")).latest_offset(end, 10, None)


def test_idle_polling_asks_the_broker_seldom(url, broker, tmp_path, monkeypatch):
    planner = WalPlanner(options_of(url, tmp_path))
    asked = []
    honest = planning.DepthWatch._ask
    monkeypatch.setattr(planning.DepthWatch, "_ask", lambda self: asked.append(1) or honest(self))
    for _ in range(200):
        assert planner.latest_offset(dict(START), 10, None) == START
    assert len(asked) <= 3


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 50_000), min_size=1).filter(
        lambda d: sum(d.values())
    ),
    st.one_of(st.none(), st.integers(1, 60_000)),
    st.integers(1, 16),
)
def test_partitions_add_up_to_what_is_allowed(wanted: dict[str, int], most: int | None, tasks: int):
    partitions = plan_partitions(wanted, most, None, tasks)
    assert all(rows > 0 for _, rows, _ in partitions)
    total = sum(rows for _, rows, _ in partitions)
    allowed = sum(wanted.values()) if most is None else min(most, sum(wanted.values()))
    assert total <= allowed + len(wanted), "at least one row a queue, so that none starves"
    for queue, rows in wanted.items():
        assert sum(r for q, r, _ in partitions if q == queue) <= rows
        assert sum(1 for q, _, _ in partitions if q == queue) <= tasks


def test_a_torn_attempt_is_read_as_far_as_it_was_written(url, broker, tmp_path):
    put(broker, 10)
    partition = one_partition(tmp_path)
    list(read_partition(partition, options_of(url, tmp_path)))
    whole = partition.segment.path.read_bytes()
    torn = tmp_path / "torn.arrow"
    for cut in range(0, len(whole), 97):
        torn.write_bytes(whole[:cut])
        rows = sum(chunk.rows.num_rows for chunk in segments.read_left_attempt(torn))
        assert rows in (0, 10)
