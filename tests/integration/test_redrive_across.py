"""From one real broker to another, a ledger on PostgreSQL, a polite stop, queues that swallow duplicates."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from cases import embedded
from redrive_letters import drained, everything, open_place, plant, with_queue
from servers import Server
from shinar.brokers import connect
from shinar.envelope import redrive_copy
from shinar.redrive import JobState, Ledger, Redrive, Spec

__all__ = ["embedded"]

Live = Callable[..., Server]


def test_redis_to_rabbitmq_with_its_projection(tmp_path: Path, live_server: Live) -> None:
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    source, target = live_server("redis").url, live_server("rabbitmq").url
    broker = connect(source)
    planted = plant(broker, f"{queue}.dlq", queue, 24)
    ledger = Ledger(tmp_path / "ledger.db")
    redrive = Redrive(
        with_queue(source, f"{queue}.dlq"), Spec(where="lang = 'php'"), to=target, ledger=ledger
    )
    receipt = redrive.run()
    ledger.close()
    assert (receipt.published, receipt.maybe_twice) == (6, 0)
    other = connect(target)
    found = other.reserve(queue, 10, 5.0)
    php = [n for n in range(24) if n % 12 in (0, 1, 9)]
    assert [delivery.body for delivery in found] == [redrive_copy(planted[n]) for n in php]
    assert found[0].properties["type"] == "urn:babel:orders:created"
    assert found[0].properties["x-attempts"] == 0
    assert found[0].headers == {"x-n": "0"}
    other.ack(found)
    other.close()
    left = [delivery.body for delivery in broker.browse(f"{queue}.dlq")]
    broker.close()
    assert left == [dead for n, dead in enumerate(planted) if n not in php]


def test_a_ledger_on_postgresql(live_server: Live, tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 600)
    ledger = Ledger(live_server("postgresql").url)
    redrive = Redrive(place, Spec(limit=550), ledger=ledger)
    job, plan = redrive.prepare()
    assert plan.selected == 550
    receipt = redrive.run(job)
    assert receipt.adds_up
    assert (receipt.selected, receipt.published) == (550, plan.sendable)
    assert broker.depth("orders").ready == plan.sendable
    ids = [line.id for line in ledger.lines_in(job.id, "acked")]
    assert len(ids) == plan.sendable
    assert ledger.generations(ids) == dict.fromkeys(ids, 1)
    assert ledger.job(job.id).state == JobState.DONE
    broker.close()
    ledger.close()


@pytest.mark.parametrize("name", ["redis", "sqlite", "phpmq", "rabbitmq"])
def test_a_stop_pauses_and_leaves_the_order(
    name: str, tmp_path: Path, live_server: Live, request: pytest.FixtureRequest
) -> None:
    place = open_place(name, tmp_path, live_server, request)
    with place.broker() as broker:
        planted = plant(broker, place.dlq, place.queue, 600)
    ledger = Ledger(tmp_path / "ledger.db")
    spec = Spec(where="exception like '%GatewayTimeout'", rate_per_s=100)
    redrive = Redrive(place.redrive_url(), spec, ledger=ledger)
    receipt = redrive.run(
        progress=lambda _: redrive.stop() if ledger.receipt(ledger.jobs()[0].id).published > 20 else None
    )
    assert receipt.state == JobState.PAUSED
    assert 20 < receipt.published < 100
    with place.broker() as broker:
        # Where nothing can be browsed the lines of what was not met yet are not written yet.
        sent = list(drained(broker, place.queue))
    copies = {redrive_copy(dead): dead for dead in planted if b"raw" not in dead[:8]}
    gone = {copies[body] for body in sent}
    assert len(sent) == receipt.published
    assert everything(place) == [dead for dead in planted if dead not in gone]
    rest = Redrive(place.redrive_url(), Spec(where=spec.where), ledger=ledger).resume(receipt.job)
    ledger.close()
    assert rest.adds_up
    assert rest.published == 100


def test_a_running_job_is_cancelled_from_elsewhere(tmp_path: Path) -> None:
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 600)
    ledger = Ledger(tmp_path / "ledger.db")
    redrive = Redrive(place, Spec(rate_per_s=100), ledger=ledger)

    def cancel() -> None:
        other = Ledger(tmp_path / "ledger.db")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            jobs = other.jobs()
            if jobs and other.receipt(jobs[0].id).published > 50:
                other.cancel(jobs[0].id)
                break
            time.sleep(0.05)
        other.close()

    thread = threading.Thread(target=cancel)
    thread.start()
    receipt = redrive.run()
    thread.join()
    assert receipt.state == JobState.CANCELLED
    assert 50 < receipt.published < 500
    assert receipt.selected == 600 == receipt.published + receipt.skipped
    assert (broker.depth("orders").ready or 0) == receipt.published
    broker.close()
    ledger.close()


def test_what_a_duplicate_window_would_swallow_is_told(tmp_path: Path, live_server: Live) -> None:
    """Into another broker a copy travels under meta.id, which an SQS FIFO queue has seen lately."""
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 3)
    broker.close()
    queue = f"o-{uuid.uuid4().hex[:8]}.fifo"
    ledger = Ledger(tmp_path / "ledger.db")
    target = with_queue(live_server("elasticmq").url, queue)
    redrive = Redrive(place, to=target, ledger=ledger)
    assert redrive.dry_run().why_skipped == {"dedup window": 3}
    mended = Redrive(place, Spec(sets=("data.again = true",)), to=target, ledger=ledger)
    assert mended.run().published == 3
    ledger.close()
