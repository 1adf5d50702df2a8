"""Service Bus, side by side in one run: the public SDK, Shinar, and the bare azure-servicebus client.

    python bench/broker_servicebus.py [--messages 3000]

On the stand-in of the tests, so the figures compare clients and say nothing about Azure. The bare client
sends batches as large as the link takes and completes message by message, as its public interface has it.
"""

from __future__ import annotations

import argparse

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from babelqueue import BabelQueue
from babelqueue.asb_transport import AsbTransport

import _brokers
from _brokers import rate
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode

#: What a worker reserves at a time.
BATCH = 200


def client(port: int) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )


def sdk(port: int, count: int) -> _brokers.Rates:
    app = BabelQueue(transport=AsbTransport(client=client(port)), queue=_brokers.queue_name())
    app.publish(_brokers.URN, _brokers.DATA)
    app.transport.ack(app.transport.pop(app.queue, 2.0))  # both links are open now
    rates = _brokers.sdk_whole(app, count, timeout_s=2.0)
    app.transport.close()
    return rates


def ours(port: int, count: int) -> _brokers.Rates:
    queue = _brokers.queue_name()
    broker = connect(f"servicebus://127.0.0.1:{port}/{queue}?emulator=1")
    broker.publish(queue, [Outgoing(encode(build(_brokers.URN, _brokers.DATA)))])
    broker.ack(broker.reserve(queue, 1, 2))
    return _brokers.ours_whole(broker, queue, count, send=count, take=BATCH, wait_s=2)


def bare(port: int, count: int) -> _brokers.Rates:
    queue = _brokers.queue_name()
    body = encode(build(_brokers.URN, _brokers.DATA))
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
                    subject=_brokers.URN,
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
    server = _brokers.acquire("servicebus")
    count = asked.messages
    rounds = [(ours(server.port, count), bare(server.port, count)) for _ in range(_brokers.ROUNDS)]
    theirs = _brokers.best([sdk(server.port, max(count // 10, 100)) for _ in range(2)])
    mine, plain = (_brokers.best([row[i] for row in rounds]) for i in range(2))
    _brokers.headline(server.version, count, len(encode(build(_brokers.URN, _brokers.DATA))), BATCH)
    _brokers.three("bare azure-servicebus", mine, plain, theirs)


if __name__ == "__main__":
    main()
