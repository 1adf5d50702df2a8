"""Kafka: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_kafka.py [messages]

Bare is the fastest use of confluent-kafka we can write that does the same work: confirmed records with
the same headers; consumed in batches, value, key and headers read, offsets committed batch by batch.
"""

from __future__ import annotations

import sys
import time

from babelqueue.kafka_transport import KafkaTransport
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import _brokers
from shinar.brokers.projection import facts_of

BATCH = 500
#: Records handed to one publish.
SEND = 5_000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    server = _brokers.acquire("kafka")
    _brokers.headline(f"Kafka {server.version}", count, len(_brokers.bodies(1)[0]), BATCH)
    few = max(200, count // 50)
    publish = {
        "shinar": lambda url, n: _brokers.ours_publish(url, topic_on(url), n, send=SEND),
        "bare": bare_publish,
        # Its plain publish is not confirmed; this is the one that is.
        "babelqueue": lambda url, n: _brokers.sdk_publish(
            KafkaTransport(url), topic_on(url), n, by="publish_settle"
        ),
    }
    consume = {
        "shinar": lambda url, n: _brokers.ours_consume(
            f"{url}?group={_brokers.queue_name()}&retry_tiers_ms=off", filled(url, n), n, take=BATCH
        ),
        "bare": bare_consume,
        "babelqueue": lambda url, n: _brokers.sdk_consume(
            KafkaTransport(url, group_id=_brokers.queue_name()), filled(url, n), n
        ),
    }
    _brokers.compare("publish", publish, server.url, count, few)
    _brokers.compare("consume", consume, server.url, count, few)


def hosts(url: str) -> str:
    return url.split("//")[1].split("/")[0]


def topic_on(url: str) -> str:
    name = _brokers.queue_name()
    admin = AdminClient({"bootstrap.servers": hosts(url)})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    time.sleep(1)
    return name


def filled(url: str, count: int) -> str:
    topic = topic_on(url)
    _brokers.ours_publish(url, topic, count, send=SEND)
    return topic


def bare_publish(url: str, count: int) -> float:
    topic = topic_on(url)
    producer = Producer(
        {"bootstrap.servers": hosts(url), "enable.idempotence": True, "acks": "all", "linger.ms": 5}
    )
    failed = []
    producer.produce(topic, b"{}")
    producer.flush()
    values = _brokers.bodies(count)
    start = time.perf_counter()
    for at in range(0, count, SEND):
        for value in values[at : at + SEND]:
            # The contract's headers come out of the body, for whoever writes this without Shinar too.
            facts = facts_of(value)
            headers = [
                ("bq-job", facts.urn.encode()),
                ("bq-trace-id", facts.trace_id.encode()),
                ("bq-message-id", facts.id.encode()),
                ("bq-schema-version", b"1"),
                ("bq-source-lang", facts.lang.encode()),
                ("bq-attempts", b"%d" % facts.attempts),
            ]
            producer.produce(
                topic,
                value,
                headers=headers,
                timestamp=facts.created_at,
                on_delivery=lambda err, _msg: err and failed.append(err),
            )
        producer.flush()
    assert not failed
    return time.perf_counter() - start


def bare_consume(url: str, count: int) -> float:
    topic = filled(url, count)
    consumer = Consumer(
        {"bootstrap.servers": hosts(url), "group.id": _brokers.queue_name(),
         "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.subscribe([topic])
    seen = len(consumer.consume(1, 10))
    kept = []
    start = time.perf_counter()
    while seen <= count:
        got = consumer.consume(BATCH, 0) or consumer.consume(1, 5)
        kept = [
            (
                m.value(),
                m.key(),
                {name: value.decode() for name, value in m.headers() or ()},
                m.partition(),
                m.offset(),
            )
            for m in got
            if m.error() is None
        ]
        seen += len(kept)
        consumer.commit(got[-1], asynchronous=True)
    took_s = time.perf_counter() - start
    consumer.close()
    return took_s


if __name__ == "__main__":
    main()
