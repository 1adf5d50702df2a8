"""What a request asks for is told from its bytes, the same in both ways, and cheaply for hostile ones."""

from __future__ import annotations

import time

import msgspec
import pytest

from shinar.phpmq.protocol import measure
from shinar.phpmq.protocol.extension import Copy, Extra, Item, Move, Publish

ITEMS = [
    Item(b"a"),
    Item(b"b" * 300, Extra({"h": "v" * 50, "ü" * 40: ""}, b"key"), 5, 2**40),
    Item(b"c" * 70_000, Extra({}), 300),
    Item(b"", Extra({f"{n}": "x" for n in range(40)}, None)),
]


@pytest.mark.parametrize("copies", [False, True])
def test_both_measures_agree(copies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    request = (
        Move(9, "queue", [Copy(2**40, 7, item) for item in ITEMS]) if copies else Publish(9, "queue", ITEMS)
    )
    payload = msgspec.msgpack.encode(request)
    assert measure.tag_and_items(payload) == (9, len(ITEMS))
    whole = sum(len(msgspec.msgpack.encode(item.extra)) for item in ITEMS)
    assert measure.extra_bytes(payload, copies=copies) == whole
    monkeypatch.setattr(measure, "MAX_WALK_BYTES", 0)
    assert measure.extra_bytes(payload, copies=copies) == whole


def test_millions_of_headers_are_refused_without_a_look_at_each() -> None:
    extra = Extra({chr(0x4E00 + number): "" for number in range(5_000)})
    payload = msgspec.msgpack.encode(Publish(1, "q", [Item(b"", extra)] * 1_000))
    started_s = time.thread_time()
    assert measure.extra_bytes(payload, copies=False) == len(payload)
    assert time.thread_time() - started_s < 0.1


def test_what_cannot_be_measured_counts_as_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MAX_WALK_BYTES", 0)
    for payload in (b"", b"\x93\x01\xa1q\x91\x92\xc4\x01x\x05", b"\x93\x01\xa1q\xdd\xff\xff\xff\xff"):
        assert measure.extra_bytes(payload, copies=False) == len(payload)
    assert measure.tag_and_items(b"\x93\xc1") is None
