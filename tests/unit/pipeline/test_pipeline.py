"""The line of a batch against planted truths: every row in one place, whatever crashes in between."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from servers.process import free_port
from shinar.envelope.fingerprint import error_template, fingerprint
from shinar.errors import BrokerError, BrokerUnavailable, ConfigError, QueueMissing, StoreError, Unbalanced
from shinar.pipeline.batch.journal import Balance, BatchId
from shinar.pipeline.batch.processor import BatchProcessor
from shinar.pipeline.batch.write_tables import TableFiles
from shinar.pipeline.checkpoint import same_broker
from shinar.pipeline.config import PipelineConfig, job_name
from shinar.pipeline.lake.delta import DeltaStore
from shinar.pipeline.maintenance import compact, status
from shinar.pipeline.pipeline import Pipeline
from shinar.pipeline.spark_errors import as_our_errors
from unit.pipeline.lakes import NOON, envelope, rows, spark, table

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

POISON = [b"{", b"\xff", b'{"job":"","data":{}}', b'{"job":"urn:x","meta":{"schema_version":2},"data":{}}']


def planted() -> list[bytes]:
    """40 messages of two URNs, 6 delivered again, 2 without an id, 4 that are no messages."""
    live = [envelope(n, f"urn:babel:orders:{'created' if n % 2 else 'paid'}") for n in range(40)]
    return [*live, *live[:6], envelope(900, id=""), envelope(900, id=""), *POISON]


def pipeline(lake: Path, **given: object) -> Pipeline:
    return Pipeline(spark(), lake=str(lake), job="job", **given)


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_every_row_is_in_one_place(tmp_path: Path, table_format: str) -> None:
    job = pipeline(tmp_path, table_format=table_format)
    done = job.process(rows(planted()))
    assert (done.received, done.messages, done.quarantine, done.duplicates) == (52, 42, 4, 6)
    assert done.queues["orders"]["received"] == 52
    assert done.balanced
    ids = [row["id"] for row in table(job.store, "messages", "id")]
    assert sorted(filter(None, ids)) == sorted(f"id-{n}" for n in range(40))
    assert ids.count(None) == 2
    assert sorted(row["id"] for row in table(job.store, "duplicates")) == [f"id-{n}" for n in range(6)]
    bad = table(job.store, "quarantine", "body", "verdict", "reason")
    assert sorted(row["body"] for row in bad) == sorted(POISON)
    assert all(row["reason"] for row in bad)
    assert {row["verdict"] for row in bad} == {"poison", "no_identity", "unsupported_version"}
    batches = table(job.store, "batches")
    assert [(row["received"], row["queue"]) for row in batches] == [(52, "orders")]
    created = table(job.store, "typed/orders_created", "_id", "order_id")
    assert sorted(row["order_id"] for row in created if row["_id"]) == list(range(1, 40, 2))
    _read_by_others(job, table_format)


def _read_by_others(job: Pipeline, table_format: str) -> None:
    """DuckDB, Polars, pandas and Spark agree on what is in the table."""
    files = job.store.files("messages")
    root = str(job.store.root / "messages")
    assert duckdb.sql(f"select count(*) from read_parquet({files})").fetchall() == [(42,)]
    assert job.table("messages").count() == 42
    if table_format == "delta":
        assert polars.read_delta(root).height == 42
        assert len(DeltaTable(root).to_pandas()) == 42
        scanned = DeltaTable(root).to_pyarrow_dataset()  # noqa: F841  DuckDB finds it by its name
        assert duckdb.sql("select count(distinct id) from scanned").fetchall() == [(40,)]
    else:
        folder = f"{root}/*/*.parquet"
        assert duckdb.sql(f"select count(*) from '{folder}'").fetchall() == [(42,)]
        assert spark().read.option("recursiveFileLookup", "true").parquet(root).count() == 42
        assert polars.read_parquet(folder).height == 42


def test_ids_are_compared_with_history(tmp_path: Path) -> None:
    job = pipeline(tmp_path)
    job.process(rows([envelope(n) for n in range(10)]))
    compact(job.store)  # what compaction writes must still be the history
    later = job.process(rows([envelope(n) for n in range(5, 15)]))
    assert (later.messages, later.duplicates) == (5, 5)
    again = table(job.store, "duplicates", "id", "first_batch", "batch")
    assert {row["id"] for row in again} == {f"id-{n}" for n in range(5, 10)}
    first, second = (
        row["batch"] for row in sorted(table(job.store, "batches"), key=lambda r: r["prepared_at"])
    )
    assert {(row["first_batch"], row["batch"]) for row in again} == {(first, second)}


def test_a_horizon_bounds_the_history(tmp_path: Path) -> None:
    job = pipeline(tmp_path, horizon_s=3600.0, typed=False)
    job.process(rows([envelope(1), envelope(2)], received=NOON))
    near = job.process(rows([envelope(1)], received=NOON + timedelta(minutes=30)))
    far = job.process(rows([envelope(2)], received=NOON + timedelta(hours=2)))
    assert (near.messages, near.duplicates) == (0, 1)
    assert (far.messages, far.duplicates) == (1, 0)


class Crash(Exception):
    pass


class CrashingDelta(DeltaStore):
    """Dies at the n-th commit, before or after the table has it."""

    at, after = 0, False

    def commit(self, change: object) -> bool:
        type(self).at -= 1
        if self.at == 0 and not self.after:
            raise Crash
        done = super().commit(change)
        if self.at == 0:
            raise Crash
        return done


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_between_two_commits(tmp_path: Path, after: bool) -> None:
    """At every commit in turn: the batch is finished by its second run, and nothing is there twice."""
    batch = BatchId("job", "epoch", 0)
    job = pipeline(tmp_path)
    CrashingDelta.after = after
    job._store = CrashingDelta(job.store.root)
    for at in range(1, 7):
        CrashingDelta.at = at
        try:
            job.process(rows(planted()[::-1]), batch)
        except Crash:
            continue
        break
    CrashingDelta.at = 0
    job._store = DeltaStore(job.store.root)
    job.process(rows(planted()), batch)
    counts = {name: len(table(job.store, name)) for name in job.store.tables()}
    assert counts == {
        "messages": 42,
        "quarantine": 4,
        "duplicates": 6,
        "batches": 1,
        "typed/orders_created": 22,
        "typed/orders_paid": 20,
    }


def test_a_batch_that_was_done_is_not_read_again(tmp_path: Path) -> None:
    batch = BatchId("job", "epoch", 0)
    job = pipeline(tmp_path, typed=False)
    job.process(rows([envelope(1)]), batch)
    again = job.process(rows([envelope(1), envelope(2)]), batch)
    assert again.batches == 0
    assert len(table(job.store, "messages")) == 1


def test_a_new_checkpoint_counts_anew(tmp_path: Path) -> None:
    job = pipeline(tmp_path, typed=False)
    job.process(rows([envelope(1)]), BatchId("job", "one", 0))
    done = job.process(rows([envelope(1), envelope(2)]), BatchId("job", "two", 0))
    assert (done.messages, done.duplicates) == (1, 1)


def test_queues_balance_each(tmp_path: Path) -> None:
    bodies = [envelope(1), envelope(2), b"{", envelope(1), envelope(3)]
    done = pipeline(tmp_path, typed=False).process(rows(bodies, queue=["a", "b", "b", "b", None]))
    for name, expected in {"a": (1, 1, 0, 0), "b": (3, 1, 1, 1), "orders": (1, 1, 0, 0)}.items():
        told = done.queues[name]
        assert (told["received"], told["messages"], told["quarantine"], told["duplicates"]) == expected


def test_what_does_not_add_up_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = BatchProcessor._write_tables

    def losing(self: BatchProcessor, *args: object) -> TableFiles:
        parts = split(self, *args)
        del parts.files["quarantine"]
        return parts

    monkeypatch.setattr(BatchProcessor, "_write_tables", losing)
    job = pipeline(tmp_path, typed=False)
    with pytest.raises(Unbalanced, match="does not add up"):
        job.process(rows([envelope(1), b"{"]))
    assert job.store.tables() == []
    assert not Balance("q", 3, 1, 1, 0).adds_up


def test_typed_tables_evolve_and_a_clash_is_a_typed_reject(tmp_path: Path) -> None:
    job = pipeline(tmp_path)
    urn = "urn:babel:orders:created"
    job.process(rows([envelope(n, urn, {"order_id": n, "amount": 9.9}) for n in range(4)]))
    big = 9_007_199_254_740_993
    done = job.process(
        rows(
            [
                envelope(10, urn, {"order_id": big, "amount": 1, "customer": {"id": 7}}),
                envelope(11, urn, {"order_id": "eleven", "amount": 2.5}),
                envelope(12, urn, {"order_id": 12, "amount": 2.5}),
            ]
        )
    )
    assert (done.received, done.messages, done.quarantine) == (3, 3, 0)
    found = {row["_id"]: row for row in table(job.store, "typed/orders_created")}
    assert found["id-10"]["order_id"] == big
    assert found["id-10"]["customer__id"] == 7
    assert found["id-0"]["amount"] == Decimal("9.9")
    assert found["id-12"]["customer__id"] is None
    assert "id-11" not in found
    (bad,) = table(job.store, "typed_rejects")
    assert (bad["id"], bad["pointer"], bad["column"]) == ("id-11", "/data/order_id", "order_id")
    assert (bad["table"], bad["urn"], bad["value"]) == ("typed/orders_created", urn, '"eleven"')
    assert bad["reason"] == "type_clash: long in the table, string here"
    assert {row["id"]: row["data"] for row in table(job.store, "messages")}["id-11"] == (
        '{"order_id":"eleven","amount":2.5}'
    )
    frame = job.table("typed/orders_created")
    assert dict(frame.dtypes)["amount"] == "decimal(38,18)"
    assert frame.where("customer__id = 7").count() == 1
    assert polars.read_delta(str(job.store.root / "typed/orders_created")).height == 6


def test_a_new_field_of_two_types_is_decided_once(tmp_path: Path) -> None:
    """The table is known, the field is not: its file is written again, and the rest is rejected then."""
    job = pipeline(tmp_path)
    job.process(rows([envelope(n) for n in range(4)]))
    payloads = [{"order_id": n, "size": "XL" if n == 13 else n} for n in range(10, 16)]
    done = job.process(rows([envelope(p["order_id"], data=p) for p in payloads]))
    assert (done.received, done.messages, done.tables["typed_rejects"]) == (6, 6, 1)
    (bad,) = table(job.store, "typed_rejects", "id", "pointer")
    assert bad == {"id": "id-13", "pointer": "/data/size"}
    found = {row["order_id"]: row.get("size") for row in table(job.store, "typed/orders_created")}
    assert found == {**dict.fromkeys(range(4)), **{n: n for n in range(10, 16) if n != 13}}


def test_raw_bodies_are_judged_on_the_way(tmp_path: Path) -> None:
    raw = rows(planted()).select("body", "queue", "received_at", "position")
    job = pipeline(tmp_path)
    done = job.process(raw)
    assert (done.received, done.messages, done.quarantine, done.duplicates) == (52, 42, 4, 6)
    found = table(job.store, "messages", "body", "data", "broker", "queue")
    assert {row["broker"] for row in found} == {"archive"}
    assert {row["queue"] for row in found} == {"orders"}
    assert all(row["data"].encode() in row["body"] for row in found)


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_a_lake_may_lie_in_a_folder_with_an_odd_name(tmp_path: Path, table_format: str) -> None:
    odd = "a b#{2}?*+ü" + ("[1]" if table_format == "parquet" else "")
    job = pipeline(tmp_path / odd, table_format=table_format)
    for start in (0, 3):
        job.process(rows([envelope(n) for n in range(start, start + 5)]))
    assert (job.table("messages").count(), job.table("duplicates").count()) == (8, 2)


def test_an_archive_gives_the_same_rows_whoever_reads_it(tmp_path: Path) -> None:
    """Spark reads Parquet, our own source reads lines: equal but for the place of each body."""
    bodies = [body for body in planted() if b"\n" not in body and body]
    (tmp_path / "bodies.jsonl").write_bytes(b"\n".join(bodies))
    folder = tmp_path / "par quet"
    (folder / "below").mkdir(parents=True)
    for part, name in enumerate(("0.parquet", "below/1.parquet")):
        pq.write_table(pa.table({"body": pa.array(bodies[part::2], pa.binary())}), folder / name)
    found = {}
    for path in (tmp_path / "bodies.jsonl", folder):
        job = pipeline(tmp_path / f"lake-{path.name}", path=str(path))
        summary = job.run()
        assert summary.received == len(bodies)
        found[path.name] = {
            name: sorted(map(str, job.table(name).drop("position", "batch", "first_batch").collect()))
            for name in ("messages", "quarantine", "duplicates")
        }
        if path == folder:
            places = {row.position for row in job.table("messages").select("position").collect()}
            assert places <= {
                f"{folder}/{name}.parquet#{n}".replace(" ", "%20")
                for name in ("0", "below/1")
                for n in range(99)
            }
            assert len(places) == summary.messages
    assert found["bodies.jsonl"] == found["par quet"]


def test_an_archive_without_bodies_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="no column body; it has text"):
        pipeline(tmp_path / "lake", path=str(tmp_path / "a.parquet")).run()


def test_routes_join_urns_in_one_table(tmp_path: Path) -> None:
    job = pipeline(tmp_path, routes={"urn:babel:orders:*": "orders", "*": "-"})
    job.process(rows([*planted(), envelope(950, "urn:babel:mails:sent")]))
    assert [name for name in job.store.tables() if name.startswith("typed/")] == ["typed/orders"]
    assert len(table(job.store, "typed/orders")) == 42
    assert len(table(job.store, "messages")) == 43


def test_dead_letters(tmp_path: Path) -> None:
    job = pipeline(tmp_path, typed=False)
    dead = {"exception": "App\\GatewayTimeout", "error": "timeout after 31 s"}
    job.process(rows([envelope(1), envelope(2)]))
    letters = [envelope(1, dead=dead), envelope(1, dead=dead), envelope(5, dead=dead), b"not json"]
    done = job.process(rows(letters, queue="orders.dlq"))
    # The first is known by its id, the second is the same death delivered twice.
    assert (done.messages, done.duplicates, done.quarantine, done.dead_letters) == (1, 2, 1, 3)
    found = table(job.store, "dead_letters", "id", "fingerprint", "template", "body")
    assert sorted(str(row["id"]) for row in found) == ["None", "id-1", "id-5"]
    printed = fingerprint("GatewayTimeout", "timeout after 2 s", "urn:babel:orders:created", "php", "orders")
    assert {row["fingerprint"] for row in found if row["id"]} == {printed}
    assert {row["template"] for row in found if row["id"]} == {error_template("timeout after 1 s")}
    # A message that died, was sent back and died again is a second dead letter; the same death is not.
    later = [envelope(1, dead=dead | {"failed_at": 1}), envelope(1, dead=dead)]
    assert job.process(rows(later, queue="orders.dlq")).dead_letters == 1


def test_handlers(tmp_path: Path) -> None:
    job = pipeline(tmp_path, typed=False)
    broken = True

    @job.handler("urn:babel:orders:created")
    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy("urn").agg(F.count("*").alias("n"))

    @job.handler("urn:babel:*")
    def flaky(orders: DataFrame) -> DataFrame:
        if broken:
            raise ValueError("the warehouse is away")
        return orders.select("id", "urn", "received_at", "headers")

    seen: list[int] = []

    @job.handler("*", name="effects")
    def only_looks(orders: DataFrame) -> None:
        seen.append(orders.count())

    first = BatchId("job", "epoch", 0)
    done = job.process(rows(planted()), first)
    assert done.messages == 42
    assert len(done.handler_failures) == 1
    assert "the warehouse is away" in done.handler_failures[0]
    assert [row["n"] for row in table(job.store, "handled/totals")] == [22]
    assert seen == [42]
    (failure,) = table(job.store, "handler_failures")
    assert (failure["handler"], failure["attempt"]) == ("flaky", 1)

    job.process(rows(planted()), first)  # Spark asks again after a crash: nothing is handled twice
    assert [row["n"] for row in table(job.store, "handled/totals")] == [22]
    assert seen == [42]

    broken = False
    job.process(rows([envelope(100)]), BatchId("job", "epoch", 1))
    handled = [row["id"] for row in table(job.store, "handled/flaky")]
    assert len(handled) == 43
    assert "id-100" in handled
    assert "id-0" in handled
    assert job.retry_handlers() == []


def test_nothing_received_is_no_batch(tmp_path: Path) -> None:
    job = pipeline(tmp_path)
    done = job.process(rows([envelope(1)]).where("false"))
    assert (done.batches, done.received) == (0, 0)
    assert job.store.tables() == []


def test_bad_calls(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="chekpoint"):
        pipeline(tmp_path, chekpoint="x")
    with pytest.raises(ConfigError, match="job"):
        Pipeline(spark(), lake=str(tmp_path), job="../x")
    job = pipeline(tmp_path)
    job.handler("*", name="one")(lambda frame: None)
    with pytest.raises(ConfigError, match="twice"):
        job.handler("*", name="one")(lambda frame: None)
    with pytest.raises(ConfigError, match="no table 'nothing'"):
        job.table("nothing")
    assert job.table("messages").count() == 0


def test_an_archive_loaded_twice_is_there_once(tmp_path: Path) -> None:
    """Its rows have no time of delivery, and are known again all the same."""
    (tmp_path / "bodies.jsonl").write_bytes(b"\n".join(envelope(n) for n in range(5)))
    job = pipeline(tmp_path / "lake", path=str(tmp_path / "bodies.jsonl"), typed=False)
    assert (job.run().messages, job.run().duplicates) == (5, 5)
    assert len(table(job.store, "messages")) == 5
    first = {row["batch"] for row in table(job.store, "messages", "batch")}
    assert {row["first_batch"] for row in table(job.store, "duplicates")} == first


def bodies_frame(bodies: list[bytes]) -> DataFrame:
    """In one partition, in this order."""
    return spark().createDataFrame(pa.table({"body": pa.array(bodies, pa.binary())})).coalesce(1)


def test_types_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """The sample sees integers only; fractions and a few texts follow."""
    payloads = [*range(600), *(n + 0.5 for n in range(700)), *("many" for _ in range(3))]
    job = pipeline(tmp_path)
    done = job.process(bodies_frame([envelope(n, data={"amount": a}) for n, a in enumerate(payloads)]))
    assert (done.received, done.messages, done.tables["typed_rejects"]) == (1303, 1303, 3)
    found = [row["amount"] for row in table(job.store, "typed/orders_created", "amount")]
    assert sorted(found) == sorted(map(Decimal, payloads[:1300]))


def test_a_key_that_is_no_text_stops_nothing(tmp_path: Path) -> None:
    job = pipeline(tmp_path)
    for number in (0, 10):  # in a new table and in a known one
        odd = envelope(number + 1, data={"x": 2, "KEY": 1}).replace(b"KEY", rb"\ud800")
        done = job.process(bodies_frame([envelope(number, data={"x": 1}), odd]))
        assert (done.messages, done.tables["typed/orders_created"]) == (2, 2)
    extras = [row["_extra"] for row in table(job.store, "typed/orders_created", "_extra")]
    assert sorted(filter(None, extras)) == [r'{"/\ud800":1}'] * 2


def test_two_jobs_meet_a_new_urn_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them decides what the column is; the other's value is rejected, and neither job is stuck."""
    known = BatchProcessor._known_columns

    def slowly(self: BatchProcessor) -> object:
        found = known(self)
        time.sleep(1)  # long enough for the other to have read the same
        return found

    monkeypatch.setattr(BatchProcessor, "_known_columns", slowly)
    jobs = [Pipeline(spark(), lake=str(tmp_path), job=name) for name in "ab"]
    both = envelope(7, "urn:babel:orders:paid")
    given = [
        bodies_frame([envelope(n, data={"amount": amount}), both]) for n, amount in enumerate((1, "1.50"))
    ]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda job, rows: job.process(rows), jobs, given))
    counts = sorted((one.messages, one.tables.get("typed_rejects", 0), one.duplicates) for one in done)
    assert counts == [(1, 1, 1), (2, 0, 0)]  # and what both received is there once
    assert status(jobs[0].store).unfinished == ()


