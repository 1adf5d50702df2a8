"""SQS, side by side in one run: the public SDK, Shinar, and the barest use of boto3 we can write.

    python bench/broker_sqs.py [--messages 10000] [--endpoint http://127.0.0.1:9324]

Without an endpoint it starts ElasticMQ. The bare client sends, receives and deletes ten at a time from as
many threads as Shinar has connections, with the same attributes; it decodes nothing. ElasticMQ keeps its
messages in memory, as it does unless told otherwise; the first messages only warm its JVM up.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

import boto3
from babelqueue import BabelQueue
from babelqueue.sqs_transport import SqsTransport
from botocore.config import Config

import _brokers
from _brokers import rate
from shinar.brokers import connect
from shinar.brokers.sqs.broker import DEFAULT_CONNECTIONS
from shinar.envelope import build, encode

#: What a worker reserves at a time.
BATCH = 100
REGION = "eu-west-1"
os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}


def client(endpoint: str):
    return boto3.client(
        "sqs",
        region_name=REGION,
        endpoint_url=endpoint,
        config=Config(max_pool_connections=DEFAULT_CONNECTIONS, parameter_validation=False),
    )


def sdk(endpoint: str, count: int) -> _brokers.Rates:
    """With the client it makes for itself."""
    queue = _brokers.queue_name()
    client(endpoint).create_queue(QueueName=queue)
    app = BabelQueue(transport=SqsTransport(region=REGION, endpoint=endpoint), queue=queue)
    return _brokers.sdk_whole(app, count)


def ours(endpoint: str, count: int) -> _brokers.Rates:
    queue = _brokers.queue_name()
    broker = connect(f"sqs://{REGION}/{queue}?endpoint={endpoint}")
    return _brokers.ours_whole(broker, queue, count, send=count, take=BATCH, wait_s=1)


def bare(endpoint: str, count: int) -> _brokers.Rates:
    sqs = client(endpoint)
    url = sqs.create_queue(QueueName=_brokers.queue_name())["QueueUrl"]
    body = encode(build(_brokers.URN, _brokers.DATA)).decode()
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
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--endpoint", default="")
    asked = parser.parse_args()
    endpoint, server = asked.endpoint, asked.endpoint
    if not endpoint:
        started = _brokers.acquire("elasticmq")
        endpoint, server = f"http://127.0.0.1:{started.port}", started.version
    count = asked.messages
    ours(endpoint, count)
    rounds = [(ours(endpoint, count), bare(endpoint, count)) for _ in range(_brokers.ROUNDS)]
    theirs = _brokers.best([sdk(endpoint, max(count // 10, 100)) for _ in range(2)])
    mine, plain = (_brokers.best([row[i] for row in rounds]) for i in range(2))
    _brokers.headline(server, count, len(encode(build(_brokers.URN, _brokers.DATA))), BATCH)
    _brokers.three("bare boto3", mine, plain, theirs)


if __name__ == "__main__":
    main()
