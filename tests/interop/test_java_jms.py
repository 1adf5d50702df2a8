"""A Java service on plain JMS (Artemis's own client) beside us on one Artemis: neither knows of the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

import pytest

from cases import take
from interop.toolchains import HERE, run
from shinar.brokers import Broker, Outgoing, connect, parse
from shinar.envelope import build, encode
from shinar.settlement import Policy
from shinar.worker import Limits, Worker

URN = "urn:babel:orders:created"
#: What a runtime in between likes to change: order, escapes, numbers, empty things.
DATA = {
    "z": 1.0,
    "a": [{}, [], None, True],
    "text": 'größe ✓ 😀 </b> \u2028 \t "quoted" \\ /',
    "long": 2**63 - 1,
    "tiny": 1e-07,
}

pytestmark = [pytest.mark.live("artemis"), pytest.mark.timeout(120)]


@dataclass
class Java:
    """The program of java/Jms.java on one queue."""

    command: list[str]
    queue: str = field(default_factory=lambda: f"jms-{uuid.uuid4().hex[:10]}")

    def __call__(
        self, verb: str, *words: str, lines: list[dict[str, str]] | None = None
    ) -> list[dict[str, str]]:
        written = run([*self.command, self.queue, verb, *words], [urlencode(line) for line in lines or []])
        return [dict(parse_qsl(line, keep_blank_values=True)) for line in written]


@pytest.fixture
def java(server, java_command: list[str]) -> Java:
    place = parse(server.url)
    return Java([*java_command, str(HERE / "java" / "Jms.java"), *core(place)])


def core(place) -> tuple[str, str, str]:
    return f"tcp://{place.netloc.rpartition('@')[2]}", place.user, place.password


@pytest.fixture
def ours(server) -> Iterator[Broker]:
    broker = connect(server.url)
    yield broker
    broker.close()


def test_java_reads_our_text_message_and_the_contract_beside_it(java: Java, ours: Broker) -> None:
    message = build(URN, DATA, queue=java.queue)
    ours.publish(java.queue, [Outgoing(encode(message), headers={"traceparent": "00-ab"})])
    (seen,) = java("receive", "1")
    assert (seen["class"], seen["body"].encode()) == ("TextMessage", encode(message))
    assert seen["JMSCorrelationID"] == message.trace_id
    assert int(seen["JMSTimestamp"]) == message.meta.created_at
    beside = {name: text for name, text in seen.items() if name.startswith((".bq_", ".trace"))}
    assert beside == {
        ".bq_schema_version": "1",
        ".bq_source_lang": "python",
        ".bq_attempts": "0",
        ".bq_app_id": "babelqueue",
        ".traceparent": "00-ab",
    }
    # The contract's annotation is not what Artemis makes a JMSType of (that is AMQP's subject), so a Java
    # service finds the URN here, or in the body as BabelQueue's Java transport does.
    assert seen[".JMS_AMQP_MA_x-opt-jms-type"] == URN


def test_we_read_what_java_sends_byte_for_byte(java: Java, ours: Broker) -> None:
    bodies = [encode(build(URN, {**DATA, "n": n}, queue=java.queue)) for n in range(20)]
    contract = {
        ".bq_schema_version": "1",
        ".bq_source_lang": "java",
        ".bq_attempts": "0",
        ".bq_app_id": "babelqueue",
    }
    lines = [
        {
            "body": body.decode(),
            "JMSType": URN,
            "JMSCorrelationID": f"t-{n}",
            ".traceparent": "00-cd",
            **contract,
        }
        for n, body in enumerate(bodies)
    ]
    java("send", lines=lines)
    got = take(ours, java.queue, 20)
    assert [delivery.body for delivery in got] == bodies
    assert [delivery.properties["correlation_id"] for delivery in got] == [f"t-{n}" for n in range(20)]
    assert got[0].headers == {"traceparent": "00-cd"}
    assert {
        f".{name}": text for name, text in got[0].properties.items() if name.startswith("bq_")
    } == contract
    assert ours.ack(got) == ()


def test_what_java_failed_comes_to_us_with_its_count(java: Java, ours: Broker, server) -> None:
    """JMS counts deliveries from one, AMQP failures from nought; the handler sees what the contract says."""
    ours.publish(java.queue, [Outgoing(encode(build(URN, DATA, queue=java.queue)))])
    assert [seen[".JMSXDeliveryCount"] for seen in java("recover", "2")] == ["1", "2"]
    attempts: list[int] = []
    worker = Worker(
        server.url,
        {URN: lambda message: attempts.append(message.attempts)},
        queue=java.queue,
        limits=Limits(max_messages=1),
    )
    assert worker.run().count("handled") == 1
    assert attempts == [2]


def test_java_reads_our_dead_letter(java: Java, ours: Broker, server) -> None:
    body = encode(build(URN, DATA, queue=java.queue))
    java("send", lines=[{"body": body.decode(), "JMSType": URN, "JMSCorrelationID": "t-1"}])
    worker = Worker(
        server.url,
        {URN: lambda message: 1 / 0},
        queue=java.queue,
        policy=Policy(max_attempts=1),
        limits=Limits(max_messages=1),
    )
    assert worker.run().count("dead_letter") == 1
    (seen,) = Java(java.command, f"{java.queue}.dlq")("receive", "1")
    assert seen["class"] == "TextMessage"
    # All that Java wrote is there as it was; our block comes after it.
    assert seen["body"].encode().startswith(body[: body.index(b',"attempts"')])
    assert '"dead_letter":{"reason":"failed"' in seen["body"]
