"""Hundreds of byte-identical dead letters, killed at every step and resumed: all arrive, none is lost, and
what came twice is what the receipt calls maybe twice. Counted at the target and at the source."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import embedded
from redrive_letters import POISON, VERSION, Place, body, drained, everything, open_place, with_queue
from shinar.brokers import Outgoing, connect
from shinar.envelope import redrive_copy
from shinar.redrive import JobState, Ledger, Receipt, Redrive, Spec

__all__ = ["embedded"]

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
PROGRAM = Path(__file__).with_name("redrive_program.py")
#: Copies of each of the six distinct letters.
EACH = 300 if HEAVY else 40
#: Four that died with a block, a poison record, and one of a version nobody speaks.
KINDS = (0, 1, 2, 3, POISON, VERSION)
#: Small steps, so that a kill comes between two of them.
CHOICE = {"include_poison": True, "include_version": True, "rate_per_s": 4000 if HEAVY else 400}
STEPS = ("claim", "intent", "publish", "published", "ack", "acked")

Live = Callable[..., Any]
#: source, target ("" for the same broker), planned by reserving first, step of the short form ("" for none)
ALL_ROWS = [
    ("sqlite", "", False, "publish"),
    ("phpmq", "", False, ""),
    ("postgresql", "phpmq", False, "published"),
    ("redis", "", False, "intent"),
    ("redis", "kafka", False, "publish"),
    ("redis", "phpmq", False, ""),
    ("rabbitmq", "", False, ""),
    ("rabbitmq", "", True, "acked"),
    ("rabbitmq", "redis", True, ""),
    ("sqs", "", False, "acked"),
    ("sqs", "redis", True, ""),
    ("kafka", "", False, "publish"),
    ("kafka", "rabbitmq", False, ""),
]
ROWS = [row for row in ALL_ROWS if HEAVY or row[3]]


@pytest.fixture(params=ROWS, ids=lambda row: f"{row[0]}-{row[1] or 'same'}{'-planned' if row[2] else ''}")
def row(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def place(row: Any, request: pytest.FixtureRequest, tmp_path: Path, live_server: Live) -> Place:
    found = open_place(row[0], tmp_path, live_server, request)
    return Place(found.name, _short_leases(found.url), found.queue, found.dlq)


def _short_leases(url: str) -> str:
    return url.replace("lease_s=3", "lease_s=2").replace("lease_s=5", "lease_s=2")


def _planted(place: Place) -> list[bytes]:
    """Identical ones beside and far from each other; returns the copies that must arrive."""
    dead = [body(n, place.queue) for n in KINDS]
    letters = dead * (EACH // 2) + [one for one in dead for _ in range(EACH - EACH // 2)]
    with place.broker() as broker:
        for start in range(0, len(letters), 100):
            broker.publish(place.dlq, [Outgoing(one) for one in letters[start : start + 100]])
    copies = {one: redrive_copy(one) for one in dead[:4]} | {dead[4]: b'{"broken":10', dead[5]: dead[5]}
    return [copies[one] for one in letters]


def _run(given: dict[str, Any], step: str = "", at: int = 1) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(given | {"step": step, "at": at})],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(done.stderr)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def _target(row: Any, place: Place, tmp_path: Path, live_server: Live, request: Any) -> Place:
    if not row[1]:
        return place
    other = open_place(row[1], tmp_path, live_server, request)
    return Place(other.name, other.url, place.queue, place.dlq)


@pytest.mark.chaos
@pytest.mark.timeout(1800 if HEAVY else 120)
def test_killed_at_a_step(
    row: Any, place: Place, tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    target = _target(row, place, tmp_path, live_server, request)
    expected = Counter(_planted(place))
    ledger = tmp_path / "ledger.db"
    given = {"url": place.redrive_url(), "ledger": str(ledger), "spec": CHOICE, "reserve": row[2]}
    if row[1]:
        given["to"] = target.url
    kills = 0
    for step in STEPS if HEAVY else (row[3],):
        code, _ = _run(given, step, 2)
        kills += code == -signal.SIGKILL
        opened = Ledger(ledger)
        job = opened.jobs()[0]
        if job.state == JobState.PLANNING:
            opened.cancel(job.id)  # nothing was sent, and half a plan cannot be resumed
        else:
            given["job"] = job.id
        opened.close()
    assert kills, "nothing was killed"
    code, receipt = _run(given)
    assert code == 0
    _adds_up(receipt, expected, place, target)


def _adds_up(receipt: dict[str, Any], expected: Counter[bytes], place: Place, target: Place) -> None:
    with target.broker() as broker:
        arrived = Counter(drained(broker, place.queue))
    assert not expected - arrived, f"lost: {(expected - arrived).total()} of {expected.total()}, {receipt}"
    twice = (arrived - expected).total()
    assert set(arrived) == set(expected)
    assert twice <= receipt["maybe_twice"], f"{twice} came twice: {receipt}"
    if place.traits.atomic_move and place is target:
        assert twice == receipt["maybe_twice"] == 0
    assert (receipt["state"], receipt["left"], receipt["failed"]) == ("done", 0, 0), receipt
    if not place.traits.replayable:
        assert everything(place) == []


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["rabbitmq", "redis", "phpmq"] if HEAVY else ["rabbitmq"])
def test_a_polite_stop_loses_no_twin(
    name: str, tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    place = open_place(name, tmp_path, live_server, request)
    expected = Counter(_planted(place))
    ledger = Ledger(tmp_path / "ledger.db")
    redrive = Redrive(place.redrive_url(), Spec(**CHOICE), ledger=ledger)
    done: list[int] = []

    def progress(count: int) -> None:
        done.append(count)
        if sum(done) > expected.total() // 3:
            redrive.stop()

    receipt = redrive.run(progress=progress)
    assert receipt.state == JobState.PAUSED
    assert 0 < receipt.published < expected.total()
    again = Redrive(place.redrive_url(), Spec(**CHOICE), ledger=ledger).resume(receipt.job)
    ledger.close()
    assert again.maybe_twice == 0, "nothing was in doubt"
    assert (again.selected, again.published) == (expected.total(),) * 2
    _adds_up(again.as_dict(), expected, place, place)


@pytest.mark.chaos
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["sqlite", "redis", "kafka", "rabbitmq"] if HEAVY else ["sqlite", "kafka"])
def test_two_at_once_claim_their_letters(
    name: str, tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    place = open_place(name, tmp_path, live_server, request)
    expected = Counter(_planted(place))
    receipts: list[Receipt] = []

    def run() -> None:
        ledger = Ledger(tmp_path / "ledger.db")
        spec = Spec(include_poison=True, include_version=True, rate_per_s=200)
        receipts.append(Redrive(place.redrive_url(), spec, ledger=ledger).run())
        ledger.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receipts) == 2
    with place.broker() as broker:
        arrived = Counter(drained(broker, place.queue))
    for one in receipts:
        if (
            not one.adds_up and not place.traits.replayable
        ):  # the other one had claimed some, or had them in hand
            ledger = Ledger(tmp_path / "ledger.db")
            Redrive(place.redrive_url(), Spec(**CHOICE), ledger=ledger).resume(one.job)
            ledger.close()
            with place.broker() as broker:
                arrived += Counter(drained(broker, place.queue))
    assert arrived == expected, [one.as_dict() for one in receipts]
    assert sum(one.maybe_twice for one in receipts) == 0
    if place.traits.browse:
        assert sum(one.claimed for one in receipts) > 0
        assert not all(one.adds_up for one in receipts), "the second one has to say what it did not send"


@pytest.mark.chaos
def test_a_finished_job_leaves_nothing_to_a_paused_one(
    tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    """Kafka keeps what was sent: pause A, run B, resume A, and each record still arrives once."""
    place = open_place("kafka", tmp_path, live_server, request)
    expected = Counter(_planted(place))
    ledger = Ledger(tmp_path / "ledger.db")
    spec = Spec(include_poison=True, include_version=True, rate_per_s=200)
    first = Redrive(place.redrive_url(), spec, ledger=ledger)
    paused = first.run(progress=lambda _: first.stop())
    assert paused.left > 0
    second = Redrive(place.redrive_url(), spec, ledger=ledger).run()
    assert (second.published, second.claimed) == (0, paused.left)
    done = Redrive(place.redrive_url(), spec, ledger=ledger).resume(paused.job)
    assert done.published == expected.total()
    again = Redrive(place.redrive_url(), spec, ledger=ledger).resume(second.job)
    assert (again.published, again.why_skipped) == (0, {"already sent": paused.left})
    ledger.close()
    with place.broker() as broker:
        assert Counter(drained(broker, place.queue)) == expected


@pytest.mark.chaos
def test_a_log_shows_letters_that_equal_ones_sent_before(
    tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    """A record of an unsupported version has no block: dead again, it has the very same bytes."""
    place = open_place("kafka", tmp_path, live_server, request)
    gated = body(VERSION, place.queue)
    ledger = Ledger(tmp_path / "ledger.db")
    spec = Spec(include_version=True, loop_limit=0)
    for _ in range(2):
        with place.broker() as broker:
            broker.publish(place.dlq, [Outgoing(gated)] * 3)
        redrive = Redrive(place.redrive_url(), spec, ledger=ledger)
        assert redrive.dry_run().sendable == 3
        assert redrive.run().published == 3
    ledger.close()
    with place.broker() as broker:
        assert list(drained(broker, place.queue)) == [gated] * 6


@pytest.mark.chaos
def test_identical_letters_without_a_plan(live_server: Live, tmp_path: Path) -> None:
    """RabbitMQ without --reserve: lines are written on the way, one for each of identical letters."""
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    url = live_server("rabbitmq").url
    broker = connect(url)
    twin = body(0, queue)
    broker.publish(f"{queue}.dlq", [Outgoing(twin), Outgoing(twin), Outgoing(body(1, queue))] * 100)
    ledger = Ledger(tmp_path / "ledger.db")
    receipt = Redrive(with_queue(url, f"{queue}.dlq"), ledger=ledger).run()
    ledger.close()
    assert (receipt.selected, receipt.published) == (300, 300)
    assert Counter(drained(broker, queue))[redrive_copy(twin)] == 200
    assert list(drained(broker, f"{queue}.dlq")) == []
    broker.close()
