"""The wire, byte for byte: the vectors are what php-mq's own libraries write (both releases)."""

from __future__ import annotations

import pytest

from shinar.phpmq.protocol import (
    Acknowledge,
    Consume,
    DeadLetter,
    Decoder,
    Dispatch,
    Extended,
    Limits,
    Requeue,
    Send,
    Type,
    encode,
)

ID = "d7e7f68761d34838494b233148b5486c"
Q = b"P0100000000000000000000000000003Foo"
C = b"P0200000000000000000000000000011Hello World"
I = b"P0300000000000000000000000000032" + ID.encode()  # noqa: E741  # the frame is called I

#: name -> (bytes on the wire, their length as measured, the value)
VECTORS = {
    "legacy send": (b"H0100102" + Q + C, 86, Send("Foo", b"Hello World")),
    "ttl send, none given": (
        b"H0100103" + Q + C + b"P05000000000000000000000000000010",
        119,
        Send("Foo", b"Hello World", 0),
    ),
    "ttl send": (
        b"H0100103" + Q + C + b"P05000000000000000000000000000043600",
        122,
        Send("Foo", b"Hello World", 3600),
    ),
    "consume": (b"H0100202" + Q + b"P04000000000000000000000000000015", 76, Consume("Foo", 5)),
    "legacy dispatch": (b"H0100303" + Q + C + I, 150, Dispatch("Foo", b"Hello World", ID)),
    "ttl dispatch": (
        b"H0100304" + Q + C + I + b"P05000000000000000000000000000043300",
        186,
        Dispatch("Foo", b"Hello World", ID, 3300),
    ),
    "acknowledge": (b"H0100402" + Q + I, 107, Acknowledge("Foo", ID)),
    "re-queue": (
        b"H0100503" + Q + I + b"P05000000000000000000000000000043600",
        143,
        Requeue("Foo", ID, 3600),
    ),
    "dead letter": (b"H0100602" + Q + I, 107, DeadLetter("Foo", ID)),
}


@pytest.mark.parametrize("name", VECTORS)
def test_php_mq_bytes_both_ways(name: str) -> None:
    wire, length, value = VECTORS[name]
    assert len(wire) == length
    assert encode(value) == wire
    decoder = Decoder(Limits())
    assert decoder.feed(wire) == [value]
    assert decoder.violation is None
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize("name", VECTORS)
def test_byte_by_byte(name: str) -> None:
    wire, _, value = VECTORS[name]
    decoder = Decoder(Limits())
    found = [message for byte in wire * 3 for message in decoder.feed(bytes([byte]))]
    assert found == [value] * 3


def test_packets_may_come_in_any_order_and_a_missing_ttl_is_none() -> None:
    decoder = Decoder(Limits())
    ttl = b"P05000000000000000000000000000019"
    assert decoder.feed(b"H0100103" + ttl + C + Q) == [Send("Foo", b"Hello World", 9)]
    assert decoder.feed(b"H0100102" + C + Q) == [Send("Foo", b"Hello World", None)]
    assert decoder.feed(b"H0100402" + I + Q) == [Acknowledge("Foo", ID)]


def test_a_negative_ttl_is_never() -> None:
    frame = b"H0100103" + Q + C + b"P0500000000000000000000000000002-1"
    assert Decoder(Limits()).feed(frame) == [Send("Foo", b"Hello World", 0)]


def test_the_remembered_prefix_does_not_leak_between_shapes() -> None:
    """Equal beginnings, different rests: the short path must notice every difference."""
    decoder = Decoder(Limits())
    frames = [
        *(Send("Foo", b"a"), Send("Foo", b"", 0), Send("Foo", b"x" * 300, 0), Send("Foo", b"b", 77)),
        *(Send("Foob", b"c"), Acknowledge("Foo", ID), Acknowledge("Foo", "0" * 32), Requeue("Foo", ID, 5)),
        *(Acknowledge("Fo", ID), Send("Foo", b"d")),
    ]
    wire = b"".join(map(encode, frames))
    assert decoder.feed(wire + wire) == frames + frames


