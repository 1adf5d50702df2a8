"""RabbitMQ without a server: delays, frames and what its errors mean."""

from __future__ import annotations

import struct
from decimal import Decimal

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import exceptions, frame, spec

from shinar.brokers.contract import Outgoing
from shinar.brokers.rabbitmq.broker import traits
from shinar.brokers.rabbitmq.errors import translated
from shinar.brokers.rabbitmq.frames import Content, FrameStream, Tap, properties_of
from shinar.brokers.rabbitmq.headers import read_table
from shinar.brokers.rabbitmq.properties import as_it_came, piece
from shinar.brokers.rabbitmq.topology import delay_steps_ms
from shinar.brokers.registry import connect, parse
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    QueueMissing,
    Unsupported,
)


@given(st.floats(min_value=0.0005, max_value=4_000_000))
def test_a_delay_is_rounded_up_by_a_tenth_at_most(delay_s):
    rounded_ms = delay_steps_ms(delay_s)
    assert delay_s * 1000 <= rounded_ms <= max(delay_s * 1000 * 1.1, delay_s * 1000 + 1)


def test_jittered_delays_share_a_bounded_number_of_queues():
    assert len({delay_steps_ms(ms / 1000) for ms in range(1, 100_000)}) <= 400


def test_queue_types():
    assert traits(parse("amqp://localhost/orders?queue_type=quorum")).count_base == 0
    assert traits(parse("amqp://localhost/orders")).count_base is None
    with pytest.raises(ConfigError):
        traits(parse("amqp://localhost/orders?queue_type=stream"))


# -- frames


def delivery(channel: int, tag: int, properties: pika.BasicProperties, body: bytes, part: int) -> bytes:
    method = spec.Basic.Deliver(
        consumer_tag="ctag1.7", delivery_tag=tag, redelivered=False, exchange="", routing_key="orders"
    )
    frames = [frame.Method(channel, method).marshal(), frame.Header(channel, len(body), properties).marshal()]
    frames += [frame.Body(channel, body[i : i + part]).marshal() for i in range(0, len(body), part)]
    return b"".join(frames)


names = st.text(min_size=1, max_size=20)
properties_strategy = st.builds(
    pika.BasicProperties,
    content_type=st.none() | names,
    headers=st.none() | st.dictionaries(names, names | st.integers(-(2**31), 2**63 - 1), max_size=4),
    delivery_mode=st.none() | st.just(2),
    priority=st.none() | st.integers(0, 9),
    correlation_id=st.none() | names,
    expiration=st.none() | st.just("60000"),
    message_id=st.none() | names,
    timestamp=st.none() | st.integers(0, 2**63),
    type=st.none() | names,
    app_id=st.none() | names,
)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), properties_strategy, st.binary(max_size=300)), max_size=6),
    st.integers(1, 97),
    st.integers(1, 50),
)
def test_any_cut_of_the_stream_gives_the_same_deliveries_in_the_same_order(messages, part, cut):
    """Channel 1 is tapped, channel 2 is pika's; a heartbeat stands between all of them."""
    heartbeat = frame.Heartbeat().marshal()
    wire = heartbeat
    for tag, (channel, properties, body) in enumerate(messages, 1):
        wire += delivery(channel, tag, properties, body, part) + heartbeat
    seen: list[object] = []
    stream = FrameStream(seen.append)
    stream.taps[1] = Tap(seen.append)
    for start in range(0, len(wire), cut):
        stream.feed(wire[start : start + cut])
    expected: list[object] = [heartbeat]
    for tag, (channel, properties, body) in enumerate(messages, 1):
        encoded = b"".join(properties.encode())
        whole = delivery(channel, tag, properties, body, part)
        expected += [Content(tag, b"ctag1.7", encoded, body) if channel == 1 else whole, heartbeat]
    assert joined(seen) == joined(expected)


def joined(items: list[object]) -> list[object]:
    """Passed bytes may come in any number of pieces."""
    result: list[object] = []
    for item in items:
        if type(item) is bytes and result and type(result[-1]) is bytes:
            result[-1] += item
        else:
            result.append(item)
    return result


@given(properties_strategy)
def test_properties_are_read_as_pika_reads_them(properties):
    native, table = properties_of(b"".join(properties.encode()))
    assert table == (properties.headers or {})
    for name, value in native.items():
        assert getattr(properties, name) == value
    present = [n for n in ("type", "message_id", "correlation_id", "app_id") if getattr(properties, n)]
    assert set(present) <= set(native)


