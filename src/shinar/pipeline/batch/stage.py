"""First pass over a batch: rows are judged if that was not done yet, and staged in Arrow files, once.

Beside each such file are the keys that dedupe compares and, where there are any, its dead letters. The driver
gets one short report a task. Nothing here is a table; `write_tables` makes tables from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shinar.envelope import Kind
from shinar.pipeline.batch.id_hash import id_hashes
from shinar.pipeline.batch.route import Routes
from shinar.pipeline.lake import store as tables
from shinar.pipeline.rows import schema
from shinar.pipeline.rows.validate import judged_batch, raw_columns, repeated
from shinar.pipeline.typed.columns import PackedSeen, PayloadBlock, isolated, merge_seen, pack_seen
from shinar.pipeline.typed.types import Seen, decode
from shinar.settlement.names import is_dead_letter_queue_of_any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Stands for a delivery whose queue is not known, so that the balance has a row for it.
NO_QUEUE: Final = ""
#: Rows of a new typed table that a task looks at to learn its columns.
SAMPLE_ROWS: Final = 500
#: What a task of either pass tells the driver: one row, one JSON text.
REPORT: Final = pa.schema([pa.field("report", pa.string())])
#: What dedupe compares; `row` is the row's number in the staged file of the same name.
KEYS: Final = pa.schema(
    [
        pa.field("id_hash", pa.int64()),
        *[schema.ARROW.field(name) for name in ("id", "dl_reason", "redelivery", "received_at", "position")],
        pa.field("row", pa.int64()),
    ]
)
#: Rows are read once and soon deleted: a quick compression that still spares the disk.
_FAST: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class StagedFile(msgspec.Struct, frozen=True):
    """What one task staged. `name` is that of its files, without their endings."""

    name: str
    #: Rows per queue, as they were received.
    queues: dict[str, int]
    keys: int
    dead: int
    #: Epoch microseconds of the earliest and latest delivery, where the source knows them.
    first_us: int | None
    last_us: int | None
    #: What the rows of unknown typed tables look like.
    seen: dict[str, PackedSeen]

    @property
    def rows(self) -> int:
        return sum(self.queues.values())


class Stage(msgspec.Struct, frozen=True):
    """The folder of the first pass, as driver and executors know it."""

    folder: str

    def rows(self, name: str) -> Path:
        return Path(self.folder, f"{name}.arrow")

    def keys(self, name: str) -> Path:
        return Path(self.folder, f"{name}.keys.parquet")

    def dead(self, name: str) -> Path:
        return Path(self.folder, f"{name}.dead.parquet")

    def read(self, name: str) -> Iterator[pa.Table]:
        with pa.memory_map(str(self.rows(name))) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                yield pa.Table.from_batches([file.get_batch(number)])


class StageWriter:
    """One executor task: rows in, one report out, files on the side. No typed tables: no `routes`."""

    def __init__(self, stage: Stage, batch: str, routes: Routes | None, known: frozenset[str]) -> None:
        self._stage = stage
        self._batch = batch
        self._routes = routes
        self._known = known

    def run(self, rows: DataFrame) -> list[StagedFile]:
        """`rows` are judged rows, or raw ones: a `body` and what is known of the delivery."""
        wanted = schema.NAMES if "verdict" in rows.columns else raw_columns(rows)
        done = rows.select(*wanted).mapInArrow(self, tables.to_spark(REPORT)).collect()
        return [msgspec.json.decode(row["report"], type=StagedFile) for row in done]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task: _StageTask | None = None
        for batch in batches:
            if batch.num_rows:
                task = task or _StageTask(self._stage, self._batch, _Sample(self._routes, self._known))
                task.add(batch)
        if task is not None:
            yield reported(task.finish())


def reported(told: msgspec.Struct) -> pa.RecordBatch:
    return pa.record_batch([[msgspec.json.encode(told).decode()]], schema=REPORT)


class _StageTask:
    def __init__(self, stage: Stage, batch: str, sample: _Sample) -> None:
        self._name = uuid4().hex
        self._dead_path = stage.dead(self._name)
        self._batch = batch
        self._sample = sample
        self._rows = 0
        self._queues: Counter[str] = Counter()
        self._times: list[int] = []
        self._shape = pa.schema([*schema.ARROW, pa.field("id_hash", pa.int64())])
        Path(stage.folder).mkdir(parents=True, exist_ok=True)
        self._staged = pa.ipc.new_file(str(stage.rows(self._name)), self._shape, options=_FAST)
        self._keys = pq.ParquetWriter(
            stage.keys(self._name), KEYS, compression="none", use_dictionary=["dl_reason"]
        )
        self._counts = Counter[str]()
        self._dead: pq.ParquetWriter | None = None

    def add(self, given: pa.RecordBatch) -> None:
        judged = given if "verdict" in given.schema.names else judged_batch(given)
        arrays = [judged.column(field.name).cast(field.type) for field in schema.ARROW]
        arrays.append(id_hashes(judged.column("id")))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._shape)
        self._staged.write_batch(rows)
        accepted = pc.equal(rows["verdict"], Kind.ACCEPTED.value)
        self._add_keys(rows, accepted)
        self._add_dead(rows)
        self._sample.add(rows.select(["urn", "data"]).filter(accepted))
        self._queues.update(by_queue(rows["queue"]))
        bounds = pc.min_max(rows["received_at"].cast(pa.int64())).as_py()
        self._times += [moment for moment in bounds.values() if moment is not None]
        self._rows += len(rows)

    def _add_keys(self, rows: pa.RecordBatch, accepted: pa.Array) -> None:
        numbers = pa.array(np.arange(self._rows, self._rows + len(rows)))
        keys = pa.table([*(rows[name] for name in KEYS.names[:-1]), numbers], schema=KEYS)
        keys = keys.filter(pc.and_(accepted, rows["id_hash"].is_valid()))
        self._keys.write_table(keys)
        self._counts["keys"] += len(keys)

    def _add_dead(self, rows: pa.RecordBatch) -> None:
        queues = [
            queue for queue in pc.unique(rows["queue"]).to_pylist() if is_dead_letter_queue_of_any(queue)
        ]
        dead = rows["dl_reason"].is_valid()
        if queues:
            dead = pc.or_(dead, pc.is_in(rows["queue"], pa.array(queues, pa.string())))
        found = rows.filter(dead)
        if found.num_rows:
            self._dead = self._dead or pq.ParquetWriter(self._dead_path, tables.ROW)
            columns = [*found.columns, repeated(self._batch, len(found))]
            self._dead.write_table(pa.table(columns, schema=tables.ROW))
            self._counts["dead"] += len(found)

    def finish(self) -> StagedFile:
        for file in (self._staged, self._keys, self._dead):
            if file is not None:
                file.close()
        return StagedFile(
            name=self._name,
            queues=dict(self._queues),
            keys=self._counts["keys"],
            dead=self._counts["dead"],
            first_us=min(self._times, default=None),
            last_us=max(self._times, default=None),
            seen=self._sample.packed(),
        )


class _Sample:
    """The first payloads of every typed table that has no columns yet."""

    def __init__(self, routes: Routes | None, known: frozenset[str]) -> None:
        self._routes = routes
        self._known = known
        self._left: Counter[str] = Counter()
        self._seen: dict[str, Seen] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        if self._routes is None:
            return
        for urn in pc.unique(rows["urn"]).to_pylist():
            table = self._routes.table(urn)
            if table is None or table in self._known:
                continue
            left = SAMPLE_ROWS - self._left[table]
            if left > 0:
                texts = rows["data"].filter(pc.equal(rows["urn"], urn)).slice(0, left).to_pylist()
                self._left[table] += len(texts)
                self._seen[table] = merge_seen([self._seen.get(table, {}), *_fields_of(texts)])

    def packed(self) -> dict[str, PackedSeen]:
        return {table: pack_seen(seen) for table, seen in self._seen.items()}


def _fields_of(texts: Sequence[str | None]) -> Iterator[Seen]:
    """The fields of some payloads. One that cannot be read shows none; the second pass says why."""

    def shape(_: int, texts: Sequence[str | None]) -> PayloadBlock:
        return PayloadBlock([decode(text) if text else {} for text in texts], None)

    for _, block in isolated(texts, shape):
        if isinstance(block, PayloadBlock):
            yield block.seen


def by_queue(column: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in pc.value_counts(column).to_pylist():
        counts[part["values"] or NO_QUEUE] += part["counts"]
    return counts
