from __future__ import annotations

import pytest
from proton import Message, symbol

from shinar.brokers.artemis.broker import OPTIONS
from shinar.brokers.artemis.messages import decode, delayed_copy, encode
from shinar.brokers.artemis.transport import ArtemisAddress, our_error
from shinar.brokers.contract import Outgoing
from shinar.errors import AccessDenied, BrokerError, BrokerFull, BrokerUnavailable, QueueMissing, Unsupported

BODY = (
    b'{"job":"urn:x","trace_id":"t","data":{"a":"\xc3\xa9"},"meta":{"id":"m","queue":"q","lang":"php",'
    b'"schema_version":1,"created_at":1749132727123},"attempts":2}'
)


@pytest.mark.parametrize("body", [BODY, b"", b" ", b"\xff\xfe", b'{"a":"\\ud800"}', b"a\x00b", b"null"])
def test_bytes_survive(body):
    assert decode(encode(Outgoing(body), 0), "q", None, 0).body == body


@pytest.mark.parametrize("created_ms", [1, 999, 1749132727123, 1749132727001, 1700000000009, 4102444800999])
def test_every_millisecond_survives_protons_seconds(created_ms):
    body = BODY.replace(b"1749132727123", str(created_ms).encode())
    assert decode(encode(Outgoing(body), 0), "q", None, 0).properties["creation_time"] == created_ms


def test_a_poison_body_can_be_written_whatever_its_members_are():
    packed = encode(Outgoing(b'{"job":7,"trace_id":{},"meta":[1],"attempts":"x"}'), 0)
    assert dict(decode(packed, "q", None, 0).properties) == {"bq_app_id": "babelqueue"}


def test_a_delay_is_a_long_and_a_delayed_copy_keeps_the_rest():
    message = Message()
    message.decode(encode(Outgoing(BODY, headers={"x": "y"}, delay_s=1.5), 1_000))
    assert message.annotations[symbol("x-opt-delivery-time")] == 2_500
    assert type(message.annotations[symbol("x-opt-delivery-time")]) is int
    message.delivery_count = 3
    before = decode(message.encode(), "q", None, 0)
    after = decode(delayed_copy(message.encode(), 9_000), "q", None, 0)
    assert (before.native_count, after.native_count) == (3, 0)
    assert (after.body, after.headers, after.properties) == (before.body, before.headers, before.properties)


def test_what_is_no_message_is_kept_as_bytes():
    assert decode(b"\x00garbage", "q", None, 0).body == b"\x00garbage"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amqp:unauthorized-access", AccessDenied),
        ("amqp:not-found", QueueMissing),
        ("amqp:resource-limit-exceeded", BrokerFull),
        ("amqp:connection:forced", BrokerUnavailable),
        ("amqp:precondition-failed", BrokerError),
    ],
)
def test_conditions_become_our_errors(name, kind):
    error = our_error(name, "text", "q")
    assert type(error) is kind
    assert "text" in str(error)


def test_an_address_does_not_show_its_password():
    assert "pass-word" not in repr(ArtemisAddress(host="h", port=1, user="u", password="pass-word"))


def test_every_option_is_documented(pytestconfig):
    page = (pytestconfig.rootpath / "docs/brokers/artemis.md").read_text()
    assert {name for name in OPTIONS if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("created_ms", [-5, 2**53 + 2, 2**63 - 1])
def test_a_creation_time_no_clock_shows_is_left_out(created_ms):
    body = BODY.replace(b"1749132727123", str(created_ms).encode())
    got = decode(encode(Outgoing(body), 0), "q", None, 0)
    assert got.body == body
    assert "creation_time" not in got.properties


@pytest.mark.parametrize("delay_s", [1e12, 1e16, float("inf"), float("nan")])
def test_a_delay_past_every_clock_is_refused(delay_s):
    with pytest.raises(Unsupported, match="hundred years"):
        encode(Outgoing(BODY, delay_s=delay_s), 0)


def test_a_binary_id_is_a_position():
    message = Message(body="x", id=b"\x01a")
    assert decode(message.encode(), "q", None, 0).position == "\x01a"
