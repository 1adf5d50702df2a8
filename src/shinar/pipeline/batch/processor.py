"""One batch on its straight line: rows staged, duplicates found, tables written, counted, manifest made.

Two passes of Python tasks do the work (`stage`, `write_tables`), and every row is written to its table once.
Nothing is visible in any table before the manifest is on disk. Must not know a broker or a stream.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as F

from shinar import durable_files as durable
from shinar.clock import SYSTEM, Clock
from shinar.errors import Unbalanced
from shinar.pipeline.batch import dead_letters as deadletters
from shinar.pipeline.batch import dedupe
from shinar.pipeline.batch.journal import Balance, BatchId, Manifest, stage_dir, typed_path
from shinar.pipeline.batch.route import Routes
from shinar.pipeline.batch.stage import Stage, StagedFile, StageWriter, by_queue
from shinar.pipeline.batch.write_tables import TableFiles, WritePlan, write_tables
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import TYPED_DIR, Commit, DataFile, TableStore
from shinar.pipeline.typed.json_schema import load_registry
from shinar.pipeline.typed.types import PayloadColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A stream that never ends must not read an ever longer history for each batch.
STREAM_HORIZON_S: Final = 7 * 86_400.0


#: Spark settings the line relies on, set on the session that writes.
WRITE_SETTINGS: Final = {
    # The default (INT96) has no statistics, and other readers treat it as a relic.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class BatchRules(msgspec.Struct, frozen=True):
    """How a job treats its batches."""

    routes: Mapping[str, str] = {}
    typed: bool = True
    registry: str | None = None
    #: How far back an id is compared, counted from the batch's earliest delivery. None is all history for a
    #: run that ends and STREAM_HORIZON_S for one that does not; infinity is all history for both.
    horizon_s: float | None = None


class StagedBatch(msgspec.Struct, frozen=True):
    """A batch that is read and judged, in files of its own."""

    batch: BatchId
    work: Path
    stage: Stage
    files: list[StagedFile]
    started_s: float
    offsets: str = ""


class BatchProcessor:
    """Prepares one batch. An object only because the steps share store, session and folders."""

    def __init__(
        self, spark: SparkSession, store: TableStore, rules: BatchRules, clock: Clock = SYSTEM
    ) -> None:
        self._spark = spark
        for name, value in WRITE_SETTINGS.items():
            spark.conf.set(name, value)
        self._store = store
        self._rules = rules
        self._clock = clock
        self._routes = Routes(rules.routes)
        self._typed_routes = self._routes if rules.typed else None
        self._registry = load_registry(rules.registry) if rules.registry else {}

    @contextmanager
    def staged(self, rows: DataFrame, batch: BatchId, offsets: str = "") -> Iterator[StagedBatch]:
        """Read the batch. Its files are removed afterwards; other jobs need not wait for this."""
        started_s = self._clock.monotonic_s()
        work = stage_dir(self._store, batch)
        try:
            stage = Stage(str(work / "rows"))
            known = frozenset(self._known_columns())
            files = self._write_stage(rows, StageWriter(stage, batch.name, self._typed_routes, known), batch)
            yield StagedBatch(batch, work, stage, files, started_s, offsets)
        finally:
            tables.remove_tree(work)

    def decide(self, given: StagedBatch) -> Manifest:
        """Write and count everything the batch adds. No other batch of the lake may do so meanwhile: what is
        known of ids and columns must stay as it is until the manifest is carried out."""
        batch, work, stage, staged = given.batch, given.work, given.stage, given.files
        routes, known = self._typed_routes, self._known_columns()
        duplicates = self._duplicates(stage, staged, batch, work)
        plan = WritePlan(stage, duplicates, str(work / "tables"), batch.name, routes, known)
        parts = self._write_tables(plan, staged)
        parts.files["dead_letters"] = self._dead_letters(stage, staged, work)
        balances = self._balance(staged, parts.files)
        commits = self._adopt(parts, batch, work.name)
        took_ms = int((self._clock.monotonic_s() - given.started_s) * 1000)
        commits.append(self._batches_row(batch, balances, staged, took_ms, work.name))
        return Manifest(
            batch=batch,
            commits=tuple(commits),
            balances=tuple(balances),
            typed={
                f"{TYPED_DIR}/{name}": msgspec.Raw(msgspec.json.encode(columns))
                for name, columns in parts.columns.items()
            },
            took_ms=took_ms,
            offsets=given.offsets,
        )

    def _write_stage(self, rows: DataFrame, writer: StageWriter, batch: BatchId) -> list[StagedFile]:
        """Counted on both sides of the hop to Python: what Spark gave must be what was staged."""
        given = Observation()
        staged = writer.run(rows.observe(given, F.count(F.lit(1)).alias("rows")))
        received = int(given.get["rows"])
        rows_staged = sum(found.rows for found in staged)
        if received != rows_staged:
            raise Unbalanced(f"batch {batch.name}: {received} rows received, {rows_staged} staged")
        return staged

    def _duplicates(self, stage: Stage, staged: Sequence[StagedFile], batch: BatchId, work: Path) -> str:
        paths = [stage.keys(found.name) for found in staged if found.keys]
        if not paths:
            return ""
        since_us, first_us = None, _first_us(staged)
        horizon_s = self._rules.horizon_s
        if horizon_s is not None and isfinite(horizon_s) and first_us is not None:
            since_us = first_us - int(horizon_s * 1_000_000)
        history = None
        if self._store.files("messages", since_us):
            history = tables.read(self._spark, self._store, "messages", since_us)
        return dedupe.find(self._spark, paths, history, batch=batch.name, work=work)

    def _known_columns(self) -> dict[str, PayloadColumns]:
        known: dict[str, PayloadColumns] = {}
        if self._typed_routes is None:
            return known
        for urn, columns in self._registry.items():
            table = self._routes.table(urn)
            if table:
                have = known.get(table, PayloadColumns())
                new = {c.path: c.kind for c in columns.columns}
                known[table] = have.with_new({p: k for p, k in new.items() if p not in _paths(have)})
        for path in typed_path(self._store, "x").parent.glob(f"{TYPED_DIR}.*.json"):
            stored = msgspec.json.decode(path.read_bytes(), type=PayloadColumns)
            table = path.name.removeprefix(f"{TYPED_DIR}.").removesuffix(".json")
            planned = {c.path: c.kind for c in known.get(table, PayloadColumns()).columns}
            known[table] = stored.with_new({p: k for p, k in planned.items() if p not in _paths(stored)})
        return known

    def _write_tables(self, plan: WritePlan, staged: Sequence[StagedFile]) -> TableFiles:
        return write_tables(self._spark, plan, staged)

    def _dead_letters(self, stage: Stage, staged: Sequence[StagedFile], work: Path) -> list[Path]:
        paths = [str(stage.dead(found.name)) for found in staged if found.dead]
        if not paths:
            return []
        history = None
        if self._store.files("dead_letters"):
            history = tables.read(self._spark, self._store, "dead_letters")
        rows = tables.read_files(self._spark, paths, tables.to_spark(tables.ROW))
        rows = rows.select("*", "_metadata.file_name", "_metadata.row_index")
        folder = work / "dead"
        deadletters.select(rows, history).write.parquet(str(folder))
        written = [path for path in sorted(folder.glob("*.parquet")) if pq.read_metadata(path).num_rows]
        durable.sync_all(written)
        return written

    def _balance(self, staged: Sequence[StagedFile], files: Mapping[str, Sequence[Path]]) -> list[Balance]:
        """What was received, as the first pass counted it, against what is in the files to be committed."""
        received = sum((Counter(found.queues) for found in staged), Counter[str]())
        names = ("messages", "quarantine", "duplicates", "dead_letters")
        counts = {name: _queues(files.get(name, ())) for name in names}
        queues = sorted(set(received).union(*counts.values()))
        possible = _possible_redeliveries([*files.get("messages", ()), *files.get("quarantine", ())])
        # In the order of Balance's fields.
        balances = [
            Balance(queue, *(found[queue] for found in (received, *counts.values(), possible)))
            for queue in queues
        ]
        for balance in balances:
            if not balance.adds_up:
                raise Unbalanced(f"queue {balance.queue!r} does not add up, nothing was committed: {balance}")
        return balances

    def _adopt(self, parts: TableFiles, batch: BatchId, attempt: str) -> list[Commit]:
        """Move the files (they are synced) into their tables' folders, where nothing sees them yet."""
        commits = []
        for table, paths in sorted(parts.files.items()):
            if not paths:
                continue
            folder = self._store.data_dir(table, attempt)
            folder.mkdir(parents=True, exist_ok=True)
            moved = [folder / path.name for path in paths]
            for path, target in zip(paths, moved, strict=True):
                os.replace(path, target)
            durable.sync(folder)
            files = tables.describe(self._store.root / table, moved)
            typed = parts.columns.get(table.removeprefix(f"{TYPED_DIR}/"))
            commits.append(self._commit(table, batch, files, typed.arrow() if typed else tables.CORE[table]))
        return commits

    def _batches_row(
        self,
        batch: BatchId,
        balances: Sequence[Balance],
        staged: Sequence[StagedFile],
        took_ms: int,
        attempt: str,
    ) -> Commit:
        now = datetime.fromtimestamp(self._clock.epoch_s(), UTC)
        rows = [
            {
                **msgspec.structs.asdict(balance),
                "batch": batch.name,
                "job": batch.job,
                "epoch": batch.epoch,
                "number": batch.number,
                "first_received_at": _moment(_first_us(staged)),
                "last_received_at": _moment(
                    max((f.last_us for f in staged if f.last_us is not None), default=None)
                ),
                "prepared_at": now,
                "took_ms": took_ms,
            }
            for balance in balances
        ]
        folder = self._store.data_dir("batches", attempt)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "batch.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=tables.BATCHES), path)
        durable.sync_all([path])
        files = tables.describe(self._store.root / "batches", [path])
        return self._commit("batches", batch, files, tables.BATCHES)

    @staticmethod
    def _commit(table: str, batch: BatchId, files: tuple[DataFile, ...], shape: pa.Schema) -> Commit:
        return Commit(table, batch.app, batch.number, files, tables.packed(shape))


