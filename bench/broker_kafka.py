"""Kafka: Shinar beside the public SDK and beside the bare client, in one run on one server.

    python bench/broker_kafka.py [messages]

Bare is the fastest use of confluent-kafka we can write that does the same work: confirmed records with
the same headers; consumed in batches, value, key and headers read, offsets committed batch by batch.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from servers import acquire
from shinar.brokers import Outgoing, connect
from shinar.brokers.projection import facts_of
from shinar.envelope import build, encode

BATCH = 500


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    server = acquire("kafka")
    print(f"Kafka {server.version}, {count} messages of {len(bodies(1)[0])} bytes, batches of {BATCH}")
    peer_count = max(200, count // 50)
    report(
        "publish",
        {"shinar": ours_publish, "bare": bare_publish, "babelqueue": peer_publish},
        server.url,
        count,
        peer_count,
    )
    report(
        "consume",
        {"shinar": ours_consume, "bare": bare_consume, "babelqueue": peer_consume},
        server.url,
        count,
        peer_count,
    )


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
        f"babelqueue {rates['babelqueue']:,.0f}/s (x{ours / rates['babelqueue']:.0f})"
    )


def bodies(count: int) -> list[bytes]:
    return [
        encode(build("urn:babel:orders:created", {"n": n, "items": [1, 2, 3]}, queue="orders"))
        for n in range(count)
    ]


def topic_on(url: str) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": url.split("//")[1].split("/")[0]})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    time.sleep(1)
    return name


def hosts(url: str) -> str:
    return url.split("//")[1].split("/")[0]


def ours_publish(url: str, count: int, topic: str = "") -> float:
    topic = topic or topic_on(url)
    broker = connect(url)
    broker.publish(topic, [Outgoing(b"{}")])
    messages = [Outgoing(body) for body in bodies(count)]
    start = time.perf_counter()
    for at in range(0, count, 5_000):
        broker.publish(topic, messages[at : at + 5_000])
    took_s = time.perf_counter() - start
    broker.close()
    return took_s


def bare_publish(url: str, count: int) -> float:
    topic = topic_on(url)
    producer = Producer(
        {"bootstrap.servers": hosts(url), "enable.idempotence": True, "acks": "all", "linger.ms": 5}
    )
    failed = []
    producer.produce(topic, b"{}")
    producer.flush()
    values = bodies(count)
    start = time.perf_counter()
    for at in range(0, count, 5_000):
        for value in values[at : at + 5_000]:
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


def peer_publish(url: str, count: int) -> float:
    from babelqueue.kafka_transport import KafkaTransport

    topic = topic_on(url)
    peer = KafkaTransport(url)
    texts = [body.decode() for body in bodies(count)]
    peer.publish_settle(topic, texts[0])
    start = time.perf_counter()
    for text in texts:
        # Its plain publish is not confirmed; this is the one that is.
        peer.publish_settle(topic, text)
    return time.perf_counter() - start


def ours_consume(url: str, count: int) -> float:
    topic = topic_on(url)
    ours_publish(url, count, topic)
    broker = connect(f"{url}?group=bench-{uuid.uuid4().hex[:8]}&retry_tiers_ms=off")
    broker.ack(broker.reserve(topic, 1, 10))
    start = time.perf_counter()
    seen = 0
    while seen < count:
        got = broker.reserve(topic, BATCH, 5)
        seen += len(got)
        broker.ack(got)
    took_s = time.perf_counter() - start
    broker.close()
    return took_s


def bare_consume(url: str, count: int) -> float:
    topic = topic_on(url)
    ours_publish(url, count, topic)
    consumer = Consumer(
        {"bootstrap.servers": hosts(url), "group.id": f"bench-{uuid.uuid4().hex[:8]}",
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


def peer_consume(url: str, count: int) -> float:
    from babelqueue.kafka_transport import KafkaTransport

    topic = topic_on(url)
    ours_publish(url, count, topic)
    peer = KafkaTransport(url, group_id=f"bench-{uuid.uuid4().hex[:8]}")
    while (first := peer.pop(topic, 10)) is None:
        pass
    peer.ack(first)
    start = time.perf_counter()
    for _ in range(count):
        peer.ack(peer.pop(topic, 10))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