@pytest.mark.parametrize("handling", [False, True])
def test_a_recovered_archive_reaches_the_handlers(tmp_path: Path, handling: bool) -> None:
    """Killed between two commits, or between the last and the end of the handler."""

    def made(dying: bool) -> Pipeline:
        def ids(frame: DataFrame) -> DataFrame:
            if dying:
                raise SystemExit
            return frame.select("id")

        job = pipeline(tmp_path, typed=False)
        job.handler("*")(ids)
        return job

    job = made(dying=handling)
    if not handling:
        CrashingDelta.at, CrashingDelta.after = 2, False
        job._store = CrashingDelta(job.store.root)
    with pytest.raises((Crash, SystemExit)):
        job.process(rows([envelope(n) for n in range(3)]))
    CrashingDelta.at = 0
    (text,) = status(job.store).pending
    assert "not run yet" in text
    again = made(dying=False)
    again.process(rows([envelope(n) for n in range(2, 5)]))
    assert sorted(row["id"] for row in table(again.store, "handled/ids")) == [f"id-{n}" for n in range(5)]
    assert status(again.store).pending == ()


def test_what_is_wrong_is_said_before_anything_is_read(tmp_path: Path) -> None:
    for given, text in (
        ({"routes": {"urn:x": 5}}, "route urn:x"),
        ({"routes": {"urn:x": "Not A Name"}}, "route urn:x"),
        ({"registry": str(tmp_path / "none.json")}, r"registry .*none\.json\): cannot be read: No such file"),
        ({"max_records": 0}, "max_records: must be at least 1"),
        ({"table_format": "csv"}, "format"),
    ):
        with pytest.raises(ConfigError, match=text):
            pipeline(tmp_path / "lake", **given)
    job = pipeline(tmp_path / "lake", url=f"sqlite://{tmp_path}/q.db", queue="orders")
    with pytest.raises(ConfigError, match="interval: 'nonsense'"):
        job.run(interval="nonsense")
    with pytest.raises(ConfigError, match="handler"):

        @job.handler
        def bare(frame: DataFrame) -> None: ...


