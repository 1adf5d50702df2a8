"""Second pass over a batch: the staged rows become the files of the tables, each row once.

Every accepted row whose id was not seen before goes to `messages`, and to the typed table of its URN; what
does not fit there is a row of `typed_rejects` with its reason. Rows that were not accepted go to
`quarantine`. A file that shows new fields is written again, and only that, when they have columns; all files
are when the sample of a new table misled. Nothing is visible until the batch is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shinar.envelope import Kind
from shinar.pipeline.batch.parquet_writer import Sinks
from shinar.pipeline.batch.route import Routes
from shinar.pipeline.batch.stage import REPORT, Stage, StagedFile, reported
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import TYPED_DIR
from shinar.pipeline.rows.validate import repeated
from shinar.pipeline.typed import types as typed
from shinar.pipeline.typed.columns import (
    TABLE_LIMIT,
    TYPE_CLASH,
    PackedSeen,
    PayloadBlock,
    PayloadReader,
    Rejection,
    isolated,
    merge_seen,
    pack_seen,
    unpack_seen,
)
from shinar.pipeline.typed.types import PayloadColumns, Seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Typed tables a lake may have: a broken producer may mint URNs. Typed rows of further URNs are rejected.
MAX_TABLES: Final = 500
#: Columns of a row that its typed row has as well, by the typed table's name for each.
_CARRIED: Final = {
    "_id": "id",
    "_urn": "urn",
    "_trace_id": "trace_id",
    "_queue": "queue",
    "_lang": "lang",
    "_created_at": "created_at",
    "_received_at": "received_at",
    "_attempts": "attempts",
    "_batch": "batch",
}


class TableFiles(msgspec.Struct, frozen=True):
    """The files of every table, and the columns of the typed ones."""

    files: dict[str, list[Path]]
    columns: dict[str, PayloadColumns]


class FileReport(msgspec.Struct, frozen=True):
    """What one task says of one staged file: the files made from it, or the fields that came up."""

    name: str
    files: dict[str, str]
    seen: dict[str, PackedSeen]
    #: Tables whose columns were taken from a sample that not all rows fit.
    doubted: list[str] = []

    @property
    def again(self) -> bool:
        return bool(self.seen or self.doubted)


class WritePlan(msgspec.Struct, frozen=True):
    """What every task of the pass knows."""

    stage: Stage
    #: Parquet by `file=<name>`: `row` and `first_batch` of deliveries seen before; "" when there are none.
    duplicates: str
    out: str
    batch: str
    #: None without typed tables.
    routes: Routes | None
    columns: dict[str, PayloadColumns]
    #: Tables of `columns` that only the first pass's sample knows.
    sampled: frozenset[str] = frozenset()


def write_tables(spark: SparkSession, plan: WritePlan, staged: Sequence[StagedFile]) -> TableFiles:
    names, known = [found.name for found in staged], plan.columns
    # A table of the sample may be known by now: another job was quicker.
    samples = [{t: seen for t, seen in found.seen.items() if t not in known} for found in staged]
    plan = _grown(plan, samples)
    plan = msgspec.structs.replace(plan, sampled=frozenset(plan.columns.keys() - known.keys()))
    done, again = _pass(spark, plan, names, observing=True)
    doubted = {table for found in again for table in found.doubted}
    if doubted:
        # The sample misled: all rows of these tables are looked at, and every file is done again.
        bare = {**plan.columns, **dict.fromkeys(doubted, PayloadColumns())}
        plan = msgspec.structs.replace(plan, columns=bare, sampled=frozenset())
        plan = _grown(plan, [found.seen for found in _pass(spark, plan, names, observing=True)[1]])
        done = _pass(spark, plan, names, observing=False)[0]
    elif again:
        plan = _grown(plan, [found.seen for found in again])
        # What has no column now is in `_extra`.
        done += _pass(spark, plan, [found.name for found in again], observing=False)[0]
    files: dict[str, list[Path]] = {}
    for found in done:
        for table, path in found.files.items():
            files.setdefault(table, []).append(Path(path))
    touched = {name: c for name, c in plan.columns.items() if f"{TYPED_DIR}/{name}" in files}
    return TableFiles(files, touched)


def _grown(plan: WritePlan, seen: Sequence[Mapping[str, PackedSeen]]) -> WritePlan:
    columns = dict(plan.columns)
    for table in sorted({table for part in seen for table in part}):
        if table in columns or len(columns) < MAX_TABLES:
            merged = merge_seen(unpack_seen(part[table]) for part in seen if table in part)
            columns[table] = columns.get(table, PayloadColumns()).with_new(typed.decide_all(merged))
    return msgspec.structs.replace(plan, columns=columns)


def _pass(
    spark: SparkSession, plan: WritePlan, names: list[str], *, observing: bool
) -> tuple[list[FileReport], list[FileReport]]:
    """Files that are done, and those that showed new fields."""
    task = _WriteTask(plan, names, observing)
    told = spark.range(0, len(names), 1, len(names)).mapInArrow(task, tables.to_spark(REPORT)).collect()
    found = [msgspec.json.decode(row["report"], type=FileReport) for row in told]
    return [part for part in found if not part.again], [part for part in found if part.again]


class _WriteTask:
    """One executor task: numbers of staged files in, a report for each out."""

    def __init__(self, plan: WritePlan, names: list[str], observing: bool) -> None:
        self._plan = plan
        self._names = names
        self._observing = observing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield reported(_FileWriter(self._plan, self._names[number], self._observing).written())


class _FileWriter:
    """One staged file on its way into the tables."""

    def __init__(self, plan: WritePlan, name: str, observing: bool) -> None:
        self._plan = plan
        self._name = name
        self._observing = observing
        # A second attempt of the task must not meet the files of the first.
        self._sinks = Sinks(Path(plan.out), f"{name}-{np.random.default_rng().integers(1 << 30):08x}")
        self._typed = _TypedTables(plan, final=not observing)

    def written(self) -> FileReport:
        known = _SeenBefore.read(self._plan.duplicates, self._name)
        start = 0
        for rows in self._plan.stage.read(self._name):
            self._add(rows, known.between(start, start + len(rows)))
            start += len(rows)
        if self._again:
            self._sinks.discard()
            seen = {table: pack_seen(seen) for table, seen in self._typed.seen.items()}
            return FileReport(self._name, {}, seen, sorted(self._typed.doubted))
        return FileReport(self._name, self._sinks.close(), {})

    @property
    def _again(self) -> bool:
        return self._observing and bool(self._typed.seen or self._typed.doubted)

    def _add(self, rows: pa.Table, known: _SeenBefore) -> None:
        rows = rows.append_column(tables.ROW.field("batch"), repeated(self._plan.batch, len(rows)))
        accepted = _flags(pc.equal(rows["verdict"], Kind.ACCEPTED.value))
        fresh = accepted.copy()
        fresh[known.rows] = False
        new = rows if fresh.all() else rows.filter(pa.array(fresh))
        for table, typed_rows, rejected in self._typed.rows(new):
            if not self._again:
                self._sinks.add(f"{TYPED_DIR}/{table}", typed_rows)
                self._sinks.add("typed_rejects", rejected)
        if self._again:
            return  # Only what the columns have to be is of interest now.
        self._sinks.add("messages", new)
        self._sinks.add("quarantine", rows.filter(pa.array(~accepted)))
        self._sinks.add("duplicates", known.of(rows))


class _TypedTables:
    """New messages as rows of their typed tables. Every routed message is a typed row or a rejected one."""

    def __init__(self, plan: WritePlan, *, final: bool) -> None:
        self._routes = plan.routes
        self._columns = plan.columns
        self._batch = plan.batch
        self._final = final
        self._readers: dict[str, PayloadReader] = {}
        self._tables: dict[str, str | None] = {}
        self._sampled = plan.sampled
        self.seen: dict[str, Seen] = {}
        #: Tables whose columns came from a sample that not all rows fit.
        self.doubted: set[str] = set()

    def rows(self, new: pa.Table) -> Iterator[tuple[str, pa.Table, pa.Table]]:
        """(table, its rows, rows of `typed_rejects`)."""
        if self._routes is None:
            return
        wanted = new.select([*_CARRIED.values(), "position", "data"])
        for table, numbers in self._rows_by_table(new["urn"]):
            mine = wanted.take(pa.array(numbers))
            known = self._columns.get(table)
            if known is None:
                reason = (
                    f"{TABLE_LIMIT}: the lake has {MAX_TABLES} typed tables; route this URN to one of them"
                )
                every = dict.fromkeys(range(len(mine)), Rejection(reason))
                yield table, PayloadColumns().arrow().empty_table(), _rejected(mine, table, every)
                continue
            shaped, rejections = self._shaped(table, known, mine)
            if table in self._sampled and any(r.reason.startswith(TYPE_CLASH) for r in rejections.values()):
                self.doubted.add(table)
            yield table, shaped, _rejected(mine, table, rejections)

    def _shaped(
        self, table: str, known: PayloadColumns, mine: pa.Table
    ) -> tuple[pa.Table, dict[int, Rejection]]:
        if table not in self._readers:
            self._readers[table] = PayloadReader(known, final=self._final)

        def shape(start: int, texts: Sequence[str | None]) -> tuple[pa.Table, PayloadBlock]:
            block = self._readers[table].block(texts)
            return _typed_rows(mine.slice(start, len(texts)), block, known), block

        parts: list[pa.Table] = []
        rejections: dict[int, Rejection] = {}
        for start, found in isolated(mine["data"].to_pylist(), shape):
            if isinstance(found, Rejection):
                rejections[start] = found
                continue
            rows, block = found
            if block.seen:
                self.seen[table] = merge_seen([self.seen.get(table, {}), block.seen])
            parts.append(rows)
            rejections |= {start + row: reason for row, reason in block.rejections.items()}
        return pa.concat_tables(parts) if parts else known.arrow().empty_table(), rejections

    def _rows_by_table(self, urns: pa.ChunkedArray) -> Iterator[tuple[str, Any]]:
        coded = urns.combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.combine_chunks()
        codes = coded.indices.to_numpy()
        by_table: dict[str, list[int]] = {}
        for code, urn in enumerate(coded.dictionary.to_pylist()):
            if urn not in self._tables:
                self._tables[urn] = self._routes.table(urn) if self._routes else None
            table = self._tables[urn]
            if table is not None:
                by_table.setdefault(table, []).append(code)
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        for table, mine in by_table.items():
            yield table, np.concatenate([order[edges[code] : edges[code + 1]] for code in mine])


def _typed_rows(rows: pa.Table, block: PayloadBlock, known: PayloadColumns) -> pa.Table:
    shape = known.arrow()
    columns: dict[str, Any] = {name: rows[source] for name, source in _CARRIED.items()}
    if block.extra:
        texts = [typed.as_text(block.extra[row]) if row in block.extra else None for row in range(len(rows))]
        columns["_extra"] = pa.array(texts, pa.string())
    columns |= block.arrays
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type) for field in shape
    ]
    whole = pa.table(arrays, schema=shape)
    if not block.rejections:
        return whole
    kept = np.ones(len(rows), bool)
    kept[list(block.rejections)] = False
    return whole.filter(pa.array(kept))


def _rejected(rows: pa.Table, table: str, rejections: Mapping[int, Rejection]) -> pa.Table:
    if not rejections:
        return tables.TYPED_REJECTS.empty_table()
    numbers = sorted(rejections)
    bad = rows.take(pa.array(numbers))
    told: dict[str, Any] = {
        name: [getattr(rejections[number], name) or None for number in numbers] for name in _TOLD
    }
    told["table"] = [f"{TYPED_DIR}/{table}"] * len(numbers)
    columns = [bad[name] if name in bad.column_names else told[name] for name in tables.TYPED_REJECTS.names]
    return pa.table(columns, schema=tables.TYPED_REJECTS)


#: Columns of `typed_rejects` that the rejection itself gives.
_TOLD: Final = ("column", "pointer", "reason", "value")


class _SeenBefore:
    """Deliveries of one staged file that were seen before: where they are, and in which batch that was."""

    def __init__(self, rows: Any, batches: pa.ChunkedArray) -> None:
        self.rows = rows
        self._batches = batches

    @classmethod
    def read(cls, folder: str, name: str) -> _SeenBefore:
        parts = sorted(Path(folder, f"file={name}").glob("*.parquet")) if folder else []
        found = [pq.read_table(path, columns=["row", "first_batch"], partitioning=None) for path in parts]
        if not found:
            return cls(np.zeros(0, np.int64), pa.chunked_array([], pa.string()))
        whole = pa.concat_tables(found).sort_by("row")
        return cls(whole["row"].to_numpy(), whole["first_batch"])

    def between(self, start: int, end: int) -> _SeenBefore:
        low, high = np.searchsorted(self.rows, [start, end]).tolist()
        return _SeenBefore(self.rows[low:high] - start, self._batches.slice(low, high - low))

    def of(self, rows: pa.Table) -> pa.Table:
        again = rows.take(pa.array(self.rows)).append_column("first_batch", self._batches)
        return again.select(tables.DUPLICATES.names).cast(tables.DUPLICATES)


def _flags(mask: pa.ChunkedArray) -> Any:
    return mask.to_numpy()
