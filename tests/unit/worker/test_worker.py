"""The worker on memory://: every way a delivery can end, and every way a run can stop."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid

import msgspec
import pytest

from shinar import Backoff, Handlers, Limits, Policy, Producer, Worker
from shinar.brokers import Broker, Outgoing, connect
from shinar.envelope import Message, build, encode
from shinar.errors import BrokerError, BrokerUnavailable, ConfigError, ContractError, HandlerTimeout
from shinar.idempotency import MemoryStore
from shinar.observe import Metrics
from shinar.worker import (
    Context,
    GiveUp,
    Report,
    Retry,
    StopReason,
    bypass_external_effects,
    current,
    idempotent,
    is_replay,
    metrics_step,
    rate_limit,
    timeout,
)

URN = "urn:babel:orders:created"
QUICK = Policy()
EMPTY = Limits(until_empty=True, empty_wait_s=0.1)


class Bench:
    """A queue, a producer and a way to run a worker until it is empty."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}/orders"
        self.broker: Broker = connect(self.url)
        self.producer = Producer(self.url)

    def run(self, handlers: object, **options: object):
        options = {"policy": QUICK, "limits": EMPTY, **options}
        return Worker(self.url, handlers, **options).run()  # type: ignore[arg-type]  # any

    def put(self, *bodies: bytes, **fields: object) -> None:
        self.broker.publish("orders", [Outgoing(body, **fields) for body in bodies])  # type: ignore[arg-type]  # any

    def dead(self) -> list[dict]:
        return [json.loads(d.body) for d in self.broker.browse("orders.dlq")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_messages_are_handled_and_gone(bench: Bench) -> None:
    got: list[Message] = []
    sent = bench.producer.send_many([(URN, {"n": n}) for n in range(1000)])
    report = bench.run({URN: got.append})
    assert [m.data for m in got] == [m.data for m in sent]
    assert (report.received, report.counts, report.stopped_by) == (1000, {"handled": 1000}, StopReason.EMPTY)
    assert bench.broker.depth("orders").ready == 0


def test_a_failing_handler_is_retried_and_then_dead_lettered(bench: Bench) -> None:
    attempts: list[int] = []

    def fail(message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError(f"order {message.data['n']} is broken")

    sent = bench.producer.send(URN, {"n": 7}, headers={"traceparent": "x"})
    report = bench.run({URN: fail})
    assert attempts == [0, 1, 2]
    assert report.counts == {"retry": 2, "dead_letter": 1}
    (dead,) = bench.dead()
    block = dead["dead_letter"]
    assert (block["reason"], block["exception"], block["error"]) == (
        "failed",
        "ValueError",
        "order 7 is broken",
    )
    assert (block["attempts"], dead["attempts"], block["original_queue"]) == (3, 3, "orders")
    assert (dead["meta"]["id"], dead["trace_id"]) == (sent.id, sent.trace_id)
    (delivery,) = bench.broker.browse("orders.dlq")
    assert delivery.headers == {"traceparent": "x"}


def test_drop_happens_only_when_asked_for(bench: Bench) -> None:
    bench.producer.send(URN, {})
    report = bench.run({URN: lambda m: 1 / 0}, policy=Policy(max_attempts=1, on_exhausted="drop"))
    assert report.counts == {"drop": 1}
    assert bench.dead() == []


@pytest.mark.parametrize(
    ("strategy", "counts"),
    [("fail", {"retry": 2, "dead_letter": 1}), ("delete", {"drop": 1}), ("dead_letter", {"dead_letter": 1})],
)
def test_unknown_urns(bench: Bench, strategy: str, counts: dict) -> None:
    bench.producer.send("urn:babel:nobody:cares", {})
    report = bench.run({URN: print}, policy=Policy(on_unknown_urn=strategy))  # type: ignore[arg-type]  # a str
    assert report.counts == counts
    assert [d["dead_letter"]["reason"] for d in bench.dead()] == ["unknown_urn"] * (strategy != "delete")


def test_an_unknown_urn_can_wait_for_somebody_who_knows_it(bench: Bench) -> None:
    bench.producer.send("urn:babel:later:thing", {})
    policy = Policy(on_unknown_urn="release", unknown_urn_release_delay_s=60)
    assert bench.run({URN: print}, policy=policy).counts == {"release": 1}
    assert bench.broker.depth("orders").delayed == 1


def test_poison_is_kept_byte_for_byte_and_never_handled(bench: Bench) -> None:
    handled: list[Message] = []
    bench.put(b"\xff\xfe", b"not json", b'{"job":5}')
    report = bench.run({URN: handled.append})
    assert (report.counts, handled) == ({"dead_letter": 3}, [])
    assert sorted(d["dead_letter"]["reason"] for d in bench.dead()) == ["poison"] * 3


def test_a_body_of_another_version_is_quarantined_raw(bench: Bench) -> None:
    body = encode(build(URN, {})).replace(b'"schema_version":1', b'"schema_version":2')
    bench.put(body)
    handled: list[Message] = []
    assert bench.run({URN: handled.append}).counts == {"dead_letter_raw": 1}
    assert handled == []
    assert [d.body for d in bench.broker.browse("orders.dlq")] == [body]


def test_a_handler_can_ask_for_a_retry_or_give_up(bench: Bench) -> None:
    bench.producer.send("urn:later", {})
    bench.producer.send("urn:never", {})
    handlers = {"urn:later": lambda m: Retry(60), "urn:never": lambda m: GiveUp("no such customer")}
    assert bench.run(handlers).counts == {"retry": 1, "dead_letter": 1}
    assert bench.broker.depth("orders").delayed == 1
    assert bench.dead()[0]["dead_letter"]["error"] == "no such customer"


def test_backoff_delays_the_retry(bench: Bench) -> None:
    bench.producer.send(URN, {})
    bench.run({URN: lambda m: 1 / 0}, policy=Policy(backoff=Backoff(60)))
    assert bench.broker.depth("orders").delayed == 1


def test_a_route_has_its_own_policy_schema_and_steps(bench: Bench) -> None:
    handlers = Handlers()
    trail: list[str] = []

    def trace(name: str):
        def step(call):
            def wrapped(message, context):
                trail.append(name)
                return call(message, context)

            return wrapped

        return step

    def refuse(urn: str, data: dict) -> None:
        if "n" not in data:
            raise ContractError("n is missing", pointer="/data/n")

    @handlers.handler(URN, policy=Policy(max_attempts=1), steps=[trace("route")], validate=refuse)
    def handle(message: Message) -> None:
        trail.append("handler")

    bench.producer.send(URN, {"n": 1})
    bench.producer.send(URN, {})
    report = bench.run(handlers, steps=[trace("worker")])
    assert trail == ["worker", "route", "handler", "worker", "route"]
    assert report.counts == {"handled": 1, "dead_letter": 1}
    assert bench.dead()[0]["dead_letter"]["exception"] == "ContractError"


def test_handlers_see_their_context(bench: Bench) -> None:
    seen: list[object] = []

    def handle(message: Message, context: Context) -> None:
        seen.append((context.queue, context.attempt, context.headers["x"], current() == context))
        follow = context.follow_up("urn:b", {"a": 1}, queue="next")
        seen.append((follow.trace_id == message.trace_id, follow.id != message.id))
        seen.append((is_replay(), bypass_external_effects(lambda: "effect")))

    bench.producer.send(URN, {}, headers={"x": "1", "bq-replay-bypass": "1"})
    bench.run({URN: handle})
    assert seen == [("orders", 1, "1", True), (True, True), (True, None)]
    assert current() is None
    assert bypass_external_effects(lambda: "effect") == "effect"


def test_async_handlers_run_side_by_side(bench: Bench) -> None:
    running = peak = 0

    async def handle(message: Message) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05)
        running -= 1

    bench.producer.send_many([(URN, {})] * 8)
    assert bench.run({URN: handle}, concurrency=4).counts == {"handled": 8}
    assert peak == 4


def test_concurrency_runs_handlers_side_by_side(bench: Bench) -> None:
    together = threading.Barrier(4, timeout=10)
    bench.producer.send_many([(URN, {})] * 4)
    assert bench.run({URN: lambda m: together.wait() and None}, concurrency=4).counts == {"handled": 4}


def test_a_slow_handler_keeps_its_lease(bench: Bench) -> None:
    url = bench.url + "?lease_s=0.4"
    bench.producer.send(URN, {})
    runs: list[int] = []

    def slow(message: Message) -> None:
        runs.append(1)
        time.sleep(1.5)

    report = Worker(url, {URN: slow}, limits=EMPTY).run()
    assert (len(runs), report.counts) == (1, {"handled": 1})


def test_timeouts_fail_and_the_worker_goes_on(bench: Bench) -> None:
    bench.producer.send("urn:slow", {})
    bench.producer.send(URN, {})
    done = threading.Event()
    report = bench.run(
        {"urn:slow": lambda m: done.wait(30) and None, URN: lambda m: None},
        steps=[timeout(0.1)],
        policy=Policy(max_attempts=1),
    )
    done.set()
    assert report.counts == {"handled": 1, "dead_letter": 1}
    assert bench.dead()[0]["dead_letter"]["exception"] == HandlerTimeout.__name__


def test_each_id_is_handled_once(bench: Bench) -> None:
    body = encode(build(URN, {}))
    bench.put(body, body, encode(build(URN, {})), body)
    handled: list[Message] = []
    report = bench.run({URN: handled.append}, steps=[idempotent(MemoryStore())])
    assert (len(handled), report.counts) == (2, {"handled": 4})


def test_an_answer_other_than_done_is_not_remembered(bench: Bench) -> None:
    store = MemoryStore()
    message = bench.producer.send(URN, {})
    bench.run({URN: lambda m: Retry(60)}, steps=[idempotent(store)])
    assert store.seen([message.id]) == set()


def test_the_rate_limit_holds(bench: Bench) -> None:
    bench.producer.send_many([(URN, {})] * 11)
    started = time.monotonic()
    bench.run({URN: lambda m: None}, steps=[rate_limit(50)], concurrency=2)
    assert time.monotonic() - started >= 10 / 50


def test_limits_stop_a_run(bench: Bench) -> None:
    bench.producer.send_many([(URN, {})] * 50)
    report = bench.run({URN: lambda m: None}, limits=Limits(max_messages=20))
    assert (report.received, report.stopped_by) == (20, StopReason.MESSAGES)
    assert report.counts == {"handled": 20}
    report = bench.run({URN: lambda m: None}, limits=Limits(max_time_s=0.0))
    assert (report.received, report.stopped_by) == (0, StopReason.TIME)
    report = bench.run({URN: lambda m: None}, limits=Limits(max_memory_mb=0.001))
    assert report.stopped_by is StopReason.MEMORY
    assert bench.broker.depth("orders").ready == 30


def test_stop_finishes_what_runs_and_hands_back_the_rest(bench: Bench) -> None:
    bench.producer.send_many([(URN, {})] * 100)
    started = threading.Event()

    def handle(message: Message) -> None:
        started.set()
        time.sleep(0.05)

    worker = Worker(bench.url, {URN: handle})
    threading.Thread(target=lambda: started.wait() and worker.stop()).start()
    report = worker.run()
    assert report.stopped_by is StopReason.SIGNAL
    assert report.count("handled") >= 1
    assert report.received == sum(report.counts.values())
    assert bench.broker.depth("orders").ready == 100 - report.count("handled")


def test_stop_hands_back_the_rest_of_a_chunk_that_turned_slow(bench: Bench) -> None:
    bench.producer.send_many([(URN, {"n": n}) for n in range(2000)])
    slow = threading.Event()

    def handle(message: Message) -> None:
        if message.data["n"] >= 504:  # the first few of a chunk of 250
            slow.set()
            time.sleep(0.1)

    worker = Worker(bench.url, {URN: handle}, prefetch=500)
    threading.Thread(target=lambda: slow.wait() and worker.stop()).start()
    report = worker.run()
    assert 504 < report.count("handled") < 514
    assert report.count("handed_back") > 0
    assert report.received == sum(report.counts.values())
    depth = bench.broker.depth("orders")
    assert (depth.ready, depth.reserved) == (2000 - report.count("handled"), 0)


def test_a_second_stop_returns_at_once(bench: Bench) -> None:
    bench.producer.send(URN, {})
    release = threading.Event()
    worker = Worker(bench.url, {URN: lambda m: release.wait(30) and None}, stop_timeout_s=25)

    def twice() -> None:
        time.sleep(0.3)
        worker.stop()
        worker.stop()

    threading.Thread(target=twice).start()
    started = time.monotonic()
    report = worker.run()
    release.set()
    assert time.monotonic() - started < 10
    assert report.counts == {"handed_back": 1}
    assert bench.broker.depth("orders").ready == 1


def test_a_dead_letter_that_cannot_be_written_leaves_the_message_where_it_is(
    bench: Bench, monkeypatch
) -> None:
    from shinar.brokers.memory import MemoryBroker

    def refuse(self, queue, copies):
        raise BrokerError("no space for dead letters", queue=queue)

    bench.put(b"poison")
    monkeypatch.setattr(MemoryBroker, "move", refuse)
    report = bench.run({URN: print}, limits=Limits(max_messages=1))
    assert report.counts == {"unsettled": 1}
    assert bench.broker.depth("orders").reserved == 1


def test_the_worker_survives_a_broker_that_goes_away(bench: Bench, monkeypatch, caplog) -> None:
    from shinar.brokers.memory import MemoryBroker

    # Two tries in vain are one absence; after an answer it goes away again.
    plain, failures = MemoryBroker.reserve, iter([True, True, False, True])

    def flaky(self, *args):
        if next(failures, False):
            raise BrokerUnavailable("connection reset", broker="memory")
        return plain(self, *args)

    monkeypatch.setattr(MemoryBroker, "reserve", flaky)
    bench.producer.send_many([(URN, {})] * 5)
    metrics = Metrics()
    report = bench.run({URN: lambda m: None}, metrics=metrics)
    assert report.counts == {"handled": 5}
    assert metrics.value("shinar_reconnects_total") == 2
    lost = [r for r in caplog.records if "lost the broker" in r.message]
    assert len(lost) == 2, "said once each time it goes away"
    assert len([r for r in caplog.records if "is back" in r.message]) == 2


def test_metrics_count_every_outcome(bench: Bench) -> None:
    bench.producer.send_many([(URN, {}), ("urn:nobody", {})])
    metrics = Metrics()
    bench.run(
        {URN: lambda m: None}, metrics=metrics, steps=[metrics_step(metrics)], policy=Policy(max_attempts=1)
    )
    assert metrics.value("shinar_received_total", queue="orders") == 2
    assert metrics.value("shinar_outcomes_total", outcome="handled") == 1
    assert metrics.value("shinar_outcomes_total", outcome="dead_letter") == 1
    text = metrics.render()
    assert 'shinar_outcomes_total{outcome="handled",queue="orders"} 1' in text
    assert f'shinar_handler_seconds_count{{urn="{URN}"}} 1' in text


def test_bad_calls_are_refused_before_anything_runs(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="concurrency"):
        Worker(bench.url, {}, concurrency=0)
    with pytest.raises(ConfigError, match="queue"):
        Worker("memory://x", {})
    handlers = Handlers({URN: print})
    with pytest.raises(ConfigError, match="already"):
        handlers.add(URN, print)
    with pytest.raises(ConfigError, match="not callable"):
        handlers.add("urn:x", 5)  # type: ignore[arg-type]  # refused at run time
    assert Handlers({"Shout": print}).advice() != []


# -- what was never started keeps its attempts; what was delivered too often is dead


def test_a_hand_back_before_the_start_costs_no_attempt(bench: Bench) -> None:
    bench.producer.send_many([(URN, {"n": n}) for n in range(20)])
    for _ in range(4):
        report = _stopped_at_its_second_message(bench)
        assert report.count("handed_back") > 0
    left = bench.broker.reserve("orders", 100, 0)
    assert left
    assert {delivery.native_count for delivery in left} == {0}


def _stopped_at_its_second_message(bench: Bench) -> Report:
    def handle(message: Message) -> None:
        started.append(message)
        if len(started) == 2:  # the first comes alone
            worker.stop()
            time.sleep(0.1)

    started: list[Message] = []
    worker = Worker(bench.url, {URN: handle})
    return worker.run()


def test_an_unknown_urn_under_release_costs_no_attempt(bench: Bench) -> None:
    bench.producer.send("urn:babel:orders:later", {})
    policy = Policy(on_unknown_urn="release", unknown_urn_release_delay_s=0.0)
    for _ in range(5):
        Worker(bench.url, {URN: print}, policy=policy, limits=Limits(max_messages=1)).run()
    assert [delivery.native_count for delivery in bench.broker.reserve("orders", 1, 0)] == [0]


@pytest.mark.parametrize(("lost", "max_attempts", "runs"), [(2, 3, 1), (3, 3, 0), (1, 1, 1), (2, 1, 0)])
def test_a_message_delivered_too_often_is_dead_before_its_handler_is_called(
    bench: Bench, lost: int, max_attempts: int, runs: int
) -> None:
    bench.producer.send(URN, {})
    for _ in range(lost):  # as a process that ends leaves it: counted, without an outcome
        bench.broker.release(bench.broker.reserve("orders", 1, 0))
    seen: list[Message] = []
    limits = Limits(until_empty=True, empty_wait_s=0.1)
    Worker(bench.url, {URN: seen.append}, policy=Policy(max_attempts=max_attempts), limits=limits).run()
    assert len(seen) == runs
    blocks = [json.loads(d.body)["dead_letter"] for d in bench.broker.browse("orders.dlq")]
    assert [(b["reason"], b["exception"], b["attempts"]) for b in blocks] == (
        [] if runs else [("failed", "WorkerLost", lost)]
    )


def test_attempts_in_the_body_alone_do_not_keep_a_message_from_its_handler(bench: Bench) -> None:
    body = encode(msgspec.structs.replace(build(URN, {}), attempts=7))
    bench.broker.publish("orders", [Outgoing(body)])
    seen: list[Message] = []
    Worker(bench.url, {URN: seen.append}, limits=Limits(until_empty=True, empty_wait_s=0.1)).run()
    assert [message.attempts for message in seen] == [7]
