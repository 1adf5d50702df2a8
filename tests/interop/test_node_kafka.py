"""A Node service on BabelQueue's own Kafka transport (npm) beside us on one Kafka.

The transport is theirs; the core it imports is not in the registry in reach, so Node's JSON stands in
for the codec (node/core). Headers, timestamps, topics, commits and dead letters are their code.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cases import take
from interop.toolchains import program, run
from shinar.brokers import Broker, Outgoing, connect, parse
from shinar.envelope import build, encode, judge
from shinar.redrive import Ledger, Redrive, Spec

URN = "urn:babel:orders:created"
#: Values both languages write alike; what they do not is in docs/interop.md.
DATA = {"z": 1.5, "a": [{}, [], None, True], "text": 'größe ✓ 😀 </b> \t "quoted" \\ /', "n": 2**53 - 1}

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(120)]


@dataclass
class Node:
    """The program of node/kafka.js on one topic."""

    command: list[str]
    topic: str = field(default_factory=lambda: f"node-{uuid.uuid4().hex[:10]}")

    def send(self, *messages: dict[str, Any]) -> list[str]:
        return run([*self.command, self.topic, "send"], [json.dumps(message) for message in messages])

    def consume(self, verb: str, count: int) -> list[dict[str, Any]]:
        group = f"node-{self.topic}"
        return [json.loads(line) for line in run([*self.command, self.topic, verb, group, str(count)])]


@pytest.fixture
def node(server, node_folder: Path) -> Node:
    return Node([program("node"), str(node_folder / "kafka.js"), parse(server.url).netloc])


@pytest.fixture
def ours(server, node: Node) -> Iterator[Broker]:
    broker = connect(f"{server.url}/?group=ours-{node.topic}")
    yield broker
    broker.close()


def test_node_reads_our_bytes_and_the_contract_beside_them(node: Node, ours: Broker) -> None:
    sent = [build(URN, {**DATA, "at": n}, queue=node.topic) for n in range(20)]
    ours.publish(node.topic, [Outgoing(encode(one), headers={"traceparent": "00-ab"}) for one in sent])
    seen = {one["headers"]["bq-message-id"]: one for one in node.consume("work", 20)}
    for message in sent:
        got = seen[message.meta.id]
        assert base64.b64decode(got["body"]) == encode(message)
        assert got["envelope"]["data"] == message.data
        assert int(got["timestamp"]) == message.meta.created_at
        assert got["headers"] == {
            "bq-job": URN,
            "bq-trace-id": message.trace_id,
            "bq-message-id": message.meta.id,
            "bq-schema-version": "1",
            "bq-source-lang": "python",
            "bq-attempts": "0",
            "traceparent": "00-ab",
        }


def test_we_read_what_node_sends_and_would_have_written_the_same(node: Node, ours: Broker) -> None:
    data = [{**DATA, "at": n} for n in range(20)]
    ids = node.send(
        *(
            {"urn": URN, "data": one, "traceId": f"t-{n}", "headers": {"traceparent": "00-cd"}}
            for n, one in enumerate(data)
        )
    )
    got = take(ours, node.topic, 20)
    verdicts = [judge(delivery.body) for delivery in got]
    messages = [verdict.message for verdict in verdicts if verdict.message is not None]
    assert [message.meta.id for message in messages] == ids
    assert [message.data for message in messages] == data
    assert [encode(message) for message in messages] == [delivery.body for delivery in got]
    assert not any(verdict.warnings for verdict in verdicts)
    for n, (delivery, message) in enumerate(zip(got, messages, strict=True)):
        assert delivery.headers == {"traceparent": "00-cd"}
        assert delivery.properties == {
            "bq-job": URN,
            "bq-trace-id": f"t-{n}",
            "bq-message-id": message.meta.id,
            "bq-schema-version": "1",
            "bq-source-lang": "node",
            "bq-attempts": "0",
        }
    assert ours.ack(got) == ()


def test_a_dead_letter_of_node_is_redriven_by_us_and_handled_by_node(
    node: Node, ours: Broker, server, tmp_path: Path
) -> None:
    body = encode(build(URN, DATA, queue=node.topic))
    ours.publish(node.topic, [Outgoing(body)])
    node.consume("refuse", 1)
    ledger = Ledger(tmp_path / "ledger.db")
    receipt = Redrive(f"{server.url}/{node.topic}.dlq?group=dead-{node.topic}", Spec(), ledger=ledger).run()
    ledger.close()
    assert (receipt.selected, receipt.published) == (1, 1), receipt
    (again,) = node.consume("work", 1)
    assert base64.b64decode(again["body"]) == body, "as it was before it died"
    assert again["headers"]["bq-attempts"] == "0"
