"""Every analysis job against a lake whose truth is planted."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.analysis import fields as fields_module
from shinar.pipeline.analysis.drift import drift
from shinar.pipeline.analysis.fields import fields
from shinar.pipeline.analysis.fingerprints import fingerprints, over_time
from shinar.pipeline.analysis.proposals import propose, write_registry
from shinar.pipeline.analysis.rates import rates
from shinar.pipeline.analysis.stuck import stuck
from shinar.pipeline.analysis.traces import edges, hops, traces
from shinar.pipeline.lake.store import CORE, DEAD_LETTERS, DUPLICATES, to_spark
from shinar.pipeline.pipeline import Pipeline
from shinar.pipeline.typed.json_schema import load_registry
from unit.pipeline.lakes import NOON, envelope, rows, spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

CREATED, PAID, MAILED, SHIPPED = (
    f"urn:babel:shop:{name}" for name in ("created", "paid", "mailed", "shipped")
)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def shop(traces_: int = 30) -> list[tuple[bytes, object]]:
    """created -> paid and mailed (in changing order) -> shipped after paid. Planted: trace 3 never ships,
    trace 4 dies after paid, trace 5 is slow to pay, trace 6 goes round in a circle."""
    found = []
    for n in range(traces_):
        at = NOON + timedelta(minutes=n)
        pay, mail = (40, 60) if n % 2 else (60, 40)
        pay = 5_000 if n == 5 else pay
        steps = [(CREATED, 0, "php"), (PAID, pay, "go"), (MAILED, mail, "node")]
        if n not in (3, 4):
            steps.append((SHIPPED, pay + 1000, "java"))
        if n == 6:
            steps.append((CREATED, pay + 2000, "php"))
        for place, (urn, offset, lang) in enumerate(steps):
            body = envelope(n * 10 + place, urn, {"n": n}, at=at + ms(offset), lang=lang, trace=f"t{n}")
            found.append((body, at + ms(offset + 25)))
    return found


@pytest.fixture(scope="module")
def shop_hops() -> DataFrame:
    planted = shop()
    return hops(rows([body for body, _ in planted], received=[at for _, at in planted])).cache()


def empty(name: str) -> DataFrame:
    return spark().createDataFrame([], to_spark(CORE[name]))


def dead_letters(found: list[dict]) -> DataFrame:
    table = pa.Table.from_pylist(found, schema=DEAD_LETTERS)
    return spark().createDataFrame(table, schema=to_spark(DEAD_LETTERS))


def test_hops(shop_hops: DataFrame) -> None:
    found = {row["id"]: row.asDict() for row in shop_hops.collect()}
    assert len(found) == 30 * 4 - 2 + 1
    assert [found[f"id-{i}"]["hop"] for i in (10, 11, 12, 13)] == [1, 2, 3, 4]
    # Whichever of paid and mailed came first, both follow created, and shipped follows paid.
    for n in (1, 2):
        assert found[f"id-{n}1"]["parent_id"] == found[f"id-{n}2"]["parent_id"] == f"id-{n}0"
        assert found[f"id-{n}3"]["parent_id"] == f"id-{n}1"
    assert found["id-10"]["parent_id"] is None
    assert found["id-10"]["fan_out"] == 2
    assert found["id-13"]["fan_out"] == 0
    assert found["id-13"]["latency_ms"] == 1000
    assert found["id-10"]["wait_ms"] == 25
    assert [name for name, row in found.items() if row["slow"]] == ["id-51"]
    assert [name for name, row in found.items() if row["cycle"]] == ["id-64"]


def test_edges(shop_hops: DataFrame) -> None:
    found = {(row["parent_urn"], row["urn"]): row for row in edges(shop_hops).collect()}
    assert set(found) == {(CREATED, PAID), (CREATED, MAILED), (PAID, SHIPPED)}
    step = found[PAID, SHIPPED]
    assert (step["steps"], step["parents"], step["p50_ms"]) == (28, 30, 1000)
    assert step["share"] == pytest.approx(28 / 30)


def test_stuck(shop_hops: DataFrame) -> None:
    dead = dead_letters([{"id": "id-41", "fingerprint": "x"}])
    found = stuck(shop_hops, dead).collect()
    # The second `created` of the circle led nowhere; trace 4 is dead and not stuck.
    assert {(row["id"], row["expected_urn"]) for row in found} == {
        ("id-31", SHIPPED),
        ("id-64", PAID),
        ("id-64", MAILED),
    }
    assert next(row["usual_ms"] for row in found if row["id"] == "id-31") == 1000
    assert stuck(shop_hops, dead, now=NOON + timedelta(minutes=3, seconds=30)).count() == 0


def test_traces(shop_hops: DataFrame) -> None:
    gaps = stuck(shop_hops, empty("dead_letters"))
    found = {row["trace_id"]: row.asDict() for row in traces(shop_hops, gaps).collect()}
    assert len(found) == 30
    assert found["t1"]["path"] == " > ".join((CREATED, PAID, MAILED, SHIPPED))
    assert (found["t1"]["hops"], found["t1"]["duration_ms"], found["t1"]["fan_out"]) == (4, 1040, 2)
    assert found["t1"]["langs"] == ["go", "java", "node", "php"]
    assert {name for name, row in found.items() if row["gaps"]} == {"t3", "t4", "t6"}
    assert {name for name, row in found.items() if row["cycles"]} == {"t6"}
    assert {name for name, row in found.items() if row["slow_hops"]} == {"t5"}


def test_messages_without_a_trace_are_no_trace() -> None:
    assert hops(rows([envelope(1)]).withColumn("trace_id", F.lit(None).cast("string"))).count() == 0


def test_fingerprints() -> None:
    def letter(number: int, name: str, hour: int) -> dict:
        moment = NOON + timedelta(hours=hour)
        told = {
            "fingerprint": name,
            "template": f"{name} <n>",
            "dl_exception": name.upper(),
            "dl_lang": "php",
        }
        place = {"urn": CREATED, "dl_original_queue": "orders", "dl_attempts": 3}
        return {"id": f"id-{number}", "dl_failed_at": moment, "received_at": moment, **told, **place}

    dead = dead_letters(
        [letter(n, "old", 0) for n in range(3)]
        + [letter(3, "both", 0), letter(4, "both", 5)]
        + [letter(5, "fresh", 5)]
        + [letter(5, "fresh", 6)]  # died again
    )
    found = {
        row["fingerprint"]: row.asDict() for row in fingerprints(dead, NOON + timedelta(hours=4)).collect()
    }
    assert {name: row["dead_letters"] for name, row in found.items()} == {"old": 3, "both": 2, "fresh": 2}
    assert found["fresh"]["messages"] == 1
    assert {name for name, row in found.items() if row["new"]} == {"fresh"}
    assert {name for name, row in found.items() if row["gone"]} == {"old"}
    assert found["old"]["share"] == pytest.approx(3 / 7)
    assert found["old"]["exception"] == "OLD"
    assert not any(row["new"] or row["gone"] for row in fingerprints(dead).collect())
    counts = {(row["fingerprint"], row["dead_letters"]) for row in over_time(dead).collect()}
    assert counts == {("old", 3), ("both", 1), ("fresh", 1)}


def test_rates() -> None:
    bodies = [envelope(n, CREATED, attempts=n % 2) for n in range(10)]
    received = [NOON + ms(100 * (n + 1)) for n in range(10)]
    early = envelope(99, CREATED, at=NOON + timedelta(minutes=5))
    live = rows([*bodies, early], received=[*received, NOON])
    again = spark().createDataFrame(
        pa.Table.from_pylist(
            [{"id": "id-1", "urn": CREATED, "queue": "orders", "lang": "php", "received_at": NOON}],
            schema=DUPLICATES,
        ),
        schema=to_spark(DUPLICATES),
    )
    place = {"urn": CREATED, "lang": "php", "dl_original_queue": "orders", "queue": "orders.dlq"}
    dead = dead_letters(
        [
            {"id": "id-1", "fingerprint": "x", "dl_failed_at": NOON, **place},
            {"id": "id-2", "fingerprint": "x", "dl_failed_at": NOON + timedelta(hours=3), **place},
        ]
    )
    first, second = (row.asDict() for row in rates(live, again, dead).collect())
    assert (first["urn"], first["queue"], first["lang"]) == (CREATED, "orders", "php")
    assert (first["messages"], first["retries"], first["duplicates"], first["dead_letters"]) == (11, 5, 1, 1)
    assert (first["p50_ms"], first["p99_ms"], first["from_the_future"]) == (500, 1000, 1)
    assert first["retry_rate"] == pytest.approx(5 / 11)
    assert first["dlq_rate"] == pytest.approx(1 / 11)
    assert (second["messages"], second["dead_letters"], second["dlq_rate"]) == (0, 1, None)


def test_drift() -> None:
    def order(number: int, lang: str, **more: object) -> bytes:
        return envelope(number, CREATED, {"id": number, "note": "x", **more}, lang=lang)

    bodies = [order(n, "php", total=5) for n in range(30)]
    bodies += [order(100 + n, "go", total=5) for n in range(30)]
    bodies += [order(200, "node", total=9.99), order(201, "node", total="9.99")]
    bodies += [order(202, "node", total=1, big=2**53)]
    bodies += [envelope(300 + n, CREATED, {"id": n, "total": 5}, lang="ruby") for n in range(25)]
    bodies += [envelope(400, CREATED, {"id": 1, "note": "x", "total": 1}, lang="php", timestamp=5)]
    properties: list[dict | None] = [None] * len(bodies)
    properties[0] = {"bq-job": PAID, "bq-trace-id": "trace-0", "bq-source-lang": "php"}
    found = drift(rows(bodies, properties=properties)).collect()
    told = {(row["finding"], row["lang"], row["pointer"]): row for row in found}
    assert set(told) == {
        ("mixed_types", "node", "/total"),
        ("float_money", "node", "/total"),
        ("unsafe_integer", "node", "/big"),
        ("missing_field", "ruby", "/note"),
        ("forbidden_key", "php", "/timestamp"),
        ("header_disagrees", "php", "bq-job disagrees with urn"),
    }
    assert told["mixed_types", "node", "/total"]["detail"] == "string where number is usual"
    assert told["missing_field", "ruby", "/note"]["seen"] == 25
    assert told["unsafe_integer", "node", "/big"]["sample_id"] == "id-202"


def test_drift_since() -> None:
    later = NOON + timedelta(days=1)
    bodies = [envelope(1, CREATED, {"old": 1, "kept": 1})]
    bodies += [envelope(2, CREATED, {"kept": 1, "new": {"deep": 1}}, at=later)]
    found = drift(rows(bodies), since=NOON + timedelta(hours=1)).collect()
    told = {(row["finding"], row["pointer"]) for row in found}
    assert told == {("gone_field", "/old"), ("new_field", "/new"), ("new_field", "/new/deep")}


def test_fields_of_arrays_and_odd_names() -> None:
    bodies = [envelope(1, CREATED, {"a/b": [{"x": 1}, {"x": "t"}], "~": None})]
    found = {(row["pointer"], row["kind"]): row["seen"] for row in fields(rows(bodies)).collect()}
    assert found == {
        ("", "message"): 1,
        ("/a~1b", "array"): 1,
        ("/a~1b/*", "object"): 2,
        ("/a~1b/*/x", "integer"): 1,
        ("/a~1b/*/x", "string"): 1,
        ("/~0", "null"): 1,
    }


def test_proposals(tmp_path: Path) -> None:
    bodies = []
    for n in range(250):
        data = {
            "id": n,
            "total": n + 0.5 if n % 2 else n,
            "state": ("new", "paid")[n % 2],
            "who": {"name": f"n{n}"},
        }
        data |= {"lines": [{"sku": f"s{n}"}]} | ({"note": f"text {n}"} if n % 3 else {"note": None})
        data |= {"odd": 1 if n % 2 else "x"}
        bodies.append(envelope(n, CREATED, data, lang=("php", "go")[n % 2]))
    (proposal,) = propose(rows(bodies))
    assert (proposal.urn, proposal.messages, proposal.langs) == (CREATED, 250, ("go", "php"))
    schema = proposal.schema
    assert schema["required"] == ["id", "lines", "odd", "state", "total", "who"]
    assert schema["properties"] == {
        "id": {"type": "integer"},
        "total": {"type": "number"},
        "state": {"type": "string", "enum": ["new", "paid"]},
        "who": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        "lines": {
            "type": "array",
            "items": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}},
        },
        "note": {"type": "string"},
        "odd": {},
    }
    assert proposal.notes == ("/odd: integer, string were all seen; no type proposed",)
    assert 0 < proposal.confidence < 0.25
    registry = write_registry([proposal], tmp_path / "out")
    assert set(load_registry(registry)) == {CREATED}
    assert json.loads((registry.parent / "shop_created.json").read_text()) == schema
    with pytest.raises(FileExistsError):
        write_registry([proposal], tmp_path / "out")


def test_fields_are_counted_on_after_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task hands on what it has now and then; the limit of fields starts anew with that."""
    monkeypatch.setattr(fields_module, "_FLUSH_ROWS", 10)
    monkeypatch.setattr(fields_module, "MAX_FIELDS", 3)
    columns = {"urn": ["u"], "lang": ["php"], "data": ['{"a":1,"b":2,"c":3}'], "at": [None], "id": ["x"]}
    part = pa.RecordBatch.from_pydict({name: values * 10 for name, values in columns.items()})
    told = [row for batch in fields_module._count(iter([part] * 4)) for row in batch.to_pylist()]
    assert sum(row["seen"] for row in told if row["pointer"] == "") == 40


