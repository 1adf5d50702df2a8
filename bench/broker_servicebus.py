"""Service Bus, side by side in one run: the public SDK, Shinar, and the bare azure-servicebus client.

    python bench/broker_servicebus.py [--messages 3000]

On the stand-in of the tests, so the figures compare clients and say nothing about Azure. The bare client
sends batches as large as the link takes and completes message by message, as its public interface has it.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from babelqueue import BabelQueue
from babelqueue.asb_transport import AsbTransport

from shinar.brokers import Outgoing, connect
from shinar.envelope import Kind, build, encode, judge

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

URN = "urn:babel:orders:created"
DATA = {"order_id": 1042, "customer": "Zoë", "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}]}
#: What a worker reserves at a time.
BATCH = 200
ROUNDS = 3


def rate(count: int, action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def client(port: int) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )


def sdk(port: int, count: int) -> tuple[float, float]:
    app = BabelQueue(transport=AsbTransport(client=client(port)), queue=f"bench-{uuid.uuid4().hex[:8]}")
    seen = 0

    @app.handler(URN)
    def handle(data: object, meta: object) -> None:
        nonlocal seen
        seen += 1

    app.publish(URN, DATA)
    app.consume(max_messages=1, timeout=2.0)  # both links are open now
    publish = rate(count, lambda: [app.publish(URN, DATA) for _ in range(count)] and None)
    consume = rate(count, lambda: app.consume(max_messages=count, timeout=2.0))
    assert seen == count + 1
    app.transport.close()
    return publish, consume


def ours(port: int, count: int) -> tuple[float, float]:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    broker = connect(f"servicebus://127.0.0.1:{port}/{queue}?emulator=1")
    broker.publish(queue, [Outgoing(encode(build(URN, DATA)))])
    broker.ack(broker.reserve(queue, 1, 2))
    seen = 0

    def produce() -> None:
        broker.publish(queue, [Outgoing(encode(build(URN, DATA, queue=queue))) for _ in range(count)])

    def consume() -> None:
        nonlocal seen
        while seen < count:
            got = broker.reserve(queue, BATCH, 2)
            seen += sum(judge(delivery.body).kind is Kind.ACCEPTED for delivery in got)
            assert broker.ack(got) == ()

    rates = rate(count, produce), rate(count, consume)
    broker.close()
    return rates


def bare(port: int, count: int) -> tuple[float, float]:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    body = encode(build(URN, DATA))
    properties = {
        "bq-schema-version": 1,
        "bq-source-lang": "python",
        "bq-created-at": {"TYPE": "LONG", "VALUE": 1749132727000},
    }
    with (
        client(port) as bus,
        bus.get_queue_sender(queue) as sender,
        bus.get_queue_receiver(queue) as receiver,
    ):

        def produce() -> None:
            batch = sender.create_message_batch()
            for number in range(count):
                message = ServiceBusMessage(
                    body,
                    application_properties=properties,
                    subject=URN,
                    correlation_id=str(number),
                    message_id=str(number),
                    content_type="application/json",
                )
                try:
                    batch.add_message(message)
                except MessageSizeExceededError:
                    sender.send_messages(batch)
                    batch = sender.create_message_batch()
                    batch.add_message(message)
            sender.send_messages(batch)

        def consume() -> None:
            seen = 0
            while seen < count:
                got = receiver.receive_messages(BATCH, 2)
                for message in got:
                    receiver.complete_message(message)
                seen += len(got)

        return rate(count, produce), rate(count, consume)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=3000)
    asked = parser.parse_args()
    from servers import acquire

    server = acquire("servicebus")
    few = max(asked.messages // 10, 100)
    rounds = [(ours(server.port, asked.messages), bare(server.port, asked.messages)) for _ in range(ROUNDS)]
    rounds_sdk = [sdk(server.port, few) for _ in range(2)]
    print(f"{server.version}; {len(encode(build(URN, DATA)))} bytes; best of {ROUNDS} rounds, messages/s")
    print(f"{'':10}{'babelqueue':>12}{'bare SDK':>12}{'shinar':>12}{'to SDK':>9}{'to bare':>9}")
    for at, name in enumerate(("publish", "consume")):
        mine = max(one[at] for one, _ in rounds)
        plain = max(one[at] for _, one in rounds)
        theirs = max(one[at] for one in rounds_sdk)
        print(f"{name:10}{theirs:12.0f}{plain:12.0f}{mine:12.0f}{mine / theirs:8.1f}x{mine / plain:8.0%}")


if __name__ == "__main__":
    main()
