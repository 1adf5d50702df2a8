"""`bridge` from broker to broker: bodies and headers arrive, the counts add up, nothing stays behind."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cases import embedded, take
from servers import Server
from shinar.bridge import BATCH, Counts, Plan, bridge
from shinar.brokers import Broker, Outgoing, connect
from shinar.clock import PinnedClock
from shinar.envelope import build, encode
from shinar.errors import BrokerUnavailable

__all__ = ["embedded"]


def last(steps: Iterator[Counts]) -> Counts:
    return list(steps)[-1]


def bodies(count: int) -> list[bytes]:
    return [encode(build("urn:babel:orders:created", {"n": n, "text": "größe"})) for n in range(count)]


def test_from_broker_to_broker(live_server: Callable[..., Server], embedded: str, tmp_path: Path) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    line = [
        f"sqlite://{tmp_path}/start.db",
        live_server("redis").url,
        live_server("rabbitmq").url,
        live_server("elasticmq").url,
        live_server("kafka").url,
        live_server("postgresql").url,
        live_server("pulsar").url,
        live_server("artemis").url,
        live_server("servicebus").url,
        live_server("mariadb").url,
        embedded,
    ]
    sent = bodies(300)
    headers = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    brokers = [connect(url) for url in line]
    brokers[0].publish(queue, [Outgoing(body, headers) for body in sent])
    for source, target in itertools.pairwise(brokers):
        counts = last(bridge(source, queue, target, queue))
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
    assert last(bridge(source, "q", target, "copy", Plan(copy=True, limit=12))).sent == 12
    assert last(bridge(source, "q", target, "copy", Plan(copy=True, skip=12))).sent == 8
    assert last(bridge(source, "q", target, "part", Plan(limit=5))).sent == 5
    assert [d.body for d in target.browse("copy")] == sent
    assert [d.body for d in target.browse("part")] == sent[:5]
    assert [d.body for d in source.browse("q")] == sent[5:]


def test_what_the_target_cannot_take_stays_and_is_counted(
    live_server: Callable[..., Server], tmp_path: Path
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    source, target = connect(f"sqlite://{tmp_path}/a.db"), connect(live_server("elasticmq").url)
    source.publish(queue, [Outgoing(b"\xff\xfe"), *map(Outgoing, bodies(3))])
    counts = last(bridge(source, queue, target, queue))
    assert (counts.received, counts.sent, counts.refused, counts.adds_up) == (4, 3, 1, True)
    assert [d.body for d in source.browse(queue)] == [b"\xff\xfe"]


def test_one_message_the_target_refuses_does_not_hold_up_the_others(
    live_server: Callable[..., Server], tmp_path: Path
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    source = connect(f"sqlite://{tmp_path}/a.db")
    target = connect(f"{live_server('redis').url}?layout=laravel")
    first, bypassed, third = bodies(3)
    source.publish(queue, [Outgoing(first), Outgoing(bypassed, {"bq-replay-bypass": "1"}), Outgoing(third)])
    counts = last(bridge(source, queue, target, queue))
    assert (counts.received, counts.sent, counts.refused) == (3, 2, 1)
    assert [d.body for d in source.browse(queue)] == [bypassed]
    assert [d.body for d in target.browse(queue)] == [first, third]


def test_whatever_ends_it_the_rest_is_handed_back(tmp_path: Path) -> None:
    source, target = connect(f"sqlite://{tmp_path}/a.db"), connect(f"sqlite://{tmp_path}/b.db")
    sent = bodies(2 * BATCH + 7)
    source.publish("q", [Outgoing(body) for body in sent])
    steps = bridge(source, "q", target, "q", stop=lambda: True)
    assert [counts.sent for counts in steps] == [BATCH]
    gone = Away(target)
    with pytest.raises(BrokerUnavailable):
        list(bridge(source, "q", gone, "q"))
    depth = source.depth("q")
    assert (depth.ready, depth.reserved) == (BATCH + 7, 0)
    assert last(bridge(source, "q", target, "q")).sent == BATCH + 7
    assert sorted(d.body for d in target.browse("q")) == sorted(sent)


def test_a_rate_is_even_and_refused_messages_are_held_to_the_end(tmp_path: Path) -> None:
    """Forty seconds by its clock, at ten a second; the source's leases last six."""
    clock = PinnedClock(1_794_000_000.0)
    source = connect(f"memory://{uuid.uuid4().hex}?lease_s=6", clock=clock)
    target = connect("memory://" + uuid.uuid4().hex, clock=clock)
    source.publish("q", [Outgoing(b"\xff"), *map(Outgoing, bodies(400))])
    target.traits = dataclasses.replace(target.traits, binary=False)  # type: ignore[misc]
    started_s = clock.monotonic_s()
    sizes, before = [], 0
    for counts in bridge(source, "q", target, "q", Plan(rate_per_s=10.0, limit=401), clock=clock):
        sizes.append(counts.received - before)
        before = counts.received
    assert (counts.received, counts.sent, counts.refused, counts.lapsed) == (401, 400, 1, 0)
    assert max(sizes) == 5
    assert 39.0 <= clock.monotonic_s() - started_s <= 41.0


class Away:
    """A target that does not answer any more."""

    def __init__(self, target: Broker) -> None:
        self.traits = target.traits

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        raise BrokerUnavailable("gone", broker="sqlite", queue=queue)
