"""RabbitMQ, side by side in one run: the public SDK, Shinar, and the barest use of pika we can write.

    python bench/broker_rabbitmq.py [--messages 20000] [--batch 1000] [--queue-type classic]

Ours is confirmed by the broker; the SDK's publish is not, so it is also shown with confirms switched on
in its own channel. The bare client is one SelectConnection in the main thread with 1000 unconfirmed
messages on their way, and a prefetching consumer that acks in blocks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import babelqueue
import pika

from shinar.brokers import Outgoing, connect
from shinar.envelope import Kind, build, encode, judge

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

URN = "urn:babel:orders:created"
DATA = {"order_id": 1042, "customer": "Zoë", "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}]}
WINDOW = 1000


def rate(count: int, action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def best(rates: list[tuple[float, float]]) -> tuple[float, float]:
    """Of the rounds, each side's fastest: what disturbs a machine only ever slows it down."""
    return max(publish for publish, _ in rates), max(consume for _, consume in rates)


def sdk(url: str, count: int, *, confirms: bool) -> tuple[float, float]:
    app = babelqueue.BabelQueue(url, queue="bench-sdk")
    seen = 0
    if confirms:
        app.transport._chan().confirm_delivery()

    @app.handler(URN)
    def handle(data: object, meta: object) -> None:
        nonlocal seen
        seen += 1

    publish = rate(count, lambda: [app.publish(URN, DATA) for _ in range(count)] and None)
    consume = rate(count, lambda: app.consume(max_messages=count, timeout=1.0))
    assert seen == count
    return publish, consume


def ours(url: str, options: str, count: int, batch: int) -> tuple[float, float]:
    broker = connect(f"{url}/bench-ours{options}")
    seen = 0

    def publish() -> None:
        for _ in range(0, count, batch):
            broker.publish("bench-ours", [Outgoing(encode(build(URN, DATA))) for _ in range(batch)])

    def consume() -> None:
        nonlocal seen
        while found := broker.reserve("bench-ours", batch, 0.0):
            for delivery in found:
                assert judge(delivery.body).kind is Kind.ACCEPTED
                seen += 1
            assert broker.ack(found) == ()

    result = rate(count, publish), rate(count, consume)
    assert seen == count, seen
    broker.close()
    return result


class Bare:
    """Publishes everything once, then takes it all back."""

    def __init__(self, url: str, arguments: dict[str, str], bodies: list[bytes], batch: int) -> None:
        self.bodies, self.batch, self.arguments = bodies, batch, arguments
        self.sent = self.confirmed = self.taken = 0
        self.publish_s = self.consume_s = 0.0
        self.properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            type=URN,
            correlation_id="7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",
            message_id="f1e2d3c4-b5a6-4789-90ab-cdef01234567",
            app_id="babelqueue",
            headers={"x-schema-version": 1, "x-source-lang": "python", "x-attempts": 0},
        )
        self.connection = pika.SelectConnection(pika.URLParameters(url), on_open_callback=self.opened)
        self.connection.ioloop.start()

    def opened(self, connection: object) -> None:
        self.connection.channel(on_open_callback=self.ready)

    def ready(self, channel: object) -> None:
        self.channel = channel
        channel.queue_declare(
            "bench-bare", durable=True, arguments=self.arguments, callback=lambda _f: self.begin()
        )

    def begin(self) -> None:
        self.channel.confirm_delivery(self.on_confirm)
        self.started = time.perf_counter()
        self.pump()

    def pump(self) -> None:
        while self.sent < len(self.bodies) and self.sent - self.confirmed < WINDOW:
            self.channel.basic_publish(
                "", "bench-bare", self.bodies[self.sent], self.properties, mandatory=True
            )
            self.sent += 1

    def on_confirm(self, frame: object) -> None:
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        self.confirmed = tag if multiple else self.confirmed + 1
        if self.confirmed >= len(self.bodies):
            self.publish_s = time.perf_counter() - self.started
            self.started = time.perf_counter()
            self.channel.basic_qos(prefetch_count=self.batch)
            self.channel.basic_consume("bench-bare", self.on_message)
        elif self.sent - self.confirmed <= WINDOW // 2:
            self.pump()

    def on_message(self, _channel: object, method: object, _properties: object, _body: bytes) -> None:
        self.taken += 1
        if self.taken % (self.batch // 2) == 0 or self.taken == len(self.bodies):
            self.channel.basic_ack(method.delivery_tag, multiple=True)
        if self.taken == len(self.bodies):
            self.consume_s = time.perf_counter() - self.started
            self.connection.close()
            self.connection.ioloop.stop()

    @property
    def rates(self) -> tuple[float, float]:
        return len(self.bodies) / self.publish_s, len(self.bodies) / self.consume_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import servers

    url = servers.acquire("rabbitmq").url
    count, batch = options.messages // options.batch * options.batch, options.batch
    bodies = [encode(build(URN, DATA)) for _ in range(count)]
    arguments = {"x-queue-type": "quorum"} if options.queue_type == "quorum" else {}
    print(f"{count} messages of {len(bodies[0])} bytes, batches of {batch}, {options.queue_type}; per second")
    print(f"{'':<34}{'publish':>10}{'consume':>10}")
    rounds = [
        (
            Bare(f"{url}/%2F", arguments, bodies, batch).rates,
            ours(url, f"?queue_type={options.queue_type}", count, batch),
            sdk(f"{url}/%2F", max(2000, count // 10), confirms=False),
            sdk(f"{url}/%2F", 1000, confirms=True),
        )
        for _ in range(options.rounds)
    ]
    bare, mine, loose, strict = (best([row[i] for row in rounds]) for i in range(4))
    print(f"{'bare pika':<34}{bare[0]:>10,.0f}{bare[1]:>10,.0f}")
    print(f"{'SDK':<34}{loose[0]:>10,.0f}{loose[1]:>10,.0f}")
    print(f"{'SDK, confirms switched on':<34}{strict[0]:>10,.0f}{strict[1]:>10,.0f}")
    print(f"{'Shinar (confirmed)':<34}{mine[0]:>10,.0f}{mine[1]:>10,.0f}")
    print(f"{'   times the SDK':<34}{mine[0] / loose[0]:>9.1f}x{mine[1] / loose[1]:>9.1f}x")
    print(f"{'   times the SDK with confirms':<34}{mine[0] / strict[0]:>9.1f}x{mine[1] / strict[1]:>9.1f}x")
    print(f"{'   of the bare client':<34}{mine[0] / bare[0]:>10.0%}{mine[1] / bare[1]:>10.0%}")


if __name__ == "__main__":
    main()
