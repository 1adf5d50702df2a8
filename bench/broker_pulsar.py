"""Pulsar: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_pulsar.py [messages]

Bare is the fastest use of pulsar-client we can write that does the same work: batching off, asynchronous
sends with the contract's properties, every confirmation awaited; received, read and acknowledged one by one.
`handled` is a whole worker on both sides, from the first call of the handler to the last. Consuming has no
round trip to save on Pulsar: its client takes messages ahead and acknowledges in the background, for
everybody, so no multiple of the SDK's rate is to be had there.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import pulsar
from babelqueue import BabelQueue
from babelqueue.pulsar_transport import PulsarTransport

import _brokers
from shinar import Limits, Worker
from shinar.brokers import connect
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
    ours, theirs = (best(run, server.url, count) for run in (ours_handled, sdk_handled))
    print(f"handled: shinar {ours:,.0f}/s, babelqueue {theirs:,.0f}/s (x{ours / theirs:.1f})")


def best(run: Callable[[str, int], float], url: str, count: int) -> float:
    return max(count / run(url, count) for _ in range(_brokers.ROUNDS))


def sdk(url: str) -> PulsarTransport:
    return PulsarTransport(url, client=pulsar.Client(url, logger=QUIET))


def ready(url: str, count: int) -> str:
    """A queue with that many messages and nothing else."""
    queue = _brokers.filled(url, count)
    broker = connect(url)
    broker.ack(broker.reserve(queue, 1, 10))
    broker.close()
    return queue


def ours_handled(url: str, count: int) -> float:
    marks: list[float] = []
    handlers = {_brokers.URN: lambda _message: marks.append(time.perf_counter())}
    Worker(url, handlers, queue=ready(url, count), limits=Limits(max_messages=count)).run()
    assert len(marks) == count, len(marks)
    return marks[-1] - marks[0]


def sdk_handled(url: str, count: int) -> float:
    marks: list[float] = []
    transport = sdk(url)
    app = BabelQueue(transport=transport, queue=ready(url, count))
    app.handler(_brokers.URN)(lambda _data, _meta: marks.append(time.perf_counter()))
    app.consume(max_messages=count, timeout=10)
    transport.close()
    assert len(marks) == count, len(marks)
    return marks[-1] - marks[0]


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
