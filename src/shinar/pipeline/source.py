"""`spark.read` / `readStream` / `write` / `writeStream` `.format("shinar")`: Spark's hooks, and nothing else.

Which hook runs where is Spark's business (planning beside the driver, reading and writing on executors, from
a pickled copy), so these classes hold options only and open everything late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from shinar.errors import Unsupported
from shinar.pipeline import schema
from shinar.pipeline.archive import Piece, pieces, read_piece
from shinar.pipeline.browse import browsed_rows
from shinar.pipeline.filters import Test, queues_left, usable
from shinar.pipeline.freeze import Share, frozen_rows
from shinar.pipeline.frozen import START, Planner
from shinar.pipeline.logstream import LogPlanner, log_rows
from shinar.pipeline.options import (
    ArchiveOptions,
    BrowseOptions,
    LogOptions,
    StreamOptions,
    UrlRef,
    log_options,
    read_options,
    stream_options,
    write_options,
)
from shinar.pipeline.replay import Range, ReplayPlanner, read_rows
from shinar.pipeline.sink import ShinarStreamWriter, ShinarWriter


class ShinarSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "shinar"

    def schema(self) -> StructType:
        return schema.SPARK

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if isinstance(options, ArchiveOptions):
            return ArchiveReader(options)
        _refuse_private(options.url)
        return BrowseReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if "path" in self.options:
            return LogStream(log_options(self.options))
        options = stream_options(self.options)
        _refuse_private(options.url)
        return ReplayStream(options) if options.url.traits().replayable else FrozenStream(options)

    def writer(self, schema: StructType, overwrite: bool) -> ShinarWriter:
        _refuse_overwrite(overwrite)
        options = write_options(self.options)
        _refuse_private(options.url)
        return ShinarWriter(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShinarStreamWriter:
        options = write_options(self.options)
        _refuse_private(options.url)
        return ShinarStreamWriter(options, schema)


def _refuse_private(url: UrlRef) -> None:
    traits = url.traits()
    if not traits.shared:
        advice = "Spark's processes each see their own; use a broker they share, such as sqlite:///path"
        raise Unsupported(traits.name, "be read or written by Spark", advice)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise Unsupported("shinar", "overwrite a queue", 'messages are added; use mode("append")')


@dataclass
class Part(InputPartition):
    """Spark wants its own class around what a task reads."""

    value: Any


class BrowseReader(DataSourceReader):
    """Looks at a live queue and consumes nothing."""

    def __init__(self, options: BrowseOptions) -> None:
        self._options = options
        self._tests: tuple[Test, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._tests = usable(filters)
        return filters  # Spark applies them again: ours only save work

    def partitions(self) -> list[InputPartition]:
        traits = self._options.url.traits()
        if not traits.browse:
            raise Unsupported(
                traits.name, "be read without consuming", "use spark.readStream, which freezes what it takes"
            )
        return [Part(queue) for queue in queues_left(self._options.queues, self._tests)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's stand-in when there is nothing to read
            return iter(())
        return browsed_rows(partition.value, self._options, self._tests)


class ArchiveReader(DataSourceReader):
    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._tests: tuple[Test, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._tests = usable(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        return [Part(piece) for piece in pieces(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece: Piece | None = partition.value
        return iter(()) if piece is None else read_piece(piece, self._tests, self._options.include_headers)


class FrozenStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A queue that hands a message out once: every batch is frozen before it is used."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def initialOffset(self) -> dict[str, Any]:
        return dict(START)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows, size = _limits(limit, self._options)
        return self._plan().latest(start, rows, size)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return {"lag": self._plan().lag()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(share) for share in self._plan().shares(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        share: Share = partition.value
        return frozen_rows(share, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan().finish(end)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner


class ReplayStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A log with offsets: Spark's checkpoint says where we are."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._planner: ReplayPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._plan().latest(start, _limits(limit, self._options)[0])

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan().lag()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(part) for part in self._plan().ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Range = partition.value
        return read_rows(part, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        self._plan().finish(end)

    def _plan(self) -> ReplayPlanner:
        if self._planner is None:
            self._planner = ReplayPlanner(self._options)
        return self._planner


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The embedded broker's own log: positions are offsets."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._planner: LogPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._plan().initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_records
        return self._plan().latest(start, rows)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan().lag()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Part(part) for part in self._plan().ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return log_rows(partition.value, self._options)

    def _plan(self) -> LogPlanner:
        if self._planner is None:
            self._planner = LogPlanner(self._options)
        return self._planner


def _limits(limit: ReadLimit, options: StreamOptions) -> tuple[int | None, int | None]:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows, options.max_bytes
    if isinstance(limit, ReadMaxBytes):
        return options.max_records, limit.max_bytes
    if isinstance(limit, ReadAllAvailable):
        return None, None
    return options.max_records, options.max_bytes
