from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest

from shinar import Producer
from shinar.brokers import connect
from shinar.envelope import build
from shinar.errors import BodyTooLarge, ConfigError, ContractError, MissingExtra, UnknownScheme, Unsupported

URN = "urn:babel:orders:created"


@dataclass
class Order:
    n: object
    trace_id: object = None
    urn = URN


def looped() -> dict:
    loop: dict = {}
    loop["self"] = loop
    return loop


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/orders"


def test_send_returns_what_was_confirmed(url: str) -> None:
    with Producer(url) as producer:
        message = producer.send(URN, {"n": 1}, trace_id="t-1", meta={"ext": {}}, headers={"a": "b"}, key="k")
    (stored,) = connect(url).browse("orders")
    assert message.id.encode() in stored.body
    assert (message.trace_id, message.meta.queue) == ("t-1", "orders")
    assert (stored.headers, stored.key) == ({"a": "b"}, b"k")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p: p.send("", {}), "/job"),
        (lambda p: p.send(URN, {"a": float("nan")}), "/data/a"),
        (lambda p: p.send(URN, {"a": b"bytes"}), "/data/a"),
        (lambda p: p.send(URN, {}, meta={"ts": 1}), "/meta/ts"),
        (lambda p: p.send(URN, {}, delay_s=-1), "past"),
        (lambda p: p.send(object()), "has no URN"),
        (lambda p: p.send_many([(URN, {}), (URN, {"a": {1, b"x"}})]), "/data/a"),
        (lambda p: p.send_many([(URN, {}), (URN,)]), r"\(urn, data\)"),
        (lambda p: p.send_many([(URN, {}), (URN, {}, {"x-tenant": "a"})]), r"\(urn, data\)"),
        (lambda p: p.send(URN, {}, headers={"tenant": 42}), r"'tenant'.*must be text, not int.*str\("),
        (lambda p: p.send(URN, {}, headers={42: "tenant"}), "42.*must be text, not int"),
        (lambda p: p.send(URN, {}, headers=["tenant"]), "mapping"),
        (lambda p: p.send(URN, {}, headers={"t": "\ud800"}), "lone surrogate"),
        (lambda p: p.send(URN, {}, headers={"\ud800": "t"}), "lone surrogate"),
        (lambda p: p.send_many([(URN, {})], headers={"tenant": None}), "NoneType"),
        (lambda p: p.send_bodies([b"{}"], headers={"tenant": True}), "bool"),
        (lambda p: p.send_bodies(["{}"]), "bytes, not str"),
        (lambda p: p.send_bodies(b"{}"), "bytes, not int"),
        (lambda p: p.send(URN, {}, key=5), "bytes or text, not int"),
        (lambda p: p.send(URN, {}, key="\ud800"), "the key contains a lone surrogate"),
        (lambda p: p.send(URN, {}, delay_s=float("nan")), "nan s"),
        (lambda p: p.send(URN, {}, delay_s=float("inf")), "inf s"),
        (lambda p: p.send(URN, {}, delay_s=1e300), "the longest delay"),
        (lambda p: p.send(URN, {}, delay_s="5"), "seconds, not str"),
        (lambda p: p.send_many([(URN, {})], delay_s=float("nan")), "nan s"),
        (lambda p: p.send_bodies([b"{}"], delay_s=float("inf")), "inf s"),
        (lambda p: p.send_bodies([b"{}"], delay_s=-1), "past"),
        (lambda p: p.send(URN, {}, trace_id=7), "/trace_id"),
        (lambda p: p.send(Order(1), trace_id=7), "/trace_id"),
        (lambda p: p.send(Order(1, trace_id=7)), "/trace_id"),
        (lambda p: p.send(Order(object())), "payload of Order cannot be made"),
        (lambda p: p.send(Order(looped())), "payload of Order cannot be made"),
        (lambda p: p.send_many([Order(1), Order(x for x in "a")]), "payload of Order cannot be made"),
    ],
)
def test_a_bad_call_names_the_place_and_sends_nothing(url: str, call, error: str) -> None:
    with pytest.raises((ContractError, Unsupported), match=error):
        call(Producer(url))
    assert connect(url).depth("orders").ready == 0


def test_whose_trace_id_a_message_object_gets(url: str) -> None:
    class Active:
        def active_trace_id(self) -> str:
            return "t-active"

    with Producer(url) as producer:
        assert producer.send(Order(1), trace_id=" t-call ").trace_id == "t-call"
        assert producer.send(Order(1, "t-own"), trace_id="t-call").trace_id == "t-call"
        assert producer.send(Order(1, "t-own")).trace_id == "t-own"
        built = build(URN, {}, trace_id="t-built")
        assert producer.send(built).trace_id == "t-built"
        sent = producer.send(built, trace_id="t-call")
        assert (sent.trace_id, sent.id) == ("t-call", built.id)
        producer._telemetry = Active()
        assert producer._from_object(Order(1), "orders").trace_id == "t-active"
        assert producer._from_object(Order(1, "t-own"), "orders").trace_id == "t-own"
    stored = [d.body for d in connect(url).browse("orders")]
    assert b'"trace_id":"t-call"' in stored[0]


def test_a_validator_refuses_before_anything_is_sent(url: str) -> None:
    def refuse(urn: str, data: dict) -> None:
        raise ContractError("no", pointer="/data/x")

    with pytest.raises(ContractError):
        Producer(url, validate=refuse).send(URN, {})
    assert connect(url).depth("orders").ready == 0


def test_strict_producers_refuse_what_some_language_reads_differently(url: str) -> None:
    Producer(url).send(URN, {"at": "2026-01-31 12:00:00"})
    with pytest.raises(ContractError, match="RFC 3339"):
        Producer(url, strict=True).send(URN, {"at": "2026-01-31 12:00:00"})


def test_what_the_broker_cannot_do_is_refused(url: str, monkeypatch) -> None:
    import dataclasses

    from shinar.brokers.memory import TRAITS

    poor = dataclasses.replace(TRAITS, delay=False, key=False, max_body_bytes=300)
    producer = Producer(url)
    monkeypatch.setattr(producer._gathering.broker, "traits", poor)
    with pytest.raises(Unsupported, match="delay"):
        producer.send(URN, {}, delay_s=1)
    with pytest.raises(Unsupported, match="key"):
        producer.send(URN, {}, key="k")
    with pytest.raises(BodyTooLarge, match="300"):
        producer.send(URN, {"a": "x" * 300})
    with pytest.raises(Unsupported, match="delay"):
        producer.send_bodies([b"{}"], delay_s=1)
    with pytest.raises(BodyTooLarge, match="300"):
        producer.send_bodies([b"{}", b"x" * 301])
    assert connect(url).depth("orders").ready == 0


def test_a_broken_url_says_what_to_write() -> None:
    with pytest.raises(UnknownScheme, match="did you mean redis"):
        Producer("redsi://localhost/q")
    with pytest.raises(ConfigError, match="scheme://host"):
        Producer("localhost/q")
    with pytest.raises(ConfigError, match="did you mean lease_s"):
        Producer("memory://x/q?lease=5")
    with pytest.raises(ConfigError, match="lease_s"):
        Producer("memory://x/q?lease_s=soon")
    with pytest.raises(ConfigError, match="queue"):
        Producer("memory://x").send(URN, {})


def test_a_missing_extra_is_one_sentence_with_the_command(monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pika", None)
    for name in [name for name in sys.modules if name.startswith("shinar.brokers.rabbitmq.broker")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pip install 'shinar\[rabbitmq\]'"):
        Producer("amqp://localhost/q")
