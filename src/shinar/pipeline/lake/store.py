"""The lake: which tables there are, their columns, and the one interface to put files into them.

A table is a folder. Executors put Parquet files where `data_dir` says, and nothing sees them until
`commit` names them, once per (app, version). Must not know a broker, and starts no Spark session; Delta and
plain folders are the two stores.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shinar import durable_files as durable
from shinar.errors import ConfigError, StoreError
from shinar.pipeline.rows import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Format = Literal["delta", "parquet"]

#: Our own folder inside a lake: manifests, staging, typed schemas. Never data.
STATE_DIR: Final = "_shinar"
#: Folder of the typed tables, one per URN or route.
TYPED_DIR: Final = "typed"
_TIME: Final = pa.timestamp("us", tz="UTC")

#: A row of `messages` and of `quarantine`: what the source gave, and which batch it came in.
ROW: Final = pa.schema([*schema.ARROW, pa.field("id_hash", pa.int64()), pa.field("batch", pa.string())])

#: A delivery whose id was seen before. Dead-letter copies of known messages are here too.
DUPLICATES: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("first_batch", pa.string()),
        pa.field("batch", pa.string()),
        *[
            schema.ARROW.field(name)
            for name in ("urn", "trace_id", "queue", "lang", "created_at", "attempts")
        ],
        *[
            schema.ARROW.field(name)
            for name in ("received_at", "broker", "position", "dl_reason", "redelivery")
        ],
    ]
)

DEAD_LETTERS: Final = pa.schema(
    [
        pa.field("fingerprint", pa.string()),
        pa.field("template", pa.string()),
        *schema.ARROW,
        pa.field("id_hash", pa.int64()),
        pa.field("batch", pa.string()),
    ]
)

#: A message that is in `messages` and has no row in its typed table, and why.
TYPED_REJECTS: Final = pa.schema(
    [
        *[schema.ARROW.field(name) for name in ("id", "urn", "trace_id", "queue", "lang", "created_at")],
        *[schema.ARROW.field(name) for name in ("received_at", "position")],
        pa.field("table", pa.string()),
        pa.field("column", pa.string()),
        pa.field("pointer", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("value", pa.string()),
        pa.field("batch", pa.string()),
    ]
)

BATCHES: Final = pa.schema(
    [
        pa.field("batch", pa.string()),
        pa.field("job", pa.string()),
        pa.field("epoch", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("queue", pa.string()),
        pa.field("received", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("quarantine", pa.int64()),
        pa.field("duplicates", pa.int64()),
        pa.field("dead_letters", pa.int64()),
        pa.field("possible_redeliveries", pa.int64()),
        pa.field("first_received_at", _TIME),
        pa.field("last_received_at", _TIME),
        pa.field("prepared_at", _TIME),
        pa.field("took_ms", pa.int64()),
    ]
)

#: Handler runs that failed: the batch stays pending and is tried again.
HANDLER_FAILURES: Final = pa.schema(
    [
        pa.field("handler", pa.string()),
        pa.field("batch", pa.string()),
        pa.field("attempt", pa.int64()),
        pa.field("failed_at", _TIME),
        pa.field("error", pa.string()),
    ]
)

CORE: Final[dict[str, pa.Schema]] = {
    "messages": ROW,
    "quarantine": ROW,
    "duplicates": DUPLICATES,
    "dead_letters": DEAD_LETTERS,
    "typed_rejects": TYPED_REJECTS,
    "batches": BATCHES,
    "handler_failures": HANDLER_FAILURES,
}

#: Columns whose smallest and largest value are kept per file, so that a horizon skips old files.
_BOUNDED: Final = ("received_at", "_received_at", "last_received_at", "failed_at")


class DataFile(msgspec.Struct, frozen=True):
    """A finished Parquet file inside a table's folder."""

    path: str  # relative to the table
    size_bytes: int
    rows: int
    #: Epoch microseconds of the earliest and latest `received_at`, where the table has that column.
    first_us: int | None = None
    last_us: int | None = None
    time_column: str = ""


