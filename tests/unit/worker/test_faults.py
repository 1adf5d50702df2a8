"""The worker on memory://, where a handler, a broker or we ourselves go wrong: it goes on or ends with an
error, never hangs, and its counts add up."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from shinar import Backoff, Handlers, Limits, Policy, Producer, Worker
from shinar.brokers import Broker, Outgoing, connect
from shinar.brokers.memory import MemoryBroker
from shinar.envelope import Message, build, encode
from shinar.errors import BodyTooLarge, BrokerUnavailable, ConfigError, ContractError, PublishFailed
from shinar.observe import JsonFormatter, Metrics, TextFormatter
from shinar.worker import Report, Retry, StopReason
from shinar.worker import run as run_module

URN = "urn:babel:orders:created"
ONCE = Policy(max_attempts=1)


class Bench:
    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}/orders"
        self.broker: Broker = connect(self.url)
        self.producer = Producer(self.url)

    def run(self, handler: object, **options: object) -> Report:
        limits = Limits(until_empty=True, empty_wait_s=0.1, max_time_s=20)
        options = {"policy": ONCE, "limits": limits, "stop_timeout_s": 1.0, **options}
        report = Worker(self.url, {URN: handler}, **options).run()  # type: ignore[arg-type,dict-item]  # any
        assert sum(report.counts.values()) == report.received
        return report

    def dead(self) -> list[dict]:
        return [json.loads(d.body) for d in self.broker.browse("orders.dlq")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- handlers


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_an_exception_without_a_readable_text_is_a_failure_like_any_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    def handle(message: Message) -> None:
        raise Unreadable

    caplog.set_level(level, logger="shinar.worker")
    bench.producer.send_many([(URN, {}), (URN, {})])
    assert bench.run(handle).counts == {"dead_letter": 2}
    (block, _) = [record["dead_letter"] for record in bench.dead()]
    assert (block["exception"], block["error"]) == (
        "Unreadable",
        "(its text cannot be read: __str__ raised RuntimeError)",
    )
    assert "failed: Unreadable: (its text cannot be read" in caplog.text


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_huge_error_text_is_cut_in_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter
) -> None:
    def handle(message: Message) -> None:
        raise ValueError("x" * 50_000_000)

    caplog.set_level("DEBUG", logger="shinar.worker")  # with the traceback
    bench.producer.send(URN, {})
    bench.run(handle)
    (record,) = [record for record in caplog.records if record.exc_info]
    assert 2_000 < len(formatter.format(record)) < 30_000


def test_patterns_take_what_no_exact_urn_does(bench: Bench) -> None:
    seen: list[tuple[str, str]] = []

    def noting(pattern: str) -> Callable[[Message], None]:
        return lambda message: seen.append((pattern, message.urn))

    handlers = Handlers()
    for pattern in ("*", "urn:babel:orders:*", URN, "urn:babel:orders:c*"):
        handlers.add(pattern, noting(pattern))
    for urn in (URN, "urn:babel:orders:cancelled", "urn:babel:orders:paid", "other", "urn:babel:orders:*"):
        bench.producer.send(urn, {})
    Worker(bench.url, handlers, limits=Limits(until_empty=True, empty_wait_s=0.1)).run()
    assert seen == [
        (URN, URN),
        ("urn:babel:orders:c*", "urn:babel:orders:cancelled"),
        ("urn:babel:orders:*", "urn:babel:orders:paid"),
        ("*", "other"),
        ("urn:babel:orders:*", "urn:babel:orders:*"),
    ]


@pytest.mark.parametrize("pattern", ["urn:*:created", "*:created"])
def test_a_star_in_the_middle_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        Handlers({pattern: print})


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_handler_that_leaves_the_program_has_failed_and_the_worker_goes_on(
    bench: Bench, error: BaseException
) -> None:
    def handle(message: Message) -> None:
        if message.data["n"] == 1:
            raise error

    bench.producer.send_many([(URN, {"n": n}) for n in range(4)])
    report = bench.run(handle)
    assert (report.counts, report.stopped_by) == ({"handled": 3, "dead_letter": 1}, StopReason.EMPTY)
    assert bench.dead()[0]["dead_letter"]["exception"] == type(error).__name__


@pytest.mark.parametrize("nested", [False, True])
def test_so_has_one_on_the_event_loop(bench: Bench, nested: bool) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def handle(message: Message) -> None:
        if message.data["n"] == 1:
            await (asyncio.create_task(leave()) if nested else leave())
        await asyncio.sleep(0.01)

    bench.producer.send_many([(URN, {"n": n}) for n in range(4)])
    report = bench.run(handle, concurrency=2)
    assert (report.counts, report.stopped_by) == ({"handled": 3, "dead_letter": 1}, StopReason.EMPTY)


def test_a_fault_of_ours_ends_the_worker_and_is_not_waited_for(bench: Bench, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(run_module, "process", broken)
    bench.producer.send(URN, {})
    with pytest.raises(ZeroDivisionError, match="ours"):
        bench.run(lambda message: None)


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), "5"])
def test_a_retry_after_no_number_of_seconds_is_a_failure(bench: Bench, delay: object) -> None:
    bench.producer.send(URN, {})
    assert bench.run(lambda message: Retry(delay)).counts == {"dead_letter": 1}  # type: ignore[arg-type]  # the point
    block = bench.dead()[0]["dead_letter"]
    assert block["exception"] == ContractError.__name__
    assert f"delay_s={delay!r}" in block["error"]


def test_a_retry_before_now_is_one_now_and_one_after_all_time_waits_long(bench: Bench) -> None:
    handled: list[int] = []

    def handle(message: Message) -> object:
        handled.append(message.attempts)
        return Retry(-5) if message.attempts == 0 else Retry(10**400)

    bench.producer.send(URN, {})
    assert bench.run(handle, policy=Policy(max_attempts=9)).counts == {"retry": 2}
    assert (handled, bench.broker.depth("orders").delayed) == ([0, 1], 1)


def test_a_backoff_without_a_limit_does_not_end_the_worker(bench: Bench) -> None:
    bench.producer.send(URN, {})
    policy = Policy(max_attempts=9, backoff=Backoff(1e308, 1e308))
    assert bench.run(lambda message: 1 / 0, policy=policy).counts == {"retry": 1}
    assert bench.broker.depth("orders").delayed == 1


# -- order


@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_messages_of_one_key_are_handled_one_after_another(bench: Bench, pause_s: float) -> None:
    bodies = [(encode(build(URN, {"n": n, "k": n % 7})), b"%d" % (n % 7)) for n in range(700)]
    for start in range(0, len(bodies), 50):
        bench.broker.publish("orders", [Outgoing(body, key=key) for body, key in bodies[start : start + 50]])
    bench.producer.send_many([(URN, {"n": n, "k": None}) for n in range(100)])
    seen: dict[int | None, list[int]] = defaultdict(list)
    running: Counter[int | None] = Counter()
    together: list[int] = []
    lock = threading.Lock()

    def handle(message: Message) -> None:
        key = message.data["k"]
        with lock:
            running[key] += 1
            together.append(sum(running.values()))
            assert key is None or running[key] == 1
        time.sleep(pause_s)
        with lock:
            seen[key].append(message.data["n"])
            running[key] -= 1

    assert bench.run(handle, concurrency=4).counts == {"handled": 800}
    assert all(seen[key] == list(range(key, 700, 7)) for key in range(7))
    assert max(together) > 1 or not pause_s


def test_what_waits_for_its_key_is_handed_back_on_a_stop(bench: Bench) -> None:
    bench.broker.publish("orders", [Outgoing(encode(build(URN, {})), key=b"k") for _ in range(20)])
    started = threading.Event()

    def handle(message: Message) -> None:
        started.set()
        time.sleep(0.2)

    worker = Worker(bench.url, {URN: handle}, concurrency=4)
    threading.Thread(target=lambda: started.wait() and worker.stop()).start()
    report = worker.run()
    assert report.received == sum(report.counts.values())
    depth = bench.broker.depth("orders")
    assert (depth.ready, depth.reserved) == (20 - report.count("handled"), 0)
    assert report.count("handled") < 20


# -- settling


def test_only_what_was_done_is_counted(bench: Bench, monkeypatch) -> None:
    """A dead letter that was not written is no dead letter, and a lapsed one was not handled."""
    plain = MemoryBroker.move

    def partly(self, queue, copies):
        plain(self, queue, copies[:1])
        raise PublishFailed("disk full", total=len(copies), unconfirmed=tuple(range(1, len(copies))))

    monkeypatch.setattr(MemoryBroker, "move", partly)
    bench.broker.publish("orders", [Outgoing(b"poison")] * 4)
    metrics = Metrics()
    report = bench.run(print, metrics=metrics, limits=Limits(max_messages=4))
    done = len(bench.dead())
    assert 1 <= done < 4
    assert report.counts == {"dead_letter": done, "unsettled": 4 - done}
    assert metrics.value("shinar_outcomes_total", outcome="dead_letter") == done
    assert bench.broker.depth("orders").reserved == 4 - done


def test_lapsed_is_counted_instead(bench: Bench, monkeypatch) -> None:
    bench.producer.send_many([(URN, {"n": n}) for n in range(3)])
    plain = MemoryBroker.ack
    monkeypatch.setattr(MemoryBroker, "ack", lambda self, given: (*plain(self, given[1:]), given[0]))
    report = bench.run(lambda message: None, limits=Limits(max_messages=3))
    assert report.count("lapsed") >= 1
    assert report.count("handled") + report.count("lapsed") == 3


def test_a_broker_that_goes_away_while_settling_leaves_them_unsettled(bench: Bench, monkeypatch) -> None:
    def gone(self, *_):
        raise BrokerUnavailable("connection reset", broker="memory")

    bench.producer.send(URN, {})
    bench.broker.publish("orders", [Outgoing(b"poison")])
    monkeypatch.setattr(MemoryBroker, "ack", gone)
    monkeypatch.setattr(MemoryBroker, "move", gone)
    report = bench.run(lambda message: None, limits=Limits(max_messages=2))
    assert report.counts == {"unsettled": 2}


def test_what_is_in_hand_when_a_lost_broker_is_given_up_is_counted(bench: Bench, monkeypatch) -> None:
    bench.producer.send_many([(URN, {"n": n}) for n in range(3)])
    release = threading.Event()
    worker = Worker(bench.url, {URN: lambda message: release.wait(20) and None})
    plain = MemoryBroker.reserve

    def once(self, *args):
        monkeypatch.setattr(MemoryBroker, "reserve", gone)
        return plain(self, *args)

    def gone(self, *_):
        worker.stop()
        raise BrokerUnavailable("connection reset", broker="memory")

    monkeypatch.setattr(MemoryBroker, "reserve", once)
    report = worker.run()
    release.set()
    assert (report.counts, report.received) == ({"unsettled": report.received}, report.received)


def limit_bodies(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    plain = MemoryBroker.move

    def move(self, queue, copies):
        for _, copy in copies:
            if len(copy.body) > most:
                raise BodyTooLarge(len(copy.body), most, broker="memory", queue=queue)
        return plain(self, queue, copies)

    monkeypatch.setattr(MemoryBroker, "move", move)


def test_one_dead_letter_that_is_too_large_does_not_hold_up_the_others(
    bench: Bench, monkeypatch, caplog
) -> None:
    limit_bodies(monkeypatch, 2000)
    bench.producer.send_many([(URN, {"n": n, "x": "x" * (3000 if n == 2 else 1)}) for n in range(6)])
    report = bench.run(lambda message: 1 / 0, limits=Limits(max_messages=6))
    assert report.counts == {"dead_letter": 5, "unsettled": 1}
    assert sorted(d["data"]["n"] for d in bench.dead()) == [0, 1, 3, 4, 5]
    assert [r.message for r in caplog.records if "can never take this message" in r.message]


@pytest.mark.parametrize(("room", "error", "exception"), [(500, 200, "ValueError"), (230, None, None)])
def test_a_dead_letter_says_less_about_the_error_where_that_makes_it_fit(
    bench: Bench, monkeypatch, room: int, error: int | None, exception: str | None
) -> None:
    def fail(message: Message) -> None:
        raise ValueError("e" * 3000)

    sent = bench.producer.send(URN, {"n": 1})
    limit_bodies(monkeypatch, len(encode(sent)) + room)
    assert bench.run(fail).counts == {"dead_letter": 1}
    block = bench.dead()[0]["dead_letter"]
    assert (block["reason"], block["attempts"], block["original_queue"]) == ("failed", 1, "orders")
    assert (block["error"], block["exception"]) == ("e" * error if error else None, exception)


def test_the_log_says_once_that_a_message_can_never_be_written(bench: Bench, monkeypatch, caplog) -> None:
    limit_bodies(monkeypatch, 10)
    bench.url += "?lease_s=0.1"
    bench.producer.send(URN, {})
    report = bench.run(lambda message: 1 / 0, limits=Limits(max_messages=3))
    assert report.counts == {"unsettled": 3}
    assert len([r for r in caplog.records if "can never take this message" in r.message]) == 1
