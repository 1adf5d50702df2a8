"""The circuit breaker: the last sends, not all of them; and what comes back dead while others are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive_letters import plant
from shinar.brokers import Broker, Outgoing, connect
from shinar.envelope import DeadReason, dead_letter, dead_letter_copy
from shinar.redrive import JobState, Ledger, Receipt, Redrive, Spec
from shinar.redrive.send.breaker import FEWEST, Breaker


def test_a_target_that_breaks_late_is_noticed() -> None:
    breaker = Breaker(0.2)
    breaker.succeeded(30_000)
    breaker.failed(40)
    assert breaker.why() == ""
    breaker.failed(1)
    assert breaker.why() == "stopped: 41 of the last 200 sends failed, over the ratio of 0.2"
    breaker.succeeded(200)
    assert breaker.why() == "", "it recovered"


def test_a_few_say_nothing_and_a_ratio_of_zero_never_stops() -> None:
    breaker = Breaker(0.2)
    breaker.failed(FEWEST - 1)
    assert breaker.why() == ""
    breaker.failed(1)
    assert breaker.why()
    never = Breaker(0)
    never.failed(10_000)
    never.succeeded(100)
    never.arrived(100)
    assert never.why() == ""


def test_what_came_back_is_measured_by_what_was_sent() -> None:
    breaker = Breaker(0.2)
    breaker.succeeded(50)
    breaker.arrived(10)
    breaker.arrived(3)
    assert breaker.why() == ""
    breaker.arrived(11)
    assert breaker.why().startswith("stopped: 50 were sent and 11 new dead letters")


def _dies_again(broker: Broker, share: int) -> None:
    """A consumer that fails on every `share`-th message, and finishes the others."""
    for at, delivery in enumerate(broker.reserve("orders", 1000, 0)):
        if at % share:
            broker.ack([delivery])
            continue
        block = dead_letter(DeadReason.FAILED, queue="orders", attempts=3, failed_ms=99, error="again")
        broker.move("orders.dlq", [(delivery, Outgoing(dead_letter_copy(delivery.body, block)))])


def _run(url: str, folder: Path, share: int) -> tuple[Receipt, str]:
    broker = connect(url)
    plant(broker, "orders.dlq", "orders", 1200)
    ledger = Ledger(folder / "ledger.db")
    redrive = Redrive(url, Spec(max_failure_ratio=0.3), ledger=ledger)
    receipt = redrive.run(progress=lambda _: _dies_again(broker, share))
    note = ledger.job(receipt.job).note
    ledger.close()
    broker.close()
    return receipt, note


#: One hands messages back to their place, the other is turned.
@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("shinar.redrive.send.watch.CHECK_EVERY_S", 0.0)
    if request.param == "memory":
        return f"memory://{tmp_path.name}/orders.dlq"
    return f"sqlite://{tmp_path}/q.db?queue=orders.dlq"


def test_what_dies_again_stops_it(url: str, tmp_path: Path) -> None:
    receipt, note = _run(url, tmp_path, share=1)
    assert receipt.state == JobState.PAUSED
    assert receipt.published < 1000
    assert receipt.left == 1000 - receipt.published
    assert "new dead letters came into the queue meanwhile" in note


def test_a_few_that_die_again_do_not(url: str, tmp_path: Path) -> None:
    receipt, note = _run(url, tmp_path, share=10)
    assert (receipt.published, receipt.adds_up, note) == (1000, True, "")