class Commit(msgspec.Struct, frozen=True):
    """What one batch adds to one table. `app` and `version` make a second commit a no-op."""

    table: str
    app: str
    version: int
    files: tuple[DataFile, ...]
    #: Arrow schema of the table after this commit, serialised (columns are only ever added).
    columns: bytes

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def arrow_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.columns))


class TableStore(Protocol):
    """A kind of table. Both kinds keep `messages` and the rest under `root/<table>`."""

    root: Path

    def data_dir(self, table: str, attempt: str) -> Path:
        """The folder inside the table for the files of one attempt, not visible yet."""
        ...

    def commit(self, change: Commit) -> bool:
        """Make the files visible; False when this (app, version) was there already."""
        ...

    def committed(self, table: str, app: str) -> int | None: ...

    def files(self, table: str, since_us: int | None = None) -> list[str]:
        """Absolute paths, without those that only have rows received before `since_us`."""
        ...

    def schema(self, table: str) -> pa.Schema | None: ...

    def tables(self) -> list[str]: ...


def check_lake_folder(lake: str | os.PathLike[str]) -> Path:
    """The lake's absolute path, whether it exists or not; an error where it cannot be one."""
    if "://" in os.fspath(lake):
        raise ConfigError(
            "must be a folder (local disk, NFS); copy the tables from there to a bucket", setting="lake"
        )
    root = Path(os.path.abspath(os.fspath(lake)))
    blocked = next((path for path in (root, *root.parents) if path.exists() and not path.is_dir()), None)
    if blocked is not None:
        raise ConfigError(f"{blocked} is a file; name a folder for the tables", setting="lake")
    return root


def open_store(lake: str | os.PathLike[str], table_format: Format | None = None) -> TableStore:
    """The store of a lake. A lake keeps the format it was made with."""
    from shinar.pipeline.lake.delta import DeltaStore
    from shinar.pipeline.lake.parquet import FolderStore

    root = check_lake_folder(lake)
    marker = root / STATE_DIR / "lake.json"
    found = json.loads(marker.read_text())["format"] if marker.exists() else None
    if found and table_format and found != table_format:
        raise ConfigError(f"this lake has {found} tables; use another folder", setting="format")
    if table_format not in (None, *get_args(Format)):
        raise ConfigError(f"{table_format!r} is neither delta nor parquet", setting="format")
    chosen = found or table_format or "delta"
    if chosen == "delta" and (odd := [char for char in "%\\[]^|" if char in str(root)]):
        # delta-rs takes a path for a URL here and there: it would read another folder than it wrote (% \), or
        # panic in maintenance ([ ] ^ |).
        raise ConfigError(
            f"Delta tables cannot lie in a folder with {odd[0]} in its path; use another or --format parquet",
            setting="lake",
        )
    if not found:
        durable.write(marker, json.dumps({"format": chosen, "version": 1}).encode())
    return DeltaStore(root) if chosen == "delta" else FolderStore(root)


def existing_store(lake: str | os.PathLike[str]) -> TableStore:
    """For readers: a folder without tables is an error and not a new, empty lake."""
    check_lake_folder(lake)
    if not (Path(lake) / STATE_DIR / "lake.json").exists():
        raise ConfigError(
            f"{os.fspath(lake)} has no Shinar tables; write some with `shinar pipeline run`", setting="lake"
        )
    return open_store(lake)


def read(spark: SparkSession, store: TableStore, table: str, since_us: int | None = None) -> DataFrame:
    """A table as a DataFrame, by its file list: no Delta jar needed. A table not yet written is empty."""
    known = store.schema(table)
    if known is None:
        if table not in CORE:
            raise ConfigError(f"no table {table!r}; there are: {', '.join(store.tables()) or 'none yet'}")
        known = CORE[table]
    files = store.files(table, since_us)
    shape = to_spark(known)
    if not files:
        return spark.createDataFrame([], shape)
    return read_files(spark, files, shape)