def test_a_property_that_does_not_fit_is_left_out_and_the_message_goes():
    body = b'{"job":"urn:' + b"x" * 300 + b'","trace_id":"t"}'
    sent, properties = piece(Outgoing(body), "orders")
    assert sent == body
    assert properties.type is None
    assert properties.correlation_id == "t"
    assert struct.unpack(">H", b"".join(properties.encode())[:2])[0] & (1 << 5) == 0


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


def long(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (b"d", struct.pack(">d", 0.5), 0.5),
        (b"f", struct.pack(">f", -1.25), -1.25),
        (b"T", struct.pack(">Q", 1_760_000_000_000), 1_760_000_000_000),
        (b"l", struct.pack(">q", -7), -7),
        (b"B", b"\xff", 255),
        (b"t", b"\x01", True),
        (b"V", b"", None),
        (b"S", long(b"\xffa"), "\ufffda"),
        (b"x", long(b"\xff"), b"\xff"),
        (b"A", long(b"V" + b"b\xff"), [None, -1]),
        (b"F", long(entry(b"a", b"V", b"")), {"a": None}),
        (b"D", struct.pack(">Bi", 2, 314), Decimal("3.14")),
    ],
)
def test_header_values_are_read_without_loss(kind, value, read):
    found = read_table(entry(b"\xfe", kind, value) + entry(b"next", b"b", b"\x07"))
    assert found == {"\ufffd": read, "next": 7}


def test_deep_and_damaged_tables_never_raise():
    deep = b"V"
    for _ in range(5000):
        deep = b"A" + long(deep)
    found = read_table(entry(b"deep", deep[:1], deep[1:]) + entry(b"next", b"b", b"\x07"))
    assert found["next"] == 7
    whole = entry(b"name", b"S", long(b"value"))
    assert [read_table(whole[:cut]) for cut in range(len(whole))] == [{}] * len(whole)
    assert read_table(entry(b"a", b"?", b"")) == {}


@given(st.binary(max_size=60))
def test_any_bytes_are_properties(encoded):
    properties_of(encoded)
    properties_of(b"\xff\xff" + encoded)
    as_it_came(b"\xff\xff" + encoded)


def test_a_copy_has_everything_but_what_is_between_sender_and_broker():
    table = entry(b"rate", b"d", struct.pack(">d", 0.5)) + entry(b"\xff", b"T", struct.pack(">Q", 2**60))
    extra = entry(b"CC", b"A", long(b"S" + long(b"other"))) + entry(b"x-death", b"V", b"")
    sent = pika.BasicProperties(headers={}, priority=3, user_id="guest", app_id="them", timestamp=5)
    wire = b"".join(sent.encode()).replace(long(b""), long(table + extra), 1)
    copy = b"".join(as_it_came(wire).encode())
    wanted = pika.BasicProperties(headers={}, priority=3, app_id="them", timestamp=5)
    assert copy == b"".join(wanted.encode()).replace(long(b""), long(table), 1)


def test_headers_that_no_frame_holds_are_refused_before_they_end_the_connection():
    with pytest.raises(Unsupported, match="bytes of headers"):
        piece(Outgoing(b"{}", headers={"x": "y" * 200_000}), "orders")
    piece(Outgoing(b"{}", headers={"x": "y" * 100_000}), "orders")


@pytest.mark.parametrize("option", ["heartbeat_s=99999", "delay_type=stream", "queue_type=stream"])
def test_wrong_options_are_refused(option):
    with pytest.raises(ConfigError):
        connect(f"amqp://127.0.0.1:1/orders?{option}")


# -- errors


@pytest.mark.parametrize(
    ("raised", "meant"),
    [
        (exceptions.ProbableAuthenticationError(403, "x"), AccessDenied),
        (exceptions.ProbableAccessDeniedError(530, "x"), AccessDenied),
        (exceptions.ConnectionBlockedTimeout("x"), BrokerFull),
        (exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no queue 'x'"), QueueMissing),
        (exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED"), AccessDenied),
        (
            exceptions.ChannelClosedByBroker(
                406, "PRECONDITION_FAILED - message size 200 is larger than configured max size 100"
            ),
            BodyTooLarge,
        ),
        (exceptions.StreamLostError("x"), BrokerUnavailable),
        (exceptions.AMQPHeartbeatTimeout("x"), BrokerUnavailable),
        (ConnectionRefusedError(111, "refused"), BrokerUnavailable),
        (exceptions.ConsumerCancelled(), BrokerUnavailable),
    ],
)
def test_pikas_errors_find_their_place(raised, meant):
    with pytest.raises(meant), translated("orders"):
        raise raised
