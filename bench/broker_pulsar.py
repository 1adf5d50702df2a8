"""Pulsar: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_pulsar.py [messages]

Bare is the fastest use of pulsar-client we can write that does the same work: batching off, asynchronous
sends with the contract's properties, every confirmation awaited; received, read and acknowledged one by one.
"""

from __future__ import annotations

import sys
import threading
import time

import pulsar
from babelqueue.pulsar_transport import PulsarTransport

import _brokers
from shinar.brokers.projection import facts_of

BATCH = 100
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    server = _brokers.acquire("pulsar")
    _brokers.headline(f"Pulsar {server.version}", count, len(_brokers.bodies(1)[0]), BATCH)
    publish = {
        "shinar": lambda url, n: _brokers.ours_publish(url, _brokers.queue_name(), n),
        "bare": bare_publish,
        "babelqueue": lambda url, n: _brokers.sdk_publish(sdk(url), _brokers.queue_name(), n),
    }
    consume = {
        "shinar": lambda url, n: _brokers.ours_consume(url, _brokers.filled(url, n), n, take=BATCH),
        "bare": bare_consume,
        "babelqueue": lambda url, n: _brokers.sdk_consume(sdk(url), _brokers.filled(url, n), n),
    }
    _brokers.compare("publish", publish, server.url, count, max(200, count // 20))
    # The same number for all: a few hundred would be in the client before the clock starts.
    _brokers.compare("consume", consume, server.url, count, count)


def sdk(url: str) -> PulsarTransport:
    return PulsarTransport(url, client=pulsar.Client(url, logger=QUIET))


def bare_publish(url: str, count: int) -> float:
    topic = f"persistent://public/default/{_brokers.queue_name()}"
    client = pulsar.Client(url, logger=QUIET)
    client.subscribe(topic, "babelqueue", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
    )
    producer.send(b"{}")
    values = _brokers.bodies(count)
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


def bare_consume(url: str, count: int) -> float:
    queue = _brokers.filled(url, count)
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


if __name__ == "__main__":
    main()
