"""A worker on SQS and on Service Bus: poison, gated, unknown and failing messages add up exactly."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from servers import with_queue
from shinar import Backoff, Limits, Policy, Worker
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode

HEAVY = os.environ.get("SHINAR_HEAVY") == "1"
#: In rounds, because ElasticMQ grows slow over a hundred thousand waiting messages.
ROUNDS, ROUND = (10, 10_000) if HEAVY else (1, 300)
KNOWN, UNKNOWN = "urn:babel:orders:created", "urn:babel:orders:unheard-of"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def body_of(number: int) -> bytes:
    if number % 100 == 0:
        return b'{"job":"' + KNOWN.encode() + b'","data":%d}' % number  # poison: data is no object
    urn = UNKNOWN if number % 100 == 1 else KNOWN
    return encode(build(urn, {"n": number, "fails": number % 100 in (2, 3)}))


def drained(broker, queue: str) -> list:
    found: list = []
    while got := broker.reserve(queue, 100, 2):
        assert broker.ack(got) == ()
        found += got
    return found


@pytest.mark.timeout(3600 if HEAVY else 300)
@pytest.mark.parametrize("name", ["elasticmq", "servicebus"])
@pytest.mark.parametrize("backoff", [Backoff(), Backoff(1, 1, 1)], ids=["at once", "after 1 s"])
def test_the_outcomes_add_up(live_server, name, backoff):
    queue = f"w-{uuid.uuid4().hex[:10]}"
    url = with_queue(live_server(name).url, queue)
    broker = connect(url)
    calls: dict[int, list[int]] = {}

    def handle(message, context):
        calls.setdefault(message.data["n"], []).append(context.attempt)
        if message.data["fails"]:
            raise RuntimeError("no")

    policy = Policy(max_attempts=3, on_unknown_urn="dead_letter", backoff=backoff)
    limits = Limits(until_empty=True, empty_wait_s=4)
    counts: Counter[str] = Counter()
    for start in range(0, ROUNDS * ROUND, ROUND):
        broker.publish(queue, [Outgoing(body_of(number)) for number in range(start, start + ROUND)])
        worker = Worker(url, {KNOWN: handle}, policy=policy, concurrency=4, limits=limits)
        counts.update(worker.run().counts)
    dead = drained(broker, queue + broker.traits.dlq_suffix)
    left = drained(broker, queue)
    broker.close()
    hundreds = ROUNDS * ROUND // 100
    assert left == []
    assert counts["handled"] == 96 * hundreds
    assert counts["retry"] == 2 * 2 * hundreds
    assert counts["dead_letter"] == 4 * hundreds
    assert len(dead) == 4 * hundreds
    reasons = [json.loads(d.body)["dead_letter"]["reason"] for d in dead]
    assert {reason: reasons.count(reason) for reason in set(reasons)} == {
        "poison": hundreds,
        "unknown_urn": hundreds,
        "failed": 2 * hundreds,
    }
    assert all(seen == ([1, 2, 3] if n % 100 in (2, 3) else [1]) for n, seen in calls.items())
    assert len(calls) == 98 * hundreds


@pytest.mark.live("servicebus")
def test_without_dead_letters_a_gated_message_goes_to_the_native_ones(server):
    queue = f"w-{uuid.uuid4().hex[:10]}"
    url = with_queue(server.url, queue)
    raw = b'{ "any": "thing", "n": 1.50 }'
    with (
        ServiceBusClient.from_connection_string(
            f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        ) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage(raw, application_properties={"bq-schema-version": 2}))
    policy = Policy(on_exhausted="drop")
    report = Worker(url, {}, policy=policy, limits=Limits(until_empty=True, empty_wait_s=2)).run()
    assert report.count("native") == 1
    broker = connect(url)
    (buried,) = drained(broker, f"{queue}/$DeadLetterQueue")
    assert buried.body == raw
    assert buried.properties["bq-schema-version"] == 2
    broker.close()