def test_a_failed_stream_raises_our_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = pipeline(tmp_path, url=f"redis://localhost:{free_port()}/orders")
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        away.run(once=True)
    missing = pipeline(tmp_path, url_env="SHINAR_NOT_SET", queue="orders")
    with pytest.raises(ConfigError, match="SHINAR_NOT_SET is not set"):
        missing.run(once=True)
    with pytest.raises(ConfigError, match="does not exist"):
        pipeline(tmp_path, path=str(tmp_path / "none.jsonl")).run()


def test_a_checkpoint_belongs_to_one_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same_broker(PipelineConfig(url="kafka://b:9092,a:9092/orders"), tmp_path)
    same_broker(PipelineConfig(url="kafka://a:9092,b:9092", queue="orders"), tmp_path)
    monkeypatch.setenv("ELSEWHERE", "kafka://me:secret@c:9092/orders")
    with pytest.raises(ConfigError, match=r"another broker.*--job"):
        same_broker(PipelineConfig(url_env="ELSEWHERE"), tmp_path)
    for host in "ab":
        same_broker(PipelineConfig(url=f"redis://{host}/orders"), tmp_path / "queue")


def test_queues_have_jobs_of_their_own() -> None:
    assert job_name(PipelineConfig(queue="orders_eu")) == "orders_eu"
    named = {
        job_name(PipelineConfig(queue=name)) for name in ("orders_eu", "orders-eu", "orders,eu", "-orders-eu")
    }
    assert len(named) == 4
    assert len(job_name(PipelineConfig(queue="q" * 300))) <= 64


def test_an_error_from_spark_is_told_as_ours() -> None:
    from pyspark.errors import PySparkException

    trace = "Traceback ...\nshinar.errors.{}: {}\n\tat org.apache.spark.X"
    for name, kind in (("QueueMissing", QueueMissing), ("BodyTooLarge", BrokerError), ("Nope", StoreError)):
        with pytest.raises(kind, match=r"^what to do$") as caught, as_our_errors():
            raise PySparkException(trace.format(name, "what to do"))
        assert type(caught.value) is kind
    with pytest.raises(PySparkException, match="java alone"), as_our_errors():
        raise PySparkException("java alone")
