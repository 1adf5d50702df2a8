"""`spark.read` / `readStream` / `write` / `writeStream` `.format("shinar")`: Spark's hooks, and nothing else.

Which hook runs where is Spark's business (planning beside the driver, reading and writing on executors, from
a pickled copy), so these classes hold options only and open everything late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

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
from shinar.pipeline.rows import schema
from shinar.pipeline.source.archive import ArchivePartition, plan_archive, read_archive
from shinar.pipeline.source.broker_log import LogPlanner, read_log
from shinar.pipeline.source.browse import browsed_rows
from shinar.pipeline.source.filters import PushedFilter, queues_left, usable
from shinar.pipeline.source.lifetime import end_with_parent
from shinar.pipeline.source.offset_stream import OffsetPlanner, read_range
from shinar.pipeline.source.options import (
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
from shinar.pipeline.source.wal.capture import read_partition
from shinar.pipeline.source.wal.planner import WalPlanner
from shinar.pipeline.source.writer import ShinarStreamWriter, ShinarWriter

#: JSON, as Spark keeps it in its checkpoint; each planner has its own form.
Offset = dict[str, Any]


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
            return ShinarStreamReader(log_options(self.options), LOG)
        options = stream_options(self.options)
        _refuse_private(options.url)
        return ShinarStreamReader(options, OFFSETS if options.url.traits().replayable else WRITE_AHEAD_LOG)

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
class Partition(InputPartition):
    """Spark wants its own class around what a task reads."""

    value: Any


class BrowseReader(DataSourceReader):
    """Looks at a live queue and consumes nothing."""

    def __init__(self, options: BrowseOptions) -> None:
        self._options = options
        self._tests: tuple[PushedFilter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._tests = usable(filters)
        return filters  # Spark applies them again: ours only save work

    def partitions(self) -> list[InputPartition]:
        traits = self._options.url.traits()
        if not traits.browse:
            raise Unsupported(
                traits.name,
                "be read without consuming",
                "use spark.readStream with a landing folder",
            )
        return [Partition(queue) for queue in queues_left(self._options.queues, self._tests)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's stand-in when there is nothing to read
            return iter(())
        end_with_parent()
        return browsed_rows(partition.value, self._options, self._tests)


class ArchiveReader(DataSourceReader):
    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options
        self._tests: tuple[PushedFilter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._tests = usable(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        return [Partition(part) for part in plan_archive(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        end_with_parent()
        part: ArchivePartition | None = partition.value
        return iter(()) if part is None else read_archive(part, self._tests, self._options.include_headers)


class StreamPlanner(Protocol):
    """The driver's half of a stream, by Spark's own verbs."""

    def initial_offset(self) -> Offset: ...
    def latest_offset(self, start: Offset, max_rows: int | None, max_bytes: int | None) -> Offset: ...
    def prepare_available_now(self) -> None: ...
    def partitions(self, start: Offset, end: Offset) -> Sequence[Any]: ...
    def commit(self, end: Offset) -> None: ...
    def report_latest_offset(self) -> Offset: ...
    def close(self) -> None: ...


class StreamKind(NamedTuple):
    """One way to stream: what plans it, and how a task reads its partition."""

    planner: Callable[[Any], StreamPlanner]
    read: Callable[[Any, Any], Iterator[pa.RecordBatch]]


#: A queue that delivers a message once: every batch is captured in segments before it is acknowledged.
WRITE_AHEAD_LOG: Final = StreamKind(WalPlanner, read_partition)
#: A broker with offsets: Spark's checkpoint says how far the stream is.
OFFSETS: Final = StreamKind(OffsetPlanner, read_range)
#: The log that a broker keeps in its folder: positions are offsets.
LOG: Final = StreamKind(LogPlanner, read_log)


class ShinarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: StreamOptions | LogOptions, kind: StreamKind) -> None:
        self._options = options
        self._kind = kind
        #: Opened late: this object is pickled to executors, which only ever `read`.
        self._planner: StreamPlanner | None = None

    def initialOffset(self) -> Offset:
        return self._plan().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan().prepare_available_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        options = self._options
        rows: int | None = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_records
        size: int | None = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes
        if isinstance(limit, ReadAllAvailable):
            rows = size = None
        return self._plan().latest_offset(start, rows, size)

    def reportLatestOffset(self) -> Offset | None:
        return self._plan().report_latest_offset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return [Partition(part) for part in self._plan().partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        end_with_parent()
        return self._kind.read(partition.value, self._options)

    def commit(self, end: Offset) -> None:
        self._plan().commit(end)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            end_with_parent()
            self._planner = self._kind.planner(self._options)
        return self._planner
