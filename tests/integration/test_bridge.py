"""`bridge` from broker to broker: bodies and headers arrive, the counts add up, nothing stays behind."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path

from cases import embedded, take
from servers import Server
from shinar.bridge import bridge
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode

__all__ = ["embedded"]


def bodies(count: int) -> list[bytes]:
    return [encode(build("urn:babel:orders:created", {"n": n, "text": "größe"})) for n in range(count)]


def test_through_five_brokers_and_back(
    live_server: Callable[..., Server], embedded: str, tmp_path: Path
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    line = [
        f"sqlite://{tmp_path}/start.db",
        live_server("redis").url,
        live_server("rabbitmq").url,
        live_server("elasticmq").url,
        live_server("kafka").url,
        embedded,
    ]
    sent = bodies(300)
    headers = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    brokers = [connect(url) for url in line]
    brokers[0].publish(queue, [Outgoing(body, headers) for body in sent])
    for source, target in itertools.pairwise(brokers):
        counts = bridge(source, queue, target, queue)
        assert (counts.received, counts.sent, counts.refused, counts.adds_up) == (300, 300, 0, True)
        assert source.reserve(queue, 1, 0.5) == []
    arrived = take(brokers[-1], queue, 300)
    assert sorted(d.body for d in arrived) == sorted(sent)
    assert all(dict(d.headers) == headers for d in arrived)
    for broker in brokers:
        broker.close()


def test_a_copy_leaves_the_source_as_it_is_and_a_limit_holds(tmp_path: Path) -> None:
    source, target = connect(f"sqlite://{tmp_path}/a.db"), connect(f"sqlite://{tmp_path}/b.db")
    sent = bodies(20)
    source.publish("q", [Outgoing(body) for body in sent])
    assert bridge(source, "q", target, "copy", copy=True).sent == 20
    assert bridge(source, "q", target, "part", limit=5).sent == 5
    assert [d.body for d in target.browse("copy")] == sent
    assert [d.body for d in target.browse("part")] == sent[:5]
    assert [d.body for d in source.browse("q")] == sent[5:]


def test_what_the_target_cannot_take_stays_and_is_counted(
    live_server: Callable[..., Server], tmp_path: Path
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    source, target = connect(f"sqlite://{tmp_path}/a.db"), connect(live_server("elasticmq").url)
    source.publish(queue, [Outgoing(b"\xff\xfe"), *map(Outgoing, bodies(3))])
    counts = bridge(source, queue, target, queue)
    assert (counts.received, counts.sent, counts.refused, counts.adds_up) == (4, 3, 1, True)
    assert [d.body for d in source.browse(queue)] == [b"\xff\xfe"]
