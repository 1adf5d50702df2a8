"""RabbitMQ without a server: delays, frames and what its errors mean."""

from __future__ import annotations

import struct

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import exceptions, frame, spec

from shinar.brokers.rabbitmq import _piece, delay_steps_ms, traits
from shinar.brokers.rabbitmq_errors import translated
from shinar.brokers.rabbitmq_frames import Content, Stream, Tap, properties_of
from shinar.brokers.registry import parse
from shinar.errors import AccessDenied, BodyTooLarge, BrokerFull, BrokerUnavailable, ConfigError, QueueMissing


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
    stream = Stream(seen.append)
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
    from shinar.brokers.contract import Outgoing

    body = b'{"job":"urn:' + b"x" * 300 + b'","trace_id":"t"}'
    sent, properties = _piece(Outgoing(body))
    assert sent == body
    assert properties.type is None
    assert properties.correlation_id == "t"
    assert struct.unpack(">H", b"".join(properties.encode())[:2])[0] & (1 << 5) == 0


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
