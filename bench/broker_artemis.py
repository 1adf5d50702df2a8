"""Artemis: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_artemis.py [messages]

Bare is the fastest use of python-qpid-proton we can write that does the same work: an event-driven sender
that keeps the credit used up, durable messages with the contract's properties, every one accepted; a
receiver with a window of credit that decodes and accepts.
"""

from __future__ import annotations

import sys
import time

from babelqueue.artemis_transport import ArtemisTransport
from proton import Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption

import _brokers
from shinar.brokers.projection import facts_of

BATCH = 200


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    server = _brokers.acquire("artemis")
    _brokers.headline(f"Artemis {server.version}", count, len(_brokers.bodies(1)[0]), BATCH)
    few = max(200, count // 10)
    publish = {
        "shinar": lambda url, n: _brokers.ours_publish(url, _brokers.queue_name(), n),
        "bare": bare_publish,
        # Filled, because the SDK does not ask for a queue and would get a topic.
        "babelqueue": lambda url, n: _brokers.sdk_publish(ArtemisTransport(url), _brokers.filled(url, 1), n),
    }
    consume = {
        "shinar": lambda url, n: _brokers.ours_consume(url, _brokers.filled(url, n), n, take=BATCH),
        "bare": bare_consume,
        "babelqueue": lambda url, n: _brokers.sdk_consume(ArtemisTransport(url), _brokers.filled(url, n), n),
    }
    _brokers.compare("publish", publish, server.url, count, few)
    _brokers.compare("consume", consume, server.url, count, few)


class Send(MessagingHandler):
    def __init__(self, url: str, queue: str, values: list[bytes]) -> None:
        super().__init__()
        self.url, self.queue, self.values, self.at, self.accepted = url, queue, values, 0, 0

    def on_start(self, event) -> None:
        connection = event.container.connect(self.url.replace("artemis", "amqp"))
        event.container.create_sender(connection, self.queue, options=Queue())
        self.start = time.perf_counter()

    def on_sendable(self, event) -> None:
        while event.sender.credit and self.at < len(self.values):
            value = self.values[self.at]
            facts = facts_of(value)
            message = Message(body=value.decode(), durable=True, correlation_id=facts.trace_id)
            message.properties = {
                "bq_schema_version": "1",
                "bq_source_lang": facts.lang,
                "bq_attempts": str(facts.attempts),
                "bq_app_id": "babelqueue",
            }
            message.annotations = {symbol("x-opt-jms-type"): facts.urn}
            message.creation_time = facts.created_at / 1000
            event.sender.send(message)
            self.at += 1

    def on_accepted(self, event) -> None:
        self.accepted += 1
        if self.accepted == len(self.values):
            self.took_s = time.perf_counter() - self.start
            event.connection.close()


class Queue(LinkOption):
    def apply(self, link) -> None:
        (link.target if link.is_sender else link.source).capabilities.put_object(symbol("queue"))


class Receive(MessagingHandler):
    def __init__(self, url: str, queue: str, count: int) -> None:
        super().__init__(prefetch=BATCH * 2)
        self.url, self.queue, self.count, self.seen = url, queue, count, 0

    def on_start(self, event) -> None:
        connection = event.container.connect(self.url.replace("artemis", "amqp"))
        event.container.create_receiver(connection, self.queue, options=Queue())

    def on_message(self, event) -> None:
        if not self.seen:
            self.start = time.perf_counter()
        message = event.message
        _ = (message.body.encode(), message.properties, message.annotations, message.delivery_count)
        self.seen += 1
        if self.seen == self.count:
            self.took_s = time.perf_counter() - self.start
            event.connection.close()


def bare_publish(url: str, count: int) -> float:
    handler = Send(url, _brokers.queue_name(), _brokers.bodies(count))
    Container(handler).run()
    return handler.took_s


def bare_consume(url: str, count: int) -> float:
    handler = Receive(url, _brokers.filled(url, count), count)
    Container(handler).run()
    return handler.took_s


if __name__ == "__main__":
    main()
