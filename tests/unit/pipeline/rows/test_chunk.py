"""Receipts as plain bytes: each broker's own come back as they were, and nothing else comes back."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from shinar.brokers import Outgoing, connect
from shinar.brokers.redis.queue import Reservation
from shinar.brokers.registry import parse, receipt_type, traits
from shinar.errors import StoreError
from shinar.phpmq.server import serve_in_thread
from shinar.pipeline.rows.chunk import Chunk, pack_receipts, unpack_receipts
from shinar.pipeline.rows.delivery_rows import chunk_of, deliveries_of

URLS = {
    "memory://m/q": [7],
    "phpmq://h": [(2**63, 5)],
    "sqlite:///tmp/q.db": [(12, 2**40)],
    "sqs://q": ["AQEB/handle+="],
    "redis://h": [Reservation(b"\xff\x00", b"token", 1_700_000_000), Reservation(b"{", b"t", None)],
    "servicebus://h/q": [("token", "session", (("n", 3), ("f", 0.5), ("u", uuid.UUID(int=9)), ("b", True)))],
}


def chunk(receipts: bytes | None, rows: int = 1) -> Chunk:
    return Chunk(pa.record_batch({"body": pa.array([b"{"] * rows, pa.binary())}), receipts)


@pytest.mark.parametrize("url", URLS)
def test_receipts_come_back_as_they_were(url: str):
    receipts = URLS[url]
    found = unpack_receipts(chunk(pack_receipts(receipts), len(receipts)), receipt_type(parse(url)))
    assert found == receipts
    assert [type(one) for one in found] == [type(one) for one in receipts]
    assert len({*found}) == len(receipts), "brokers keep them in sets"


def test_every_broker_with_portable_receipts_declares_them():
    assert {url for url in URLS if traits(url).portable_receipts} == set(URLS)


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\xc1",
        pickle.dumps([1]),
        msgspec.msgpack.encode({"raw": 1}),
        msgspec.msgpack.encode([{"raw": "text", "handle": []}]),
        msgspec.msgpack.encode([1, 2]),
        b"\x91" * 100_000 + b"\x01",
        b"\xdd\xff\xff\xff\xff",
    ],
)
@pytest.mark.parametrize("url", URLS)
def test_what_no_broker_wrote_is_an_error(url: str, hostile: bytes):
    with pytest.raises(StoreError, match="receipts"):
        unpack_receipts(chunk(hostile), receipt_type(parse(url)))


def test_a_segment_without_receipts_settles_nothing():
    assert unpack_receipts(chunk(None), int) == []


@pytest.mark.parametrize("name", ["sqlite", "phpmq", "redis"])
def test_another_connection_settles_what_it_reads_from_a_chunk(name: str, tmp_path: Path, request):
    if name == "redis":
        check(request.getfixturevalue("live_server")("redis").url)
    elif name == "phpmq":
        with serve_in_thread(tmp_path / "data") as server:
            check(f"{server.url}?hold=lease")
    else:
        check(f"sqlite://{tmp_path}/q.db")


def check(url: str) -> None:
    queue = f"chunk.{uuid.uuid4().hex}"
    broker, other = connect(url), connect(url)
    broker.publish(queue, [Outgoing(body=b"%d" % n) for n in range(6)])
    packed = chunk_of(broker.reserve(queue, 6, 5.0), broker.traits)
    read = deliveries_of(packed, receipt_type(parse(url)))
    assert other.ack(read[:4]) == ()
    assert other.release(read[4:]) == ()
    assert broker.depth(queue).ready == 2
    for opened in (broker, other):
        opened.close()
