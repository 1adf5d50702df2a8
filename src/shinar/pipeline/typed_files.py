"""The typed tables of a batch: executors turn payloads into columns and write the files, in one pass.

Another pass is made only for tables that met new fields. Nothing is visible until the batch is committed.
The rules of types are in `typed`; here is only Spark, Arrow batches and files.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from shinar.pipeline import typed
from shinar.pipeline.route import Routes
from shinar.pipeline.tables import DataFile, describe, read_files, to_spark
from shinar.pipeline.typed import Block, Columns, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows collected per table before a row group is written.
GROUP_ROWS: Final = 50_000
#: Typed tables a lake may have; URNs beyond it stay in `messages` only (a broken producer may mint URNs).
MAX_TABLES: Final = 500
#: Rows of a new table that a task looks at to learn its columns.
SAMPLE_ROWS: Final = 2_000
#: Learn, write and see what the sample missed, write that.
PASSES: Final = 3

#: What a task reports: files it wrote, fields it saw, rows that clash. `file`/`row` say which staged row.
REPORT: Final = pa.schema(
    [
        pa.field("what", pa.string()),
        pa.field("table", pa.string()),
        pa.field("file", pa.string()),
        pa.field("row", pa.int64()),
        pa.field("pointer", pa.string()),
        pa.field("text", pa.string()),
    ]
)
#: Columns of the staged rows that the pass reads, and the typed table's name for each.
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
NEEDED: Final = (*_CARRIED.values(), "data", "file", "row")


class Outcome(msgspec.Struct, frozen=True):
    """`files` by table, the columns of every touched table, and where the clashing rows are reported."""

    files: dict[str, tuple[DataFile, ...]]
    columns: dict[str, Columns]
    #: Reports of each pass, and the tables of which what it said is void: they were done again.
    clashes: tuple[tuple[tuple[str, ...], frozenset[str]], ...]


class Target(msgspec.Struct, frozen=True):
    """Where files go, as patterns with `{table}`: executors get these two texts and nothing of the store."""

    folder: str
    data: str

    def table_dir(self, table: str) -> Path:
        return Path(self.folder.replace("{table}", table))

    def data_dir(self, table: str) -> Path:
        return Path(self.data.replace("{table}", table))


def write(
    rows: DataFrame, routes: Routes, known: Mapping[str, Columns], target: Target, work: Path
) -> Outcome:
    """`work` is a folder for the reports of the tasks.

    Most batches need one pass. A new table is learnt from a sample first; whatever a pass sees that has no
    column yet sends that table, and only that, through the next one. The third takes what it finds.
    """
    columns = dict(known)
    done: list[tuple[_Result, frozenset[str]]] = []
    only: frozenset[str] | None = None
    for number in range(1, PASSES + 1):
        task = _Task(routes, columns, target, only, observing=number < PASSES)
        result = _pass(rows, task, work / f"typed-{number}")
        fresh = sorted(table for table in result.seen if table not in columns)
        allowed = {*columns, *fresh[: max(0, MAX_TABLES - len(columns))]}
        grown = {
            table: columns.get(table, Columns()).with_new(typed.decide_all(seen))
            for table, seen in result.seen.items()
            if table in allowed
        }
        only = frozenset(grown)
        done.append((result, only))
        columns |= grown
        if not grown:
            break
    files = {t: found for result, void in done for t, found in result.files.items() if t not in void}
    reports = tuple((tuple(result.clashes), void) for result, void in done)
    return Outcome(files, {table: columns[table] for table in files}, reports)


class _Result(msgspec.Struct, frozen=True):
    files: dict[str, tuple[DataFile, ...]]
    seen: dict[str, Seen]
    clashes: list[str]


def _pass(rows: DataFrame, task: _Task, reports: Path) -> _Result:
    rows.select(*NEEDED).mapInArrow(task, to_spark(REPORT)).write.parquet(str(reports))
    parts = [str(path) for path in sorted(reports.glob("*.parquet"))]
    notes = pq.read_table(parts, filters=[("what", "in", ["file", "seen"])]).to_pylist() if parts else []
    files: dict[str, list[Path]] = defaultdict(list)
    seen: dict[str, list[Seen]] = defaultdict(list)
    for note in notes:
        if note["what"] == "file":
            files[note["table"]].append(Path(note["text"]))
        else:
            seen[note["table"]].append(_unpack(note["text"]))
    described = {table: describe(task.target.table_dir(table), paths) for table, paths in files.items()}
    merged = {table: typed.merge_seen(found) for table, found in sorted(seen.items())}
    clashing = [path for path in parts if "clash" in _whats(path)]
    return _Result(described, merged, clashing)


def _whats(path: str) -> set[str]:
    return set(pc.unique(pq.read_table(path, columns=["what"])["what"]).to_pylist())


def clashes(outcome: Outcome, spark: SparkSession) -> DataFrame | None:
    """(file, row, pointer, reason) of the rows that do not fit their table."""
    parts = []
    for paths, void in outcome.clashes:
        if paths:
            found = read_files(spark, paths, to_spark(REPORT)).where("what = 'clash'")
            parts.append(found.where(~F.col("table").isin(*void)) if void else found)
    if not parts:
        return None
    found = parts[0]
    for part in parts[1:]:
        found = found.union(part)
    return found.selectExpr("file", "row", "pointer", "text as reason")


class _Task:
    """One executor task: Arrow batches in, report rows out, Parquet files on the side."""

    def __init__(
        self,
        routes: Routes,
        known: Mapping[str, Columns],
        target: Target,
        only: frozenset[str] | None,
        *,
        observing: bool,
    ) -> None:
        self._routes = routes
        self._known = dict(known)
        self.target = target
        self._only = only
        self._observing = observing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables: dict[str, str | None] = {}
        writers: dict[str, _Writer] = {}
        for batch in batches:
            yield from self._batch(pa.Table.from_batches([batch]), tables, writers)
        for name, writer in writers.items():
            yield from writer.finish(name)

    def _batch(
        self, rows: pa.Table, tables: dict[str, str | None], writers: dict[str, _Writer]
    ) -> Iterator[pa.RecordBatch]:
        by_table: dict[str, list[str]] = defaultdict(list)
        for urn in pc.unique(rows["urn"]).to_pylist():
            if urn not in tables:
                tables[urn] = self._routes.table(urn)
            table = tables[urn]
            if table is not None and (self._only is None or table in self._only):
                by_table[table].append(urn)
        for table, urns in by_table.items():
            mine = rows.filter(pc.is_in(rows["urn"], pa.array(urns, pa.string())))
            if table not in writers:
                writers[table] = _Writer(self._known.get(table), self.target, self._observing)
            yield from writers[table].add(table, mine)


class _Writer:
    """The part of one typed table that one task writes: at most one file."""

    def __init__(self, known: Columns | None, target: Target, observing: bool) -> None:
        self._known = known
        self._target = target
        self._observing = observing
        self._seen: Seen = {}
        self._sampled = 0
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._file: pq.ParquetWriter | None = None
        self._path = ""

    def add(self, table: str, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        if self._known is None:
            rows = rows.slice(0, max(0, SAMPLE_ROWS - self._sampled))
            self._sampled += len(rows)
            if not len(rows):
                return
        payloads = [typed.decode(text) if text else {} for text in rows["data"].to_pylist()]
        block = Block(payloads, self._known)
        self._seen = typed.merge_seen([self._seen, block.seen])
        if self._known is None or (self._observing and self._seen):
            return  # This table is written in the next pass, when its columns are known.
        if block.clashes:
            yield _clash_rows(table, rows, block)
        self._held.append(_shaped(rows, block, self._known))
        self._held_rows += len(rows)
        if self._held_rows >= GROUP_ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        if self._known is None or not self._held_rows:
            return
        if self._file is None:
            folder = self._target.data_dir(table)
            folder.mkdir(parents=True, exist_ok=True)
            self._path = str(folder / f"part-{uuid4().hex}.parquet")
            self._file = pq.ParquetWriter(self._path, self._known.arrow(), compression="snappy")
        self._file.write_table(pa.concat_tables(self._held), row_group_size=GROUP_ROWS)
        self._held, self._held_rows = [], 0

    def finish(self, table: str) -> Iterator[pa.RecordBatch]:
        if self._observing and self._seen:
            if self._file is not None:
                self._file.close()
                os.unlink(self._path)
            yield _report("seen", table, _pack(self._seen))
            return
        if self._observing and self._known is None:
            # Payloads without a single field: the table exists, with the envelope's columns alone.
            yield _report("seen", table, _pack({}))
            return
        self._flush(table)
        if self._file is not None:
            self._file.close()
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())
            yield _report("file", table, self._path)


def _shaped(rows: pa.Table, block: Block, known: Columns) -> pa.Table:
    shape = known.arrow()
    columns: dict[str, Any] = {name: rows[source] for name, source in _CARRIED.items()}
    extra = [typed.as_text(block.extra[row]) if row in block.extra else None for row in range(len(rows))]
    columns["_extra"] = pa.array(extra, pa.string())
    columns |= block.arrays
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(rows), field.type) for field in shape
    ]
    whole = pa.table(
        [array.cast(field.type) for array, field in zip(arrays, shape, strict=True)], schema=shape
    )
    if not block.clashes:
        return whole
    return whole.filter(pa.array([row not in block.clashes for row in range(len(rows))]))


def _clash_rows(table: str, rows: pa.Table, block: Block) -> pa.RecordBatch:
    places = sorted(block.clashes)
    taken = rows.select(["file", "row"]).take(places).to_pydict()
    found = [block.clashes[place] for place in places]
    count = len(places)
    return pa.record_batch(
        [
            ["clash"] * count,
            [table] * count,
            taken["file"],
            taken["row"],
            [clash.pointer for clash in found],
            [clash.reason for clash in found],
        ],
        schema=REPORT,
    )


def _report(what: str, table: str, text: str) -> pa.RecordBatch:
    return pa.record_batch([[what], [table], [None], [None], [None], [text]], schema=REPORT)


def _pack(seen: Seen) -> str:
    return msgspec.json.encode([[list(path), dict(counts)] for path, counts in seen.items()]).decode()


def _unpack(text: str) -> Seen:
    return {tuple(path): Counter(counts) for path, counts in msgspec.json.decode(text)}
