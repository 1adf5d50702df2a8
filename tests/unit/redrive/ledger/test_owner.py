"""Slow redrives: signs of life while they wait, a stop that is heard, and one runner at a time."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive_letters import change_job, plant
from shinar.brokers import connect
from shinar.clock import PinnedClock
from shinar.errors import Unsupported, UsageError
from shinar.redrive import JobState, Ledger, Redrive, Spec
from shinar.redrive.ledger.ledger import STALE_MS
from shinar.redrive.ledger.owner import lives, this_process
from shinar.redrive.send.rate import in_hand
from shinar.redrive.send.watch import CHECK_EVERY_S

START_S = 1_763_172_600.0


@pytest.fixture
def clock() -> PinnedClock:
    return PinnedClock(START_S)


@pytest.fixture
def ledger(tmp_path: Path, clock: PinnedClock) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db", clock)
    yield opened
    opened.close()


@pytest.fixture
def url() -> str:
    place = f"memory://{uuid.uuid4().hex}/orders.dlq"
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 24)
    broker.close()
    return place


class Watched(Ledger):
    """Notes when the runner showed itself."""

    seen: list[int]

    def show_life(self, job_id: str) -> None:
        self.seen.append(self.clock.epoch_ms())
        super().show_life(job_id)


def test_signs_of_life_while_it_waits(url: str, clock: PinnedClock, tmp_path: Path) -> None:
    ledger = Watched(tmp_path / "watched.db", clock)
    ledger.seen = [clock.epoch_ms()]
    receipt = Redrive(url, Spec(rate_per_s=0.1), ledger=ledger, clock=clock).run()
    ledger.close()
    assert receipt.published == 20
    assert clock.epoch_ms() - START_S * 1000 >= 19 * 10_000
    silent_ms = max(after - before for before, after in zip(ledger.seen, ledger.seen[1:], strict=False))
    assert silent_ms <= CHECK_EVERY_S * 1000 + 500 < STALE_MS


def test_a_rate_slower_than_a_lease_is_refused(url: str, clock: PinnedClock, ledger: Ledger) -> None:
    with pytest.raises(Unsupported, match="--rate"):
        Redrive(url, Spec(rate_per_s=1 / 300), ledger=ledger, clock=clock).dry_run()
    assert ledger.jobs() == []


@pytest.mark.parametrize("lease_s", [0.0, 30.0, 4.0])
def test_no_more_is_in_hand_than_goes_in_seconds(lease_s: float) -> None:
    assert in_hand(2.0, lease_s) <= 2.0 * min(5.0, lease_s / 4 or 5.0)
    assert in_hand(0.0, lease_s) == in_hand(10_000.0, lease_s) == 200


def test_a_stop_is_heard_within_a_batch(url: str, clock: PinnedClock, ledger: Ledger) -> None:
    redrive = Redrive(url, Spec(rate_per_s=2), ledger=ledger, clock=clock)
    done: list[int] = []

    def progress(count: int) -> None:
        done.append(count)
        if len(done) == 3:
            redrive.stop()

    receipt = redrive.run(progress=progress)
    assert (receipt.state, receipt.published, receipt.left) == (JobState.PAUSED, 3, 17)
    again = Redrive(url, Spec(rate_per_s=2), ledger=ledger, clock=clock).resume(receipt.job)
    assert (again.published, again.adds_up) == (20, True)


def test_a_live_process_of_this_host_keeps_its_job(url: str, clock: PinnedClock, ledger: Ledger) -> None:
    job, _ = Redrive(url, ledger=ledger, clock=clock).prepare()
    other = f"{socket.gethostname()}:{os.getppid()}"
    clock.sleep(10 * 365 * 86_400)  # the ledger's time: the parent is older than that sign of life
    change_job(ledger, job.id, state=JobState.RUNNING, runner=other, seen_ms=clock.epoch_ms())
    clock.sleep(2 * STALE_MS / 1000)
    assert ledger.alive(ledger.job(job.id))
    with pytest.raises(UsageError, match="is being run by"):
        Redrive(url, ledger=ledger, clock=clock).resume(job.id)


def test_a_number_that_is_another_program_now_is_nobody() -> None:
    assert lives(this_process(), 0) is False
    assert lives("elsewhere:1", 0) is None


def test_of_two_that_come_at_once_one_gets_it(
    url: str, clock: PinnedClock, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = Redrive(url, ledger=ledger, clock=clock).prepare()
    before = ledger.job(job.id)
    change_job(ledger, job.id, state=JobState.RUNNING, runner="elsewhere:1", seen_ms=clock.epoch_ms())
    monkeypatch.setattr(ledger, "job", lambda _: before)  # read before the other one wrote
    with pytest.raises(UsageError, match="taken by another"):
        ledger.take_over(job)
    monkeypatch.undo()
    assert ledger.job(job.id).runner == "elsewhere:1"


def test_a_wait_for_leases_is_told(clock: PinnedClock, ledger: Ledger, tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    dead = connect(place, clock)
    plant(dead, "orders.dlq", "orders", 3)
    job, _ = Redrive(place, ledger=ledger, clock=clock).prepare()
    assert len(dead.reserve("orders.dlq", 1, 0)) == 1  # and never settled
    waits: list[float] = []
    receipt = Redrive(place, ledger=ledger, clock=clock).resume(job.id, waits=waits.append)
    dead.close()
    assert (receipt.published, len(waits)) == (3, 1)
    assert waits[0] > 10
