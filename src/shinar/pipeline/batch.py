"""One batch on its straight line: judged rows, staged files, duplicates out, typed, balanced, manifest.

Rows are written once, to staged files; only files that hold duplicates or clashes are written again. Nothing
is visible in any table before the manifest is on disk. Knows no broker and no stream.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as F

from shinar.clock import SYSTEM, Clock
from shinar.errors import StoreError
from shinar.pipeline import deadletters, dedupe, schema, tables, typed_files
from shinar.pipeline.manifest import Balance, BatchId, Manifest, stage_dir, typed_path
from shinar.pipeline.route import Routes
from shinar.pipeline.tables import TYPED_DIR, Commit, DataFile, Store
from shinar.pipeline.typed import Columns, load_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Stands for a delivery whose queue is not known, so that the balance has a row for it.
NO_QUEUE: Final = ""
#: A stream that never ends must not read an ever longer history for each batch.
STREAM_HORIZON_S: Final = 7 * 86_400.0
#: Places of rows (a file's name and a number) that are broadcast: some fifty megabytes.
BROADCAST_PLACES: Final = 300_000


#: Spark settings the line relies on, set on the session that writes.
WRITE_SETTINGS: Final = {
    # The default (INT96) has no statistics, and other readers treat it as a relic.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Accepted and rejected rows go to two open files instead of being sorted first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
}


class Rules(msgspec.Struct, frozen=True):
    """How a job treats its batches."""

    routes: Mapping[str, str] = {}
    typed: bool = True
    registry: str | None = None
    #: How far back an id is compared, counted from the batch's earliest delivery. None is all history for a
    #: run that ends and STREAM_HORIZON_S for one that does not; infinity is all history for both.
    horizon_s: float | None = None


class Unbalanced(StoreError):
    """A batch whose rows do not add up is never committed."""

    code = "SH-1301"


class Line:
    """Prepares one batch. An object only because the steps share store, session and folders."""

    def __init__(self, spark: SparkSession, store: Store, rules: Rules, clock: Clock = SYSTEM) -> None:
        self._spark = spark
        for name, value in WRITE_SETTINGS.items():
            spark.conf.set(name, value)
        self._store = store
        self._rules = rules
        self._clock = clock
        self._routes = Routes(rules.routes)
        self._registry = load_registry(rules.registry) if rules.registry else {}

    def prepare(self, rows: DataFrame, batch: BatchId) -> Manifest | None:
        """Write and count everything the batch adds; None when it has no rows."""
        started_s = self._clock.monotonic_s()
        work = stage_dir(self._store, batch)
        try:
            return self._prepare(rows, batch, work, started_s)
        finally:
            tables.remove_tree(work)

    def _prepare(self, rows: DataFrame, batch: BatchId, work: Path, started_s: float) -> Manifest | None:
        staged = self._stage(rows, batch, work)
        if not staged.received:
            return None
        duplicates = self._duplicates(staged, batch, work)
        outcome = self._typed(staged, duplicates, batch, work)
        clashes = typed_files.clashes(outcome, self._spark) if outcome else None
        parts = self._split(staged, duplicates, clashes, work)
        parts["dead_letters"] = self._dead_letters(staged, work)
        balances = self._balance(staged, parts)
        commits = self._adopt(parts, batch, work.name)
        if outcome:
            commits += self._typed_commits(outcome, batch)
        took_ms = int((self._clock.monotonic_s() - started_s) * 1000)
        commits.append(self._batches_row(batch, balances, staged, took_ms, work.name))
        columns = outcome.columns if outcome else {}
        return Manifest(
            batch=batch,
            commits=tuple(commits),
            balances=tuple(balances),
            typed={f"{TYPED_DIR}/{name}": msgspec.Raw(msgspec.json.encode(c)) for name, c in columns.items()},
            took_ms=took_ms,
        )

    def _stage(self, rows: DataFrame, batch: BatchId, work: Path) -> _Staged:
        received = Observation()
        staged = (
            rows.select(*schema.NAMES)
            .withColumns({"id_hash": dedupe.id_hash(), "batch": F.lit(batch.name)})
            .observe(received, F.count(F.lit(1)).alias("rows"))
            .withColumn("_kind", F.when(F.col("verdict") == "accepted", "accepted").otherwise("rejected"))
        )
        place = work / "rows"
        staged.write.partitionBy("_kind").parquet(str(place))
        described = tables.describe(place, place.glob("*/*.parquet"))
        found = _Staged(
            received=int(received.get["rows"]),
            accepted=_with_rows(place / "_kind=accepted"),
            rejected=_with_rows(place / "_kind=rejected"),
            first_us=min((file.first_us for file in described if file.first_us is not None), default=None),
            last_us=max((file.last_us for file in described if file.last_us is not None), default=None),
        )
        written = sum(rows for _, rows in (*found.accepted, *found.rejected))
        if written != found.received:
            raise Unbalanced(f"batch {batch.name}: {found.received} rows received, {written} written")
        return found

    def _read(self, files: Sequence[Path]) -> DataFrame:
        """Staged rows with their place: file name and row number identify a row inside a batch."""
        shape = tables.to_spark(tables.ROW)
        rows = tables.read_files(self._spark, [str(path) for path in files], shape)
        return rows.select(
            *tables.ROW.names,
            F.col("_metadata.file_name").alias("file"),
            F.col("_metadata.row_index").alias("row"),
        )

    def _duplicates(self, staged: _Staged, batch: BatchId, work: Path) -> dedupe.Found | None:
        if not staged.accepted:
            return None
        since_us = None
        horizon_s = self._rules.horizon_s
        if horizon_s is not None and isfinite(horizon_s) and staged.first_us is not None:
            since_us = staged.first_us - int(horizon_s * 1_000_000)
        history = None
        if self._store.files("messages", since_us):
            history = tables.read(self._spark, self._store, "messages", since_us)
        count = sum(rows for _, rows in staged.accepted)
        accepted = self._read([path for path, _ in staged.accepted])
        return dedupe.find(accepted, history, batch=batch.name, rows=count, work=work)

    def _typed(
        self, staged: _Staged, duplicates: dedupe.Found | None, batch: BatchId, work: Path
    ) -> typed_files.Outcome | None:
        if not self._rules.typed or not staged.accepted:
            return None
        rows = self._read([path for path, _ in staged.accepted])
        if duplicates is not None:
            rows = rows.join(_small(duplicates.rows, duplicates.total), ["file", "row"], "left_anti")
        folder = str(self._store.root / TYPED_DIR / "{table}")
        data = str(self._store.data_dir(f"{TYPED_DIR}/{{table}}", work.name))
        return typed_files.write(
            rows, self._routes, self._known_columns(), typed_files.Target(folder, data), work
        )

    def _known_columns(self) -> dict[str, Columns]:
        known: dict[str, Columns] = {}
        for urn, columns in self._registry.items():
            table = self._routes.table(urn)
            if table:
                have = known.get(table, Columns())
                new = {c.path: c.kind for c in columns.columns}
                known[table] = have.with_new({p: k for p, k in new.items() if p not in _paths(have)})
        for path in typed_path(self._store, "x").parent.glob(f"{TYPED_DIR}.*.json"):
            stored = msgspec.json.decode(path.read_bytes(), type=Columns)
            table = path.name.removeprefix(f"{TYPED_DIR}.").removesuffix(".json")
            planned = {c.path: c.kind for c in known.get(table, Columns()).columns}
            known[table] = stored.with_new({p: k for p, k in planned.items() if p not in _paths(stored)})
        return known

    def _split(
        self, staged: _Staged, duplicates: dedupe.Found | None, clashes: DataFrame | None, work: Path
    ) -> dict[str, list[Path]]:
        """The staged files as `messages`, `quarantine` and `duplicates`; touched files are written again."""
        parts: dict[str, list[Path]] = {
            "messages": [path for path, _ in staged.accepted],
            "quarantine": [path for path, _ in staged.rejected],
            "duplicates": [],
        }
        if duplicates is None and clashes is None:
            return parts
        drops, count, touched = _drops(duplicates, clashes)
        again = [path for path in parts["messages"] if path.name in touched]
        rows = self._read(again)
        marks = _small(drops, count)
        kept = rows.join(marks, ["file", "row"], "left_anti").select(*tables.ROW.names)
        parts["messages"] = [path for path in parts["messages"] if path.name not in touched]
        parts["messages"] += _write(kept, work / "kept")
        if duplicates is not None:
            seen = rows.join(_small(duplicates.rows, duplicates.total), ["file", "row"]).select(
                *tables.DUPLICATES.names
            )
            parts["duplicates"] = _write(seen, work / "seen")
        if clashes is not None:
            bad = rows.drop("reason", "pointer").join(clashes, ["file", "row"])
            parts["quarantine"] += _write(bad.select(*tables.ROW.names), work / "clashed")
        return parts

    def _dead_letters(self, staged: _Staged, work: Path) -> list[Path]:
        files = [path for path, _ in (*staged.accepted, *staged.rejected)]
        holding = [path for path in files if _may_hold_dead_letters(path)]
        if not holding:
            return []
        history = None
        if self._store.files("dead_letters"):
            history = tables.read(self._spark, self._store, "dead_letters")
        return _write(deadletters.select(self._read(holding), history), work / "dead")

    def _balance(self, staged: _Staged, parts: Mapping[str, Sequence[Path]]) -> list[Balance]:
        received = self._by_queue([path for path, _ in (*staged.accepted, *staged.rejected)])
        names = ("messages", "quarantine", "duplicates", "dead_letters")
        counts = {name: self._by_queue(parts[name]) for name in names}
        queues = sorted(set(received).union(*counts.values()))
        balances = [
            Balance(queue, received[queue], *(counts[name][queue] for name in names)) for queue in queues
        ]
        for balance in balances:
            if not balance.holds:
                raise Unbalanced(f"queue {balance.queue!r} does not add up, nothing was committed: {balance}")
        return balances

    def _by_queue(self, paths: Sequence[Path]) -> Counter[str]:
        """From the footers where a file holds one queue, by a job where it holds several."""
        counts: Counter[str] = Counter()
        mixed = []
        for path in paths:
            footer = pq.read_metadata(path)
            low, high = tables.column_range(footer, "queue")
            if low is not None and low == high and tables.null_count(footer, "queue") == 0:
                counts[str(low)] += footer.num_rows
            else:
                mixed.append(str(path))
        if mixed:
            shape = tables.to_spark(pa.schema([pa.field("queue", pa.string())]))
            found = tables.read_files(self._spark, mixed, shape).groupBy("queue").count().collect()
            for row in found:
                counts[row["queue"] or NO_QUEUE] += row["count"]
        return counts

    def _adopt(self, parts: Mapping[str, Sequence[Path]], batch: BatchId, attempt: str) -> list[Commit]:
        """Move the files into their tables' folders, where nothing sees them yet."""
        commits = []
        for table, paths in parts.items():
            if not paths:
                continue
            place = self._store.data_dir(table, attempt)
            place.mkdir(parents=True, exist_ok=True)
            moved = [place / f"{index:05d}-{path.name}" for index, path in enumerate(paths)]
            for path, target in zip(paths, moved, strict=True):
                os.replace(path, target)
            tables.sync_files(moved)
            files = tables.describe(self._store.root / table, moved)
            commits.append(self._commit(table, batch, files, tables.CORE[table]))
        return commits

    def _typed_commits(self, outcome: typed_files.Outcome, batch: BatchId) -> list[Commit]:
        return [
            self._commit(f"{TYPED_DIR}/{table}", batch, files, outcome.columns[table].arrow())
            for table, files in sorted(outcome.files.items())
            if files
        ]

    def _batches_row(
        self, batch: BatchId, balances: Sequence[Balance], staged: _Staged, took_ms: int, attempt: str
    ) -> Commit:
        now = datetime.fromtimestamp(self._clock.epoch_s(), UTC)
        rows = [
            {
                **msgspec.structs.asdict(balance),
                "batch": batch.name,
                "job": batch.job,
                "epoch": batch.epoch,
                "number": batch.number,
                "first_received_at": _moment(staged.first_us),
                "last_received_at": _moment(staged.last_us),
                "prepared_at": now,
                "took_ms": took_ms,
            }
            for balance in balances
        ]
        place = self._store.data_dir("batches", attempt)
        place.mkdir(parents=True, exist_ok=True)
        path = place / "batch.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=tables.BATCHES), path)
        tables.sync_files([path])
        files = tables.describe(self._store.root / "batches", [path])
        return self._commit("batches", batch, files, tables.BATCHES)

    @staticmethod
    def _commit(table: str, batch: BatchId, files: tuple[DataFile, ...], shape: pa.Schema) -> Commit:
        return Commit(table, batch.app, batch.number, files, tables.packed(shape))


