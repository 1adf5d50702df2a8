"""Artemis: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_artemis.py [messages]

Bare is the fastest use of python-qpid-proton we can write that does the same work: an event-driven sender
that keeps the credit used up, durable messages with the contract's properties, every one accepted; a
receiver with a window of credit that decodes and accepts.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from proton import Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container, LinkOption

from servers import acquire
from shinar.brokers import Outgoing, connect
from shinar.brokers.projection import facts_of
from shinar.envelope import build, encode

BATCH = 200


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    server = acquire("artemis")
    print(f"Artemis {server.version}, {count} messages of {len(bodies(1)[0])} bytes, batches of {BATCH}")
    peer_count = max(200, count // 10)
    publish = {"shinar": ours_publish, "bare": bare_publish, "babelqueue": peer_publish}
    report("publish", publish, server.url, count, peer_count)
    consume = {"shinar": ours_consume, "bare": bare_consume, "babelqueue": peer_consume}
    report("consume", consume, server.url, count, peer_count)


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
    handler = Send(url, queue_name(), bodies(count))
    Container(handler).run()
    return handler.took_s


def peer_publish(url: str, count: int) -> float:
    from babelqueue.artemis_transport import ArtemisTransport

    queue, texts = queue_name(), [body.decode() for body in bodies(count)]
    ours_publish(url, 1, queue)  # it does not ask for a queue, and would get a topic
    peer = ArtemisTransport(url)
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
    handler = Receive(url, queue, count)
    Container(handler).run()
    return handler.took_s


def peer_consume(url: str, count: int) -> float:
    from babelqueue.artemis_transport import ArtemisTransport

    queue = queue_name()
    ours_publish(url, count, queue)
    peer = ArtemisTransport(url)
    peer.ack(peer.pop(queue, 10))
    start = time.perf_counter()
    for _ in range(count):
        peer.ack(peer.pop(queue, 10))
    took_s = time.perf_counter() - start
    peer.close()
    return took_s


if __name__ == "__main__":
    main()