def read_files(spark: SparkSession, files: Sequence[str], shape: StructType) -> DataFrame:
    # Above this many paths Spark lists them by a cluster job, which costs more than it saves.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000")
    return spark.read.schema(shape).parquet(*[quoted(name) for name in files])


def quoted(path: str) -> str:
    """Spark globs its paths: a bracket or star in a folder's name must stand for itself."""
    return "".join("\\" + char if char in "*?[]{}\\" else char for char in path)


def to_spark(shape: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    made: StructType = from_arrow_schema(shape)
    return made


def describe(table_dir: Path, paths: Iterable[Path]) -> tuple[DataFile, ...]:
    """Sizes, counts and time bounds from the footers; files without rows are left out."""
    found = (_describe(table_dir, path) for path in sorted(paths))
    return tuple(file for file in found if file.rows)


def _describe(table_dir: Path, path: Path) -> DataFile:
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowInvalid, OSError) as exc:
        raise StoreError(f"{path} is not a whole Parquet file ({exc}); the batch is written again") from None
    column, first, last = _bounds(footer)
    return DataFile(
        path=path.relative_to(table_dir).as_posix(),
        size_bytes=path.stat().st_size,
        rows=footer.num_rows,
        first_us=first,
        last_us=last,
        time_column=column,
    )


def _bounds(footer: pq.FileMetaData) -> tuple[str, int | None, int | None]:
    for name in _BOUNDED:
        low, high = column_range(footer, name)
        if low is not None and high is not None:
            return name, _micros(low), _micros(high)
    return "", None, None


def column_range(footer: pq.FileMetaData, name: str) -> tuple[object, object]:
    """Smallest and largest value of a flat column, or (None, None) where a row group does not say."""
    stats = _statistics(footer, name)
    if not stats or any(part is None or not part.has_min_max for part in stats):
        return None, None
    return min(part.min for part in stats), max(part.max for part in stats)


def null_count(footer: pq.FileMetaData, name: str) -> int | None:
    """How many rows have no value in a flat column; None when the footer does not say."""
    stats = _statistics(footer, name)
    if not stats or any(part is None or not part.has_null_count for part in stats):
        return None
    return sum(int(part.null_count) for part in stats)


def _statistics(footer: pq.FileMetaData, name: str) -> list[Any]:
    leaf = next((i for i in range(footer.num_columns) if footer.schema.column(i).path == name), None)
    if leaf is None:
        return []
    return [footer.row_group(group).column(leaf).statistics for group in range(footer.num_row_groups)]


def _micros(value: object) -> int:
    if not isinstance(value, datetime):
        raise StoreError(f"a time column has {type(value).__name__} in its footer")
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def widened(old: pa.Schema | None, new: pa.Schema) -> pa.Schema:
    """The old columns and, after them, those that are new. A changed type is refused."""
    if old is None:
        return new
    fields = list(old)
    for field in new:
        if field.name not in old.names:
            fields.append(field)
        elif not _same(old.field(field.name).type, field.type):
            have = old.field(field.name).type
            raise StoreError(f"column {field.name} is {have} in the table and {field.type} in the batch")
    return pa.schema(fields)


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """Equal up to the names Parquet, Arrow and Delta give to list and map items."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _same(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _same(one.key_type, other.key_type) and _same(one.item_type, other.item_type)
    return bool(one.equals(other))


def require_files(folder: Path, change: Commit) -> None:
    """A table must never name a file that is not there: it could not be read any more."""
    for file in change.files:
        if not (folder / file.path).exists():
            raise StoreError(
                f"{folder / file.path} is gone and batch {change.version} of {change.app} needs it; bring it "
                f"back from a copy, or give the batch up by moving its manifest out of {STATE_DIR}/jobs"
            )


def packed(shape: pa.Schema) -> bytes:
    return bytes(shape.remove_metadata().serialize())


def remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
