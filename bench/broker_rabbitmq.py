"""RabbitMQ, side by side in one run: the public SDK, Shinar, and the barest use of pika we can write.

    python bench/broker_rabbitmq.py [--messages 20000] [--batch 1000] [--queue-type classic]

Ours is confirmed by the broker; the SDK's publish is not, so it is also shown with confirms switched on
in its own channel. The bare client is one SelectConnection in the main thread with 1000 unconfirmed
messages on their way, and a prefetching consumer that acks in blocks.
"""

from __future__ import annotations

import argparse
import time

import pika
from babelqueue import BabelQueue

import _brokers
from shinar.brokers import connect
from shinar.envelope import build, encode

WINDOW = 1000


def sdk(url: str, count: int, *, confirms: bool) -> _brokers.Rates:
    app = BabelQueue(url, queue="bench-sdk")
    if confirms:
        app.transport._chan().confirm_delivery()
    return _brokers.sdk_whole(app, count)


def ours(url: str, options: str, count: int, batch: int) -> _brokers.Rates:
    broker = connect(f"{url}/bench-ours{options}")
    return _brokers.ours_whole(broker, "bench-ours", count, send=batch, take=batch)


class Bare:
    """Publishes everything once, then takes it all back."""

    def __init__(self, url: str, arguments: dict[str, str], bodies: list[bytes], batch: int) -> None:
        self.bodies, self.batch, self.arguments = bodies, batch, arguments
        self.sent = self.confirmed = self.taken = 0
        self.publish_s = self.consume_s = 0.0
        self.properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            type=_brokers.URN,
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
    def rates(self) -> _brokers.Rates:
        return len(self.bodies) / self.publish_s, len(self.bodies) / self.consume_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    url = _brokers.acquire("rabbitmq").url
    count, batch = options.messages // options.batch * options.batch, options.batch
    bodies = [encode(build(_brokers.URN, _brokers.DATA)) for _ in range(count)]
    arguments = {"x-queue-type": "quorum"} if options.queue_type == "quorum" else {}
    _brokers.headline(f"RabbitMQ, {options.queue_type} queue", count, len(bodies[0]), batch)
    _brokers.columns()
    rounds = [
        (
            Bare(f"{url}/%2F", arguments, bodies, batch).rates,
            ours(url, f"?queue_type={options.queue_type}", count, batch),
            sdk(f"{url}/%2F", max(2000, count // 10), confirms=False),
            sdk(f"{url}/%2F", 1000, confirms=True),
        )
        for _ in range(options.rounds)
    ]
    bare, mine, loose, strict = (_brokers.best([row[i] for row in rounds]) for i in range(4))
    _brokers.line("bare pika", bare)
    _brokers.line("SDK", loose)
    _brokers.line("SDK, confirms switched on", strict)
    _brokers.line("Shinar (confirmed)", mine)
    _brokers.times("the SDK", mine, loose)
    _brokers.times("the SDK with confirms", mine, strict)
    _brokers.share("the bare client", mine, bare)


if __name__ == "__main__":
    main()
