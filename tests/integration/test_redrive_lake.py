"""The same dead letters counted here, by Spark from the queue, and from the tables: the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redrive_letters import BEGAN_MS, body, plant
from shinar.brokers import Delivery, Outgoing, connect
from shinar.cli.main import main
from shinar.pipeline.pipeline import Pipeline
from shinar.redrive import Chosen, LakeSeen, Ledger, Redrive, Spec, read_letters, summarise
from shinar.redrive.letters import partitions
from shinar.redrive.letters.letter import read
from shinar.redrive.letters.read import deliveries
from shinar.redrive.spark import TRAITS, letters_of_lake, summarise_lake, summarise_spooled
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
    dead = [read(Delivery(one, "orders.dlq", received_ms=received_ms), TRAITS) for one in bodies]
    here = summarise(dead, Chosen(**choice))
    there = summarise_lake(spark(), pipeline.store, **choice)
    assert here.total > 0
    assert there.rows() == here.rows()
    chosen = [letter.delivery.body for letter in dead if Chosen(**choice)(letter)]
    found = [letter.delivery.body for letter in letters_of_lake(spark(), pipeline.store, **choice)]
    assert sorted(found) == sorted(chosen)


def test_the_oldest_of_a_lake_come_first(tmp_path: Path) -> None:
    bodies = [body(n, "orders") for n in range(COUNT) if n % 12 < 10]
    pipeline = Pipeline(spark(), lake=str(tmp_path), job="job")
    pipeline.process(rows(list(reversed(bodies)), queue="orders.dlq", received=NOON))
    found = letters_of_lake(spark(), pipeline.store, where="lang = 'go'", limit=5)
    expected = [one for one in bodies if b'"lang":"go"' in one][:5]
    assert [letter.delivery.body for letter in found] == expected


def test_the_views_of_a_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [body(n, "orders") for n in range(48)]
    lake = str(tmp_path / "lake")
    Pipeline(spark(), lake=lake, job="job").process(rows(bodies, queue="orders.dlq", received=NOON))

    def asked(*words: str) -> list[dict[str, Any]]:
        assert main(["dlq", *words, "--lake", lake, "--json", "--quiet"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert sum(row["count"] for row in asked("summary")) == 48
    listed = asked("list", "--where", "lang = 'php'", "--limit", "3")
    assert [row["lang"] for row in listed] == ["php"] * 3
    (shown,) = asked("show", "--where", "reason = 'poison'", "--limit", "1")
    assert shown["raw_text"] == '{"broken":10'
    assert sorted(row["body"].encode() for row in asked("export")) == sorted(bodies)
    for view in ("summary", "list", "export"):
        assert main(["dlq", view, "--lake", lake, "--where", "nosuch = 1"]) == 2
        assert capsys.readouterr().err.startswith("shinar: --where")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue in which some died again after a redrive, and its ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHINAR_LEDGER", str(tmp_path / "ledger.db"))
    url = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(url)
    plant(broker, "orders.dlq", "orders", COUNT)
    broker.close()
    ledger = Ledger(tmp_path / "ledger.db")
    back = Redrive(url, Spec(where="exception = 'KeyError'", limit=7), ledger=ledger).run()
    ledger.close()
    assert back.published == 7
    broker = connect(url)
    again = broker.reserve("orders", 7, 0)
    broker.move("orders.dlq", [(one, Outgoing(one.body, one.headers, one.key)) for one in again])
    broker.close()
    return url


@pytest.mark.parametrize("choice", [{}, {"where": "data.n >= 100 and lang <> 'java'"}])
def test_a_queue_counted_by_spark(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any]
) -> None:
    monkeypatch.setattr(partitions, "ROWS", 23)
    monkeypatch.setattr("shinar.redrive.spark.FEWEST_FILES", 2)
    broker = connect(queue)
    ledger = Ledger(tmp_path / "ledger.db")
    here = summarise(read_letters(broker, "orders.dlq"), Chosen(**choice), ledger.generations)
    ledger.close()
    there = [
        summarise_spooled(
            spark(),
            deliveries(broker, "orders.dlq"),
            broker.traits,
            ledger=str(tmp_path / "ledger.db"),
            bounded=bounded,
            **choice,
        )
        for bounded in (True, False)
    ]
    broker.close()
    assert sum(group.died_again for group in here.groups.values()) == 7 or choice
    assert [one.rows() for one in there] == [here.rows()] * 2


def test_the_command_chooses_by_the_depth(
    queue: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spark()  # the session of this run, which the command finds
    answers = []
    for words in (["--engine", "python"], ["--spark-above", "1000"], ["--spark-above", "100"]):
        assert main(["dlq", "summary", queue, "--json", "--quiet", *words]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2]
    assert sum(json.loads(line)["died_again"] for line in answers[0].splitlines()) == 7
    monkeypatch.setattr("shinar.redrive.summarise", None)  # what Python would count with
    assert main(["dlq", "summary", queue, "--json", "--spark-above", "100"]) == 0
    assert capsys.readouterr().out == answers[0]


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
