"""Hypothesis against the decoder: any split gives the same messages, no bytes do worse than a refusal."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from shinar.errors import ProtocolViolation
from shinar.phpmq.protocol import (
    Acknowledge,
    Consume,
    DeadLetter,
    Decoder,
    Dispatch,
    Extended,
    Limits,
    Message,
    Requeue,
    Send,
    Type,
    encode,
)
from shinar.phpmq.protocol import extension as ext

queues = st.one_of(
    st.sampled_from(["Foo", "orders", "größe"]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(
        lambda name: name.isprintable() and len(name.encode()) <= 255
    ),
)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)
ttls = st.one_of(st.none(), st.integers(0, 10**11 - 1))
bodies = st.binary(max_size=300)
messages = st.one_of(
    st.builds(Send, queues, bodies, ttls),
    st.builds(Consume, queues, st.integers(0, 10**10 - 1)),
    st.builds(Dispatch, queues, bodies, ids, ttls),
    st.builds(Acknowledge, queues, ids),
    st.builds(Requeue, queues, ids, ttls),
    st.builds(DeadLetter, queues, ids),
    st.builds(Extended, st.sampled_from([number for number in Type if number >= 100]), bodies),
)
cuts = st.lists(st.integers(0, 5000), max_size=30)


def split(wire: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(wire) + 1) for point in points), len(wire)]
    return [wire[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(messages, max_size=20), cuts)
def test_any_split_gives_the_same_messages(sent: list[Message], points: list[int]) -> None:
    decoder = Decoder(Limits())
    got = [message for piece in split(b"".join(map(encode, sent)), points) for message in decoder.feed(piece)]
    assert got == sent
    assert decoder.violation is None
    assert decoder.pending_bytes == 0


@given(st.lists(messages, max_size=3), st.binary(max_size=200), cuts)
@example([], b"H01001", [])
def test_garbage_behind_messages_never_does_worse_than_a_refusal(
    sent: list[Message], garbage: bytes, points: list[int]
) -> None:
    limits = Limits(max_body_bytes=1000, max_payload_bytes=1000)
    decoder = Decoder(limits)
    wire = b"".join(map(encode, sent)) + garbage
    got = [message for piece in split(wire, points) for message in decoder.feed(piece)]
    assert got[: len(sent)] == sent
    assert decoder.pending_bytes <= len(wire)
    whole = Decoder(limits)
    assert whole.feed(wire) == got, "the outcome does not depend on how the bytes were cut"
    assert str(whole.violation) == str(decoder.violation) or (whole.violation is None) == (
        decoder.violation is None
    )


@given(messages, st.data())
def test_one_changed_byte_is_another_message_a_refusal_or_need_more(
    message: Message, data: st.DataObject
) -> None:
    wire = bytearray(encode(message))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder(Limits())
    for found in decoder.feed(bytes(wire)):
        assert Decoder(Limits()).feed(encode(found)) == [found]


values = st.one_of(
    st.builds(ext.Hello, st.integers(0, 2**31), st.text(max_size=20), st.text(max_size=20)),
    st.builds(
        ext.Publish,
        st.integers(0, 2**53),
        st.text(max_size=20),
        st.lists(
            st.builds(
                ext.Item,
                st.binary(max_size=50),
                st.none()
                | st.builds(
                    ext.Extra,
                    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
                    st.none() | st.binary(max_size=8),
                ),
                st.integers(0, 2**43),
                st.integers(0, 2**43),
            ),
            max_size=5,
        ),
    ),
    st.builds(
        ext.Ack,
        st.integers(0, 2**53),
        st.lists(
            st.builds(ext.Held, st.integers(0, 2**62), st.lists(st.integers(0, 2**62), max_size=4)),
            max_size=3,
        ),
    ),
)


@given(values)
def test_payloads_survive_the_wire(value: ext.Hello | ext.Publish | ext.Ack) -> None:
    (frame,) = Decoder(Limits()).feed(ext.pack(value))
    assert isinstance(frame, Extended)
    assert ext.unpack(frame.type, frame.payload) == value


@given(st.sampled_from([number for number in Type if number >= 100]), st.binary(max_size=100))
def test_any_payload_is_a_value_or_a_refusal(number: Type, payload: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        ext.unpack(number, payload)
