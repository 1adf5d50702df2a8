"""Every broker: poison, unknown URNs and failing handlers among good ones; the outcomes add up exactly."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import pytest

from cases import Case, case, embedded, nothing_left, take, with_options
from servers import Server
from servers.process import new_home
from servers.recipes import servicebus
from shinar import Limits, Policy, Worker
from shinar.brokers import Broker, Outgoing
from shinar.envelope import build, encode
from shinar.settlement import dead_letter_queue

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
COUNT = int(os.environ.get("SHINAR_COUNT", 100_000 if HEAVY else 1_000))
GOOD, BAD, UNKNOWN = "urn:babel:orders:created", "urn:babel:orders:broken", "urn:babel:nobody:knows"

#: Published and worked off at a time. ElasticMQ needs longer for each message the more of them wait: of
#: 100,000 it hands out 50 a second.
PORTION = 5_000
__all__ = ["case", "embedded"]


def bodies() -> list[bytes]:
    made = []
    for n in range(COUNT):
        match n % 100:
            case 7:
                made.append(b'{"job":"urn:x","attempts":"%d"}' % n)  # poison: a count that is no number
            case 23:
                made.append(encode(build(UNKNOWN, {"n": n})))
            case 41 | 83:
                made.append(encode(build(BAD, {"n": n})))
            case _:
                made.append(encode(build(GOOD, {"n": n})))
    return made


@pytest.mark.timeout(1800 if COUNT > 1000 else 240)
def test_the_four_outcomes_add_up(case: Case, request: pytest.FixtureRequest) -> None:
    if HEAVY and case.traits.name == "servicebus":
        # The shared stand-in locks for 5 s, to be lost in tests; here no lock may end on a busy machine.
        home = new_home("servicebus-outcomes")
        server = Server("servicebus", home, servicebus.plan(home, None, "--lock", "60"))
        server.start()
        request.addfinalizer(server.stop)
        case = Case(server.url, server)
        request.addfinalizer(case.close)
    tiers = ("retry_tiers_ms=200,400",) if case.traits.replayable else ()
    sent = bodies()
    portion = PORTION if case.traits.name == "sqs" else COUNT
    handled: set[int] = set()
    handlers = {GOOD: lambda message: handled.add(message.data["n"]), BAD: lambda message: 1 / 0}
    counts: Counter[str] = Counter()
    published_s = worked_s = 0.0
    for start in range(0, COUNT, portion):
        published_s += publish(case.connect(*tiers), case.queue, sent[start : start + portion])
        worker = Worker(
            with_options(case.url, *tiers),
            handlers,
            queue=case.queue,
            policy=Policy(max_attempts=2),
            limits=Limits(until_empty=True, empty_wait_s=4.0),
        )
        started_s = time.monotonic()
        report = worker.run()
        worked_s += time.monotonic() - started_s
        counts.update(report.counts, received=report.received)
    parts = COUNT // 100
    assert len(handled) == counts["handled"] == 96 * parts
    assert counts["dead_letter"] == 4 * parts
    assert counts["retry"] == 3 * parts
    assert counts["received"] == 96 * parts + 4 * parts + 3 * parts
    assert not counts["drop"]
    assert not counts["unsettled"]

    reasons = dead_letter_reasons(case.connect(*tiers), dead_letter_queue(case.queue, case.traits), 4 * parts)
    assert reasons == {"poison": parts, "unknown_urn": parts, "failed": 2 * parts}
    print(
        f"\n{case.traits.name}: {COUNT} messages, published in {published_s:.1f} s, "
        f"worked off in {worked_s:.1f} s: {dict(counts)}, dead letters {dict(reasons)}"
    )


def publish(broker: Broker, queue: str, sent: list[bytes]) -> float:
    """Seconds it took."""
    started_s = time.monotonic()
    for start in range(0, len(sent), 2000):
        broker.publish(queue, [Outgoing(body) for body in sent[start : start + 2000]])
    broker.close()
    return time.monotonic() - started_s


def dead_letter_reasons(graveyard: Broker, queue: str, count: int) -> Counter[str]:
    """In portions, each acknowledged before its lease ends."""
    reasons: Counter[str] = Counter()
    while reasons.total() < count and (dead := take(graveyard, queue, min(100, count - reasons.total()))):
        reasons.update(json.loads(delivery.body)["dead_letter"]["reason"] for delivery in dead)
        assert graveyard.ack(dead) == ()
    assert nothing_left(graveyard, queue)
    return reasons
