"""The same dead letters counted from a queue and from the tables of a lake: the same answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive_letters import BEGAN_MS, body
from shinar.brokers import Delivery, Outgoing, connect
from shinar.pipeline.job import Pipeline
from shinar.redrive import Chosen, LakeSeen, Ledger, Redrive, Summary, read, summarise
from shinar.redrive.lake import TRAITS, summarise_lake
from unit.pipeline.lakes import NOON, envelope, rows, spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

COUNT = 240


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"where": "lang = 'php' and data.n > 100"},
        {"where": "reason = 'poison' or data.amount between 10 and 500"},
        {"since_ms": BEGAN_MS + 12_000},
    ],
)
def test_equal_either_way(tmp_path: Path, choice: dict[str, Any]) -> None:
    bodies = [body(n, "orders") for n in range(COUNT)]
    pipeline = Pipeline(spark(), lake=str(tmp_path), job="job")
    pipeline.process(rows(bodies, queue="orders.dlq", received=NOON))
    received_ms = round(NOON.timestamp() * 1000)
    letters = [read(Delivery(one, "orders.dlq", received_ms=received_ms), TRAITS) for one in bodies]
    here = summarise(letters, Chosen(**choice))
    there = summarise_lake(spark(), pipeline.store, **choice)
    assert here.total > 0
    assert _rows(there) == _rows(here)


def _rows(summary: Summary) -> list[dict[str, Any]]:
    # Without an id (poison) any one may speak for its kind.
    return [row | {"sample_error": row["sample_id"] and row["sample_error"]} for row in summary.rows()]


def test_what_the_lake_has_seen_alive_is_left_out(tmp_path: Path) -> None:
    alive = [envelope(n) for n in range(5)]
    dead = [envelope(n, dead={"error": "x"}) for n in range(3, 9)]
    Pipeline(spark(), lake=str(tmp_path / "lake"), job="job").process(rows(alive))
    url = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(url)
    broker.publish("orders.dlq", [Outgoing(one) for one in dead])
    broker.close()
    ledger = Ledger(tmp_path / "ledger.db")
    redrive = Redrive(url, ledger=ledger, succeeded=LakeSeen(str(tmp_path / "lake")))
    receipt = redrive.run()
    ledger.close()
    assert (receipt.published, receipt.why_skipped) == (4, {"succeeded": 2})
