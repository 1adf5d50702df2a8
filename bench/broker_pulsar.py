"""Pulsar: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_pulsar.py [messages]

Bare is the fastest use of pulsar-client we can write that does the same work: batching off, asynchronous
sends with the contract's properties, every confirmation awaited; received, read and acknowledged one by one.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import pulsar

from servers import acquire
from shinar.brokers import Outgoing, connect
from shinar.brokers.projection import facts_of
from shinar.envelope import build, encode

BATCH = 100
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    server = acquire("pulsar")
    print(f"Pulsar {server.version}, {count} messages of {len(bodies(1)[0])} bytes, batches of {BATCH}")
    peer_count = max(200, count // 20)
    publish = {"shinar": ours_publish, "bare": bare_publish, "babelqueue": peer_publish}
    report("publish", publish, server.url, count, peer_count)
    consume = {"shinar": ours_consume, "bare": bare_consume, "babelqueue": peer_consume}
    # The same number for all: a few hundred would be in the client before the clock starts.
    report("consume", consume, server.url, count, count)


def report(what, runs, url, count, peer_count) -> None:
    rates = dict.fromkeys(runs, 0.0)
    # In turns, and the best of three: the machine is not alone, and the first round warms it up.
    for turn in range(3):
        for name, run in runs.items():
            if name == "babelqueue" and turn:
                continue
            size = peer_count if name == "babelqueue" else count
            rates[name] = max(rates[name], size / run(url, size))
    ours = rates["shinar"]
    print(
        f"{what}: shinar {ours:,.0f}/s, bare {rates['bare']:,.0f}/s ({ours / rates['bare']:.0%}), "
        f"babelqueue {rates['babelqueue']:,.0f}/s (x{ours / rates['babelqueue']:.1f})"
    )


def bodies(count: int) -> list[bytes]:
    return [
        encode(build("urn:babel:orders:created", {"n": n, "items": [1, 2, 3]}, queue="orders"))
        for n in range(count)
    ]


def queue_name() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def ours_publish(url: str, count: int, queue: str = "") -> float:
    queue = queue or queue_name()
    broker = connect(url)
    broker.publish(queue, [Outgoing(b"{}")])
    messages = [Outgoing(body) for body in bodies(count)]
    start = time.perf_counter()
    for at in range(0, count, 1_000):
        broker.publish(queue, messages[at : at + 1_000])
    took_s = time.perf_counter() - start
    broker.close()
    return took_s


def bare_publish(url: str, count: int) -> float:
    topic = f"persistent://public/default/{queue_name()}"
    client = pulsar.Client(url, logger=QUIET)
    client.subscribe(topic, "babelqueue", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
    )
    producer.send(b"{}")
    values = bodies(count)
    start = time.perf_counter()
    for at in range(0, count, 1_000):
        part = values[at : at + 1_000]
        left, done = [len(part)], threading.Event()

        def confirmed(result, _id, left=left, done=done) -> None:
            assert result == pulsar.Result.Ok
            left[0] -= 1
            if not left[0]:
                done.set()

        for value in part:
            facts = facts_of(value)
            properties = {
                "bq-job": facts.urn,
                "bq-trace-id": facts.trace_id,
                "bq-message-id": facts.id,
                "bq-schema-version": "1",
                "bq-source-lang": facts.lang,
                "bq-attempts": str(facts.attempts),
            }
            producer.send_async(value, confirmed, properties=properties)
        done.wait()
    took_s = time.perf_counter() - start
    client.close()
    return took_s


def peer_publish(url: str, count: int) -> float:
    from babelqueue.pulsar_transport import PulsarTransport

    peer = PulsarTransport(url, client=pulsar.Client(url, logger=QUIET))
    queue, texts = queue_name(), [body.decode() for body in bodies(count)]
    peer.publish(queue, texts[0])
    start = time.perf_counter()
    for text in texts:
        peer.publish(queue, text)
    took_s = time.perf_counter() - start
    peer.close()
    return took_s


def ours_consume(url: str, count: int) -> float:
    queue = queue_name()
    ours_publish(url, count, queue)
    broker = connect(url)
    broker.ack(broker.reserve(queue, 1, 10))
    start, seen = time.perf_counter(), 0
    while seen < count:
        got = broker.reserve(queue, BATCH, 5)
        seen += len(got)
        broker.ack(got)
    took_s = time.perf_counter() - start
    broker.close()
    return took_s


def bare_consume(url: str, count: int) -> float:
    queue = queue_name()
    ours_publish(url, count, queue)
    client = pulsar.Client(url, logger=QUIET)
    consumer = client.subscribe(
        f"persistent://public/default/{queue}",
        "babelqueue",
        consumer_type=pulsar.ConsumerType.Shared,
        receiver_queue_size=1000,
    )
    consumer.acknowledge(consumer.receive(10_000))
    start = time.perf_counter()
    for _ in range(count):
        message = consumer.receive(5_000)
        _ = (message.data(), message.properties(), message.redelivery_count(), message.message_id())
        consumer.acknowledge(message)
    took_s = time.perf_counter() - start
    client.close()
    return took_s


def peer_consume(url: str, count: int) -> float:
    from babelqueue.pulsar_transport import PulsarTransport

    queue = queue_name()
    ours_publish(url, count, queue)
    peer = PulsarTransport(url, client=pulsar.Client(url, logger=QUIET))
    peer.ack(peer.pop(queue, 10))
    start = time.perf_counter()
    for _ in range(count):
        peer.ack(peer.pop(queue, 10))
    took_s = time.perf_counter() - start
    peer.close()
    return took_s


if __name__ == "__main__":
    main()
