"""SQS, side by side in one run: the public SDK, Shinar, and the barest use of boto3 we can write.

    python bench/broker_sqs.py [--messages 3000] [--endpoint http://127.0.0.1:9324]

Without an endpoint it starts ElasticMQ. The bare client sends, receives and deletes ten at a time from as
many threads as Shinar has connections, with the same attributes; it decodes nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from babelqueue import BabelQueue
from babelqueue.sqs_transport import SqsTransport
from botocore.config import Config

from shinar.brokers import Outgoing, connect
from shinar.brokers.sqs import DEFAULT_CONNECTIONS
from shinar.envelope import Kind, build, encode, judge

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

URN = "urn:babel:orders:created"
DATA = {"order_id": 1042, "customer": "Zoë", "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}]}
#: What a worker reserves at a time.
BATCH = 100
ROUNDS = 3


def rate(count: int, action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def client(endpoint: str):
    return boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=endpoint,
        aws_access_key_id="x",
        aws_secret_access_key="y",
        config=Config(max_pool_connections=DEFAULT_CONNECTIONS, parameter_validation=False),
    )


def sdk(endpoint: str, count: int) -> tuple[float, float]:
    sqs = client(endpoint)
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    sqs.create_queue(QueueName=queue)
    app = BabelQueue(transport=SqsTransport(client=sqs), queue=queue)
    seen = 0

    @app.handler(URN)
    def handle(data: object, meta: object) -> None:
        nonlocal seen
        seen += 1

    publish = rate(count, lambda: [app.publish(URN, DATA) for _ in range(count)] and None)
    consume = rate(count, lambda: app.consume(max_messages=count, timeout=1.0))
    assert seen == count
    return publish, consume


def ours(endpoint: str, count: int) -> tuple[float, float]:
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    broker = connect(f"sqs://eu-west-1/{queue}?endpoint={endpoint}&access_key=x&secret_key=y")
    seen = 0

    def produce() -> None:
        broker.publish(queue, [Outgoing(encode(build(URN, DATA, queue=queue))) for _ in range(count)])

    def consume() -> None:
        nonlocal seen
        while seen < count:
            got = broker.reserve(queue, BATCH, 1)
            seen += sum(judge(delivery.body).kind is Kind.ACCEPTED for delivery in got)
            assert broker.ack(got) == ()

    rates = rate(count, produce), rate(count, consume)
    broker.close()
    return rates


def bare(endpoint: str, count: int) -> tuple[float, float]:
    sqs = client(endpoint)
    url = sqs.create_queue(QueueName=f"bench-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    body = encode(build(URN, DATA)).decode()
    attributes = SqsTransport._attributes(body)
    pool = ThreadPoolExecutor(DEFAULT_CONNECTIONS)

    def send(_: int) -> None:
        entries = [{"Id": str(n), "MessageBody": body, "MessageAttributes": attributes} for n in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)

    def take(_: int) -> int:
        found = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        ).get("Messages", [])
        if found:
            entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        return len(found)

    def consume() -> None:
        seen = 0
        while seen < count:
            seen += sum(pool.map(take, range(BATCH // 10)))

    rates = rate(count, lambda: list(pool.map(send, range(count // 10))) and None), rate(count, consume)
    pool.shutdown()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--endpoint", default="")
    asked = parser.parse_args()
    endpoint, server = asked.endpoint, asked.endpoint
    if not endpoint:
        from servers import acquire

        started = acquire("elasticmq")
        endpoint, server = f"http://127.0.0.1:{started.port}", started.version
    few = max(asked.messages // 10, 100)
    rounds = [(ours(endpoint, asked.messages), bare(endpoint, asked.messages)) for _ in range(ROUNDS)]
    rounds_sdk = [sdk(endpoint, few) for _ in range(2)]
    print(f"{server}; messages of {len(encode(build(URN, DATA)))} bytes; best of {ROUNDS} rounds, messages/s")
    print(f"{'':10}{'babelqueue':>12}{'bare boto3':>12}{'shinar':>12}{'to SDK':>9}{'to bare':>9}")
    for at, name in enumerate(("publish", "consume")):
        mine = max(one[at] for one, _ in rounds)
        plain = max(one[at] for _, one in rounds)
        theirs = max(one[at] for one in rounds_sdk)
        print(f"{name:10}{theirs:12.0f}{plain:12.0f}{mine:12.0f}{mine / theirs:8.1f}x{mine / plain:8.0%}")


if __name__ == "__main__":
    main()
