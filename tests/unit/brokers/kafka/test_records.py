from __future__ import annotations

import pytest

from shinar.brokers.contract import Facts, Outgoing
from shinar.brokers.kafka.broker import OPTIONS, traits
from shinar.brokers.kafka.client import settings, weight
from shinar.brokers.kafka.projection import PROJECTION
from shinar.brokers.kafka.records import delivery_of, headers_of, may_outgrow, new_record, parked, unparked
from shinar.brokers.projection import facts_of, project
from shinar.brokers.registry import connect, parse
from shinar.errors import ConfigError

BODY = (
    b'{"job":"urn:x","trace_id":"t","data":{},"meta":{"id":"m","queue":"q","lang":"php",'
    b'"schema_version":1,"created_at":1749132727123},"attempts":2}'
)


class Record:
    """The four accessors of the client's message, which cannot be made by hand."""

    def __init__(self, value, key=None, headers=None) -> None:
        self._value, self._key, self._headers = value, key, headers

    def value(self):
        return self._value

    def key(self):
        return self._key

    def headers(self):
        return self._headers

    def partition(self):
        return 3

    def offset(self):
        return 9


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(BODY, headers={"traceparent": "x", "bq-job": "forged", "": "v", "empty": ""}),
        Outgoing(b"\xff"),
        Outgoing(b'{"job":"","attempts":"3","meta":[]}'),
        Outgoing(b"x", facts=Facts(attempts=4)),
    ],
)
def test_the_fast_way_gives_what_the_table_says(message):
    facts = message.facts or facts_of(message.body)
    expected = {name: str(value).encode() for name, value in project(PROJECTION, message).headers.items()}
    assert dict(headers_of(facts, message.headers)) == expected


@pytest.mark.parametrize(
    ("created", "stamp"),
    [(b"1749132727123", 1749132727123), (b"0", 0), (b"-5", 0), (b"99999999999999999", 0), (b'"x"', 0)],
)
def test_a_record_is_stamped_with_a_sane_created_at_only(created, stamp):
    body = BODY.replace(b"1749132727123", created)
    assert new_record("t", Outgoing(body), 1_800_000_000_000)[4] == stamp


def test_parking_headers_come_and_go():
    headers = [("bq-attempts", b"0"), ("x", b"\xff"), ("x", b"2"), ("bq-delay", b"1")]
    on_tier = parked(headers, {"bq-attempts": "1", "bq-delay": "500", "bq-original-topic": "t"})
    assert on_tier == [
        ("x", b"\xff"),
        ("x", b"2"),
        ("bq-attempts", b"1"),
        ("bq-delay", b"500"),
        ("bq-original-topic", b"t"),
    ]
    assert unparked(on_tier) == [("x", b"\xff"), ("x", b"2"), ("bq-attempts", b"1")]


def test_a_delivery_tells_the_contracts_headers_from_the_users():
    headers = [("x", b"1"), ("x", b"2"), ("bq-schema-version", None), ("bq-job", b"\xff"), ("null", None)]
    delivery = delivery_of(Record(None, b"", headers), "t", None, 5, "3:9")
    assert delivery.body == b""
    assert delivery.key == b""
    assert dict(delivery.headers) == {"x": "1"}
    assert dict(delivery.properties) == {"bq-schema-version": None, "bq-job": "�"}
    assert delivery.position == "3:9"


@pytest.mark.parametrize(
    ("headers", "user", "ours"),
    [
        ([], {}, {}),
        ([("bq-job", b"urn:a"), ("bq-attempts", b"2")], {}, {"bq-job": "urn:a", "bq-attempts": "2"}),
        ([("bq-job", b"urn:a"), ("bq-job", b"urn:b")], {}, {"bq-job": "urn:a"}),
        ([("bq-job", b"urn:a"), ("team", b"x")], {"team": "x"}, {"bq-job": "urn:a"}),
    ],
)
def test_the_short_way_through_headers_is_the_long_one(headers, user, ours):
    delivery = delivery_of(Record(None, b"", headers), "t", None, 5, "3:9")
    assert (dict(delivery.headers), dict(delivery.properties)) == (user, ours)


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(BODY),
        Outgoing(BODY.replace(b"urn:x", b"urn:" + b"x" * 5_000)),
        Outgoing(BODY, key=b"k" * 3_000),
        Outgoing(BODY, headers={"n" * 100: "€" * 2_000}),
        Outgoing(BODY, headers={f"x-{n}": "v" for n in range(500)}),
        Outgoing(b"x" * 9_000),
    ],
)
def test_a_record_that_is_not_weighed_fits(message):
    heavy = weight(new_record("t", message, 0))
    assert may_outgrow(message, heavy - 1)
    assert not may_outgrow(Outgoing(BODY), heavy + 2_000)


def test_traits_follow_the_url():
    plain = traits(parse("kafka://h:9092/t"))
    assert (plain.delay, plain.max_delay_s, plain.poison_without_dlq) == (True, 1800.0, "retry")
    assert not plain.ordered
    bare = traits(parse("kafka://h:9092/t?retry_tiers_ms=off&partitions=1"))
    assert (bare.delay, bare.poison_without_dlq, bare.ordered) == (False, "drop", True)


def test_settings_hide_the_password():
    url = parse("kafka://user:pass-word@h1:9092,h2:9093/t?tls=1&mechanism=scram-sha-512")
    found = settings(url)
    assert found.common["bootstrap.servers"] == "h1:9092,h2:9093"
    assert found.common["security.protocol"] == "SASL_SSL"
    assert found.common["sasl.mechanism"] == "SCRAM-SHA-512"
    assert found.common["sasl.password"] == "pass-word"
    assert "pass-word" not in repr(found)


@pytest.mark.parametrize(
    "bad", ["retry_tiers_ms=5,5", "retry_tiers_ms=x", "protocol=old", "partitions=0", "tls=maybe"]
)
def test_wrong_options_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=bad.partition("=")[0]):
        connect(f"kafka://127.0.0.1:9/t?{bad}")


def test_every_option_is_documented(pytestconfig):
    page = (pytestconfig.rootpath / "docs/brokers/kafka.md").read_text()
    assert {name for name in OPTIONS if f"`{name}`" not in page} == set()
