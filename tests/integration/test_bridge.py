"""`bridge` from broker to broker: bodies and headers arrive, the counts add up, nothing stays behind."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cases import embedded, take
from servers import Server, with_queue
from shinar.bridge import BATCH, BridgePlan, BrokerQueue, Counts, bridge
from shinar.brokers import Broker, Outgoing, connect, parse
from shinar.cli.commands.bridge import register, run, same_place
from shinar.clock import PinnedClock
from shinar.envelope import build, encode
from shinar.errors import (
    AccessDenied,
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    PublishFailed,
    QueueMissing,
)

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
    assert last(bridge(source, "q", target, "copy", BridgePlan(copy=True, limit=12))).sent == 12
    assert last(bridge(source, "q", target, "copy", BridgePlan(copy=True, skip=12))).sent == 8
    assert last(bridge(source, "q", target, "part", BridgePlan(limit=5))).sent == 5
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
    target.traits = dataclasses.replace(target.traits, binary=False)  # type: ignore[misc]  # a smaller target than there is
    started_s = clock.monotonic_s()
    sizes, before = [], 0
    for counts in bridge(source, "q", target, "q", BridgePlan(rate_per_s=10.0, limit=401), clock=clock):
        sizes.append(counts.received - before)
        before = counts.received
    assert (counts.received, counts.sent, counts.refused, counts.lapsed) == (401, 400, 1, 0)
    assert max(sizes) == 5
    assert 39.0 <= clock.monotonic_s() - started_s <= 41.0


@pytest.mark.parametrize(
    "odd",
    [Outgoing(b""), Outgoing(b'{"job":"\x01"}'), Outgoing(b"{}", {"my header": "v"})],
    ids=["empty", "control character", "header name"],
)
def test_what_only_the_target_can_tell_is_refused_as_well(
    live_server: Callable[..., Server], odd: Outgoing
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    source, target = connect(f"memory://{queue}"), connect(live_server("elasticmq").url)
    sent = bodies(5)
    source.publish(queue, [*map(Outgoing, sent[:2]), odd, *map(Outgoing, sent[2:])])
    counts = last(bridge(source, queue, target, queue))
    assert (counts.received, counts.sent, counts.refused, counts.stopped) == (6, 5, 1, "")
    assert counts.refusal
    assert sorted(d.body for d in take(target, queue, 5)) == sorted(sent)
    assert [d.body for d in source.browse(queue)] == [odd.body]


@pytest.mark.parametrize("error", [QueueMissing, AccessDenied])
def test_what_is_wrong_with_the_whole_target_ends_it(error: type[BrokerError]) -> None:
    source, target = connect("memory://" + uuid.uuid4().hex), connect("memory://" + uuid.uuid4().hex)
    source.publish("q", [Outgoing(body) for body in bodies(3)])
    with pytest.raises(error):
        list(bridge(source, "q", Away(target, error), "q"))
    assert source.depth("q").ready == 3


def test_what_was_confirmed_before_an_error_is_not_sent_again() -> None:
    source, target = connect("memory://" + uuid.uuid4().hex), connect("memory://" + uuid.uuid4().hex)
    sent = bodies(6)
    source.publish("q", [Outgoing(body) for body in sent])
    steps = bridge(source, "q", Half(target), "q")
    assert (next(steps).sent, [d.body for d in target.browse("q")]) == (3, sent[:3])
    with pytest.raises(BrokerUnavailable):
        next(steps)
    assert [d.body for d in source.browse("q")] == sent[3:]


SMALL = 3000


def small(target: Broker) -> Broker:
    target.traits = dataclasses.replace(target.traits, max_body_bytes=SMALL)  # type: ignore[misc]  # a smaller target than there is
    return target


def with_a_large_one(count: int, at: int) -> list[bytes]:
    sent = bodies(count)
    sent[at] = encode(build("urn:babel:orders:created", {"text": "x" * 2 * SMALL}))
    return sent


@pytest.mark.parametrize("server", ["kafka", "elasticmq"])
def test_a_log_or_a_group_is_not_read_past_a_refused_message(
    live_server: Callable[..., Server], server: str, tmp_path: Path
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}" + (".fifo" if server == "elasticmq" else "")
    sent = with_a_large_one(30, 3)
    source = connect(with_queue(live_server(server).url, queue))
    source.publish(queue, [Outgoing(body, key=b"group") for body in sent])
    target = small(connect("memory://" + uuid.uuid4().hex))
    for expected in (3, 0):
        counts = last(bridge(source, queue, target, "q"))
        assert (counts.sent, counts.refused, counts.adds_up) == (expected, 1, True)
        assert "--refused-to" in counts.stopped
    left = BrokerQueue(connect(f"sqlite://{tmp_path}/left.db"), "refused")
    counts = last(bridge(source, queue, target, "q", refused_to=left))
    assert (counts.received, counts.sent, counts.refused, counts.stopped) == (27, 26, 1, "")
    assert [d.body for d in target.browse("q")] == sent[:3] + sent[4:]
    assert [d.body for d in left.broker.browse("refused")] == [sent[3]]
    assert list(bridge(source, queue, target, "q")) == []
    source.close()


def test_dead_letters_on_their_way_back_are_not_taken_for_repeats(live_server: Callable[..., Server]) -> None:
    """A FIFO queue confirms and discards what has the id of something it had in the last five minutes."""
    queue = f"t-{uuid.uuid4().hex[:12]}.fifo"
    target = connect(with_queue(live_server("elasticmq").url, queue))
    source = connect("memory://" + uuid.uuid4().hex)
    sent = bodies(3)
    target.publish(queue, [Outgoing(body, key=b"g") for body in sent])
    target.ack(take(target, queue, 3))
    source.publish("dead", [Outgoing(body, key=b"g") for body in sent])
    assert last(bridge(source, "dead", target, queue, BridgePlan(copy=True))).sent == 3
    # The same from the same place again is a repeat, as after a crash.
    assert last(bridge(source, "dead", target, queue)).sent == 3
    arrived = take(target, queue, 3)
    assert [d.body for d in arrived] == sent
    target.ack(arrived)
    assert target.reserve(queue, 10, 1) == []


def test_a_pause_is_no_credit_for_a_rate() -> None:
    clock = PinnedClock(1_794_000_000.0)
    source = connect("memory://" + uuid.uuid4().hex, clock=clock)
    target = connect("memory://" + uuid.uuid4().hex, clock=clock)
    source.publish("q", [Outgoing(body) for body in bodies(20)])
    steps = bridge(source, "q", target, "q", BridgePlan(rate_per_s=10.0, limit=20), clock=clock)
    assert next(steps).sent == 5
    clock.advance(60)
    started_s = clock.monotonic_s()
    assert last(steps).sent == 20
    assert clock.monotonic_s() - started_s >= 1.4


def test_a_stop_ends_the_pause_of_a_slow_rate() -> None:
    source, target = connect("memory://" + uuid.uuid4().hex), connect("memory://" + uuid.uuid4().hex)
    source.publish("q", [Outgoing(body) for body in bodies(2)])
    asked = threading.Event()
    threading.Timer(0.3, asked.set).start()
    started_s = time.monotonic()
    assert last(bridge(source, "q", target, "q", BridgePlan(rate_per_s=0.05), stop=asked.is_set)).sent == 1
    assert time.monotonic() - started_s < 5


def test_a_short_lease_is_renewed_while_the_source_is_waited_for() -> None:
    source = connect(f"memory://{uuid.uuid4().hex}?lease_s=0.6")
    target = small(connect("memory://" + uuid.uuid4().hex))
    source.publish("q", [Outgoing(body) for body in with_a_large_one(4, 0)])
    counts = last(bridge(source, "q", target, "q", BridgePlan(limit=40)))
    assert (counts.received, counts.sent, counts.refused) == (4, 3, 1)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0.0])
def test_a_rate_is_a_number(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        BridgePlan(rate_per_s=rate)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sqlite://a.db?queue=q", "sqlite://./a.db?queue=q&lease_s=30", True),
        ("sqlite://a.db?queue=q", "sqlite://b.db?queue=q", False),
        ("sqlite://a.db?queue=q", "sqlite://a.db?queue=q&prefix=other_", False),
        ("redis://localhost/q", "redis://127.0.0.1:6379/0/q?lease_s=5", True),
        ("redis://localhost/q", "redis://localhost/1/q", False),
        ("redis://localhost/q", "redis://localhost/q?layout=laravel", False),
        ("amqp://guest:guest@localhost/q", "amqp://LOCALHOST:5672/%2F/q", True),
        ("amqp://localhost/q", "amqp://localhost/other/q", False),
        ("kafka://a:9092,b:9092/q", "kafka://b/q?group=x", True),
        ("kafka://a/q", "kafka://a/r", False),
        ("sqs://eu-west-1/q?endpoint=http://a", "sqs://eu-west-1/q?endpoint=http://b", False),
        ("memory://a/q", "memory://b/q", False),
    ],
)
def test_the_source_itself_is_no_target_however_it_is_written(one: str, other: str, same: bool) -> None:
    first, second = parse(one), parse(other)
    assert same_place(first, first.queue, second, second.queue) is same


def test_the_command_sets_refused_messages_aside(
    live_server: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = f"t-{uuid.uuid4().hex[:12]}"
    connect(f"sqlite://{tmp_path}/a.db").publish(queue, [Outgoing(b"\xff"), *map(Outgoing, bodies(3))])
    url, aside = f"sqlite://{tmp_path}/a.db?queue={queue}", f"sqlite://{tmp_path}/left.db?queue=r"
    target = live_server("elasticmq").url
    with pytest.raises(ConfigError, match="same queue as the source"):
        command(url, f"sqlite://{tmp_path}/../{tmp_path.name}/a.db?queue={queue}&lease_s=9")
    for rate in ("nan", "inf"):
        with pytest.raises(ConfigError, match="rate"):
            command(url, target, "--rate", rate)
    with pytest.raises(ConfigError, match="refused-to"):
        command(url, target, "--refused-to", url)
    assert command(url, target, "--refused-to", aside, "--json") == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"received": 4, "sent": 3, "refused": 1, "lapsed": 0}
    assert "not UTF-8 text" in shown.err
    assert connect(url).depth(queue).ready == 0
    assert [d.body for d in connect(aside).browse("r")] == [b"\xff"]


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return run(parser.parse_args(["bridge", *words]))


class Half:
    """A target whose server goes away in the middle of a batch."""

    def __init__(self, target: Broker) -> None:
        self.traits, self._target = target.traits, target
        self._answers = True

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        if not self._answers:
            raise BrokerUnavailable("gone", broker="memory", queue=queue)
        self._answers = False
        half = len(messages) // 2
        self._target.publish(queue, messages[:half])
        raise PublishFailed("cut off", total=len(messages), unconfirmed=tuple(range(half, len(messages))))


class Away:
    """A target that does not answer any more."""

    def __init__(self, target: Broker, error: type[BrokerError] = BrokerUnavailable) -> None:
        self.traits, self._error = target.traits, error

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        raise self._error("gone", broker="sqlite", queue=queue)