def test_drift_sees_values_that_do_not_fit_their_column(tmp_path: Path) -> None:
    """102 amounts as text from Node were no drift once: they were in quarantine."""
    job = Pipeline(spark(), lake=str(tmp_path), job="job")
    job.process(rows([envelope(n, data={"amount": n + 0.5}) for n in range(30)]))
    job.process(rows([envelope(n, data={"amount": str(n)}, lang="node") for n in range(30, 33)]))
    found = drift(job.table("messages"), rejects=job.table("typed_rejects")).collect()
    told = {(row["finding"], row["lang"], row["pointer"]): (row["detail"], row["seen"]) for row in found}
    assert told["type_clash", "node", "/amount"] == ("decimal in the table, string here", 3)
    assert told["mixed_types", "node", "/amount"] == ("string where number is usual", 3)


def test_rates_of_an_archive_go_by_creation(tmp_path: Path) -> None:
    job = Pipeline(spark(), lake=str(tmp_path), job="job", typed=False)
    job.process(rows([envelope(n) for n in range(3)]).drop("received_at", "verdict"))
    (found,) = rates(*(job.table(name) for name in ("messages", "duplicates", "dead_letters"))).collect()
    assert (found["messages"], found["hour"].hour, found["p50_ms"]) == (3, 12, None)