class _Staged(msgspec.Struct, frozen=True):
    received: int
    accepted: tuple[tuple[Path, int], ...]
    rejected: tuple[tuple[Path, int], ...]
    #: Epoch microseconds of the earliest and latest delivery, where the source knows them.
    first_us: int | None
    last_us: int | None


def _with_rows(place: Path) -> tuple[tuple[Path, int], ...]:
    counted = ((path, pq.read_metadata(path).num_rows) for path in sorted(place.glob("*.parquet")))
    return tuple((path, rows) for path, rows in counted if rows)


def _write(rows: DataFrame, place: Path) -> list[Path]:
    rows.write.parquet(str(place))
    return [path for path, _ in _with_rows(place)]


def _drops(
    duplicates: dedupe.Found | None, clashes: DataFrame | None
) -> tuple[DataFrame, int, frozenset[str]]:
    """Rows that leave `messages`, how many, and the staged files they are in."""
    found = duplicates.rows.select("file", "row") if duplicates else None
    count, files = (duplicates.total, duplicates.files) if duplicates else (0, frozenset[str]())
    if clashes is None:
        if found is None:
            raise StoreError("nothing to take out of the batch")
        return found, count, files
    bad = clashes.select("file", "row")
    per_file = bad.groupBy("file").count().collect()
    count += sum(row["count"] for row in per_file)
    files |= {row["file"] for row in per_file}
    return (bad if found is None else found.union(bad)), count, files


def _small(frame: DataFrame, count: int) -> DataFrame:
    """Sent to every executor while that is cheaper than shuffling whole messages."""
    return F.broadcast(frame) if count <= BROADCAST_PLACES else frame


def _may_hold_dead_letters(path: Path) -> bool:
    footer = pq.read_metadata(path)
    if tables.null_count(footer, "dl_reason") != footer.num_rows:
        return True
    low, high = tables.column_range(footer, "queue")
    return low != high or deadletters.is_dlq(str(low) if low is not None else None)


def _paths(columns: Columns) -> set[tuple[str, ...]]:
    return {column.path for column in columns.columns}


def _moment(epoch_us: int | None) -> datetime | None:
    return None if epoch_us is None else datetime.fromtimestamp(epoch_us / 1_000_000, UTC)