#: garbage -> what the refusal must name
VIOLATIONS = {
    b"GET / HTTP/1.1\r\n": "H01",
    b"H02": "H01",
    b"\x16\x03\x01\x02\x00": "H01",
    b"H01abc02": "digits",
    b"H0199902": "unknown",
    b"H0100199": "99 packets",
    b"H0100100": "0 packets",
    b"H0100101": "1 packets",
    b"H0100102X": "begins with P",
    b"H0100102P01-0000000000000000000000000003": "31 digits",
    b"H0100102P01 0000000000000000000000000003": "31 digits",
    b"H0100102P01_000": "31 digits",
    b"H0100102P09" + b"0" * 29: "does not belong",
    b"H0100102P03" + b"0" * 29: "does not belong",
    b"H0100102" + Q + Q: "twice",
    b"H0100102P02" + b"9" * 29: "limit",
    b"H0100102P01" + b"%029d" % 256: "limit",
    b"H0100102P01" + b"0" * 29 + C: "empty",
    b"H0100102P01" + b"%029d" % 1 + b"\0" + C: "control",
    b"H0100102P01" + b"%029d" % 1 + b"\xff" + C: "UTF-8",
    b"H0100102P01" + b"%029d" % 3 + b"a\nb" + C: "control",
    b"H0100202" + Q + b"P04" + b"%029d" % 3 + b"abc": "count",
    b"H0100202" + Q + b"P04" + b"%029d" % 2 + b"-5": "count",
    b"H0100202" + Q + b"P04" + b"%029d" % 11: "limit",
    b"H0100103" + Q + C + b"P05" + b"%029d" % 1 + b"x": "TTL",
    b"H0100402" + Q + b"P03" + b"%029d" % 33: "limit",
    b"H0100402" + Q + b"P03" + b"%029d" % 2 + b"a;": "letters and digits",
    b"H0110002": "2 packets",
    b"H0110001P10" + b"9" * 29: "limit",
    b"H0110001P01": "does not belong",
}


@pytest.mark.parametrize("garbage", VIOLATIONS, ids=lambda raw: repr(raw[:24]))
def test_garbage_is_named_and_what_came_before_it_is_kept(garbage: bytes) -> None:
    good = encode(Send("Foo", b"1"))
    decoder = Decoder(Limits())
    # Enough zeroes behind it to complete any header that is only refused when it is whole.
    assert decoder.feed(good + garbage + b"0" * 40) == [Send("Foo", b"1")]
    assert decoder.violation is not None
    assert VIOLATIONS[garbage] in str(decoder.violation)
    assert decoder.feed(good) == [], "nothing is read after a violation"


def test_a_refused_length_is_refused_before_its_content_is_collected() -> None:
    decoder = Decoder(Limits(max_body_bytes=1000))
    decoder.feed(b"H0100102" + Q + b"P02" + b"%029d" % 1001)
    assert decoder.violation is not None
    assert decoder.pending_bytes == 0


def test_limits_are_inclusive() -> None:
    decoder = Decoder(Limits(max_body_bytes=5, max_queue_bytes=3))
    assert decoder.feed(encode(Send("Foo", b"12345")) * 2) == [Send("Foo", b"12345")] * 2
    decoder.feed(encode(Send("Foo", b"123456")))
    assert "limit is 5" in str(decoder.violation)


def test_an_extension_frame_is_one_payload_packet() -> None:
    frame = encode(Extended(Type.HELLO, b"\x91\x01"))
    assert frame == b"H0110001P10" + b"%029d" % 2 + b"\x91\x01"
    assert Decoder(Limits()).feed(frame) == [Extended(Type.HELLO, b"\x91\x01")]


def test_need_more_says_how_much() -> None:
    decoder = Decoder(Limits())
    frame = encode(Send("Foo", b"x" * 1000))
    assert decoder.feed(frame[:100]) == []
    assert (decoder.pending_bytes, decoder.needed_bytes) == (100, len(frame))
