"""An ack that did not take: what the broker hands out again must not become a second row."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from shinar.brokers import Broker, Outgoing, connect
from shinar.envelope import build, encode
from shinar.pipeline.source.options import StreamOptions, stream_options
from shinar.pipeline.source.wal import capture as freeze
from shinar.pipeline.source.wal import redelivery as owed
from shinar.pipeline.source.wal.capture import Share, frozen_rows
from shinar.pipeline.source.wal.planner import START, Planner
from shinar.pipeline.source.wal.segments import Landing

#: Twins in every byte, among others.
EQUAL = b"{"


def options_of(folder: Path, url: str, queue: str) -> StreamOptions:
    (folder / "url").write_text(url)
    given = {"urlFile": str(folder / "url"), "queue": queue, "landing": str(folder / "landing")}
    return stream_options({**given, "minPartitions": "2"})


def read(share: Share, options: StreamOptions) -> list[bytes]:
    return [body for batch in frozen_rows(share, options) for body in batch.column("body").to_pylist()]


def bodies_of(count: int) -> list[bytes]:
    return [
        EQUAL if n % 5 == 0 else encode(build("urn:babel:orders:created", {"n": n})) for n in range(count)
    ]


def dies_before_the_ack(share: Share, options: StreamOptions, monkeypatch) -> list[bytes]:
    """The segment is there, nothing was acknowledged, and the connection is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(freeze, "_acknowledge", lambda *_: None)
        return read(share, options)


def drained(options: StreamOptions, start: dict, finish: dict | None = None) -> list[bytes]:
    """Everything the stream still gives, as a new run of the query would take it."""
    planner, rows = Planner(options), []
    if finish:
        planner.finish(finish)
    planner.fix_target()
    while (end := planner.latest(start, 100, None)) != start:
        for share in planner.parts(start, end):
            rows += read(share, options)
        planner.finish(end)
        start = end
    planner.close()
    return rows


@pytest.mark.live("rabbitmq")
def test_a_connection_dies_with_its_receipts(server, tmp_path, monkeypatch):
    check_redelivery(tmp_path, server.url, f"owed.{uuid.uuid4().hex}", monkeypatch)


def test_a_lease_ends_before_the_commit(tmp_path, monkeypatch):
    # Long enough for one freeze on a slow machine; the wait below is for its end.
    check_redelivery(tmp_path, f"memory://{uuid.uuid4().hex}?lease_s=5", "orders", monkeypatch, lease_s=5.0)


def check_redelivery(folder: Path, url: str, queue: str, monkeypatch, lease_s: float = 0.0) -> None:
    broker: Broker = connect(url)
    bodies = bodies_of(40)
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    options = options_of(folder, url, queue)
    planner = Planner(options)
    end = planner.latest(dict(START), 20, None)
    (share,) = planner.parts(dict(START), end)
    frozen = dies_before_the_ack(share, options, monkeypatch)
    assert len(frozen) == 20
    planner.close()
    time.sleep(lease_s and lease_s + 1.0)
    rest = drained(options, end, finish=end)
    assert Counter(frozen + rest) == Counter(bodies)
    assert owed.Owed(share.place, broker.traits).came() == 20
    # As many equal ones as were owed have come: the next one is news.
    broker.publish(queue, [Outgoing(body=EQUAL)])
    assert drained(options, {**end, "batch": 900}) == [EQUAL]
    later = Planner(options)
    later.latest({**end, "batch": 901}, 1, None)
    assert later.latest_known()["came_again"] == 20
    later.close()
    found = broker.depth(queue)
    assert (found.ready, found.reserved or 0) == (0, 0)
    broker.close()


@pytest.mark.live("rabbitmq")
def test_a_twin_of_the_same_batch_knows_what_its_neighbour_froze(server, tmp_path, monkeypatch):
    queue = f"owed.{uuid.uuid4().hex}"
    broker = connect(server.url)
    bodies = bodies_of(20)
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    options = options_of(tmp_path, server.url, queue)
    planner = Planner(options)
    end = {**START, "stream": "default", "epoch": "e", "batch": 1, "shares": [(queue, 12, None)] * 2}
    Landing(tmp_path / "landing" / "default" / "e").begin()
    first, second = planner.parts(dict(START), end)
    frozen = dies_before_the_ack(first, options, monkeypatch)
    assert len(frozen) == 12
    rest = read(second, options)
    assert Counter(frozen + rest) == Counter(bodies)
    planner.close()
    broker.close()


@pytest.mark.live("rabbitmq")
def test_what_was_acknowledged_after_all_swallows_no_message_equal_to_it(server, tmp_path, monkeypatch):
    """The task died between the ack and its mark. Equal messages come later, and come a second time because
    a consumer that held them died: they are news all the same."""
    queue = f"owed.{uuid.uuid4().hex}"
    broker = connect(server.url)
    bodies = bodies_of(40)
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    options = options_of(tmp_path, server.url, queue)
    planner = Planner(options)
    end = planner.latest(dict(START), 40, None)
    with monkeypatch.context() as patch:
        patch.setattr(freeze.Place, "mark_settled", lambda self: None)
        frozen = [body for share in planner.parts(dict(START), end) for body in read(share, options)]
    assert Counter(frozen) == Counter(bodies)
    later = [EQUAL] * 3 + bodies[1:3] + bodies_of(60)[40:]
    broker.publish(queue, [Outgoing(body=body) for body in later])
    doomed = connect(server.url)
    assert len(doomed.reserve(queue, 100, 5.0)) == len(later)
    doomed.close()
    assert Counter(drained(options, end, finish=end)) == Counter(later)
    planner.close()
    broker.close()


def test_a_reservation_that_ended_meanwhile_starts_the_attempt_again(tmp_path, monkeypatch):
    url = f"sqlite://{tmp_path}/q.db?lease_s=2"
    broker = connect(url)
    bodies = bodies_of(10)
    broker.publish("orders", [Outgoing(body=body) for body in bodies])
    planner = Planner(options_of(tmp_path, url, "orders"))
    options = options_of(tmp_path, url, "orders")
    end = planner.latest(dict(START), 10, None)
    (share,) = planner.parts(dict(START), end)
    honest, other = freeze.chunk_of, []

    def stopped(*args):
        # As if the process had been frozen: the lease ends, and somebody else has the messages.
        monkeypatch.setattr(freeze, "chunk_of", honest)
        time.sleep(2.5)
        other.extend(broker.reserve("orders", 4, 0))
        return honest(*args)

    monkeypatch.setattr(freeze, "chunk_of", stopped)
    mine = read(share, options)
    assert len(other) == 4
    assert Counter([*mine, *(delivery.body for delivery in other)]) == Counter(bodies)
    planner.close()
    broker.close()


def test_debts_are_forgotten_after_a_day(tmp_path):
    folder = tmp_path / "owed"
    folder.mkdir()
    for name in ("1-0.owed", "1-0.came"):
        (folder / name).write_bytes(b"x" * 16)
    place = freeze.Place(str(tmp_path), 1, 0)
    debts = owed.Owed(place, connect(f"memory://{uuid.uuid4().hex}").traits)
    debts.forget_old()
    assert len(list(folder.iterdir())) == 2
    debts.forget_old(time.time() + owed.KEPT_S + 60)
    assert list(folder.iterdir()) == []