def _queues(paths: Iterable[Path]) -> Counter[str]:
    """Rows per queue, from the footer where a file holds one queue, else from its column."""
    counts: Counter[str] = Counter()
    for path in paths:
        footer = pq.read_metadata(path)
        low, high = tables.column_range(footer, "queue")
        if low is not None and low == high and tables.null_count(footer, "queue") == 0:
            counts[str(low)] += footer.num_rows
        else:
            for part in pq.ParquetFile(path).iter_batches(columns=["queue"]):
                counts += by_queue(part.column(0))
    return counts


def _possible_redeliveries(paths: Iterable[Path]) -> Counter[str]:
    """Rows per queue that carry a mark; the footer says of nearly every file that it has none."""
    counts: Counter[str] = Counter()
    for path in paths:
        footer = pq.read_metadata(path)
        if tables.null_count(footer, "redelivery") != footer.num_rows:
            marked = pq.read_table(path, columns=["queue", "redelivery"], partitioning=None)
            counts += by_queue(marked.filter(marked["redelivery"].is_valid())["queue"])
    return counts


def _first_us(staged: Sequence[StagedFile]) -> int | None:
    return min((found.first_us for found in staged if found.first_us is not None), default=None)


def _paths(columns: PayloadColumns) -> set[tuple[str, ...]]:
    return {column.path for column in columns.columns}


def _moment(epoch_us: int | None) -> datetime | None:
    return None if epoch_us is None else datetime.fromtimestamp(epoch_us / 1_000_000, UTC)
