"""Archives of raw bodies as validated rows: JSON lines, exports, Parquet, segments, a broker's own log.

Read by the Python process that validates them, in partitions that fit a task. Opens no connection.
"""

from __future__ import annotations

import base64
import binascii
import glob
import gzip
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shinar.brokers.contract import Delivery
from shinar.brokers.registry import FolderLog, folder_log
from shinar.errors import ConfigError, StoreError
from shinar.pipeline.rows import schema
from shinar.pipeline.rows.validate import judged_batch
from shinar.pipeline.source.filters import PushedFilter, passing, worth_judging
from shinar.pipeline.source.options import ArchiveOptions
from shinar.pipeline.source.wal.segments import BEGUN, read_segment

#: Bytes of a plain text file per task.
PARTITION_BYTES: Final = 32 << 20
#: Rows judged and handed on together.
ROWS: Final = 8_192
#: Positions of a broker's log per task.
LOG_ROWS: Final = 50_000
#: Columns an archive may hold beside the body.
_DELIVERY: Final = tuple(column.name for column in schema.FROM_DELIVERY)


@dataclass(frozen=True, slots=True)
class ArchivePartition:
    """Part of one file: bytes [start, end) of lines, row groups of Parquet, positions of a broker's log."""

    path: str
    format: str
    start: int
    end: int


def plan_archive(options: ArchiveOptions) -> list[ArchivePartition]:
    files = _files(options.path)
    if not files:
        raise ConfigError(f"{options.path} holds no files", setting="path")
    found: list[ArchivePartition] = []
    size = sum(os.path.getsize(path) for path in files)  # of a folder: too small, and unused
    step = (
        min(PARTITION_BYTES, max(1, size // options.min_partitions))
        if options.min_partitions
        else PARTITION_BYTES
    )
    for path in files:
        kind = _format(path, options.format)
        with _whole(path, kind):
            found += _FORMATS[kind].plan(path, step)
    return found


def parquet_files(path: str, asked: str = "") -> list[str]:
    """The files of an archive that is nothing but Parquet: Spark can read those itself, and the bodies
    cross to Python only once. Empty for any other."""
    files = _files(path)
    return files if all(_format(file, asked) == "parquet" for file in files) else []


def read_archive(
    part: ArchivePartition, tests: tuple[PushedFilter, ...], include_headers: bool
) -> Iterator[pa.RecordBatch]:
    for batch in _batches(part):
        if batch.schema != schema.ARROW:
            batch = judged_batch(worth_judging(batch, tests))
        batch = passing(batch, tests)
        if not include_headers:
            nothing = pa.nulls(batch.num_rows, schema.ARROW.field("headers").type)
            for name in ("headers", "properties"):
                batch = batch.set_column(schema.NAMES.index(name), schema.ARROW.field(name), nothing)
        if batch.num_rows:
            yield batch


def _batches(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    with _whole(part.path, part.format):
        yield from _FORMATS[part.format].read(part)


@contextmanager
def _whole(path: str, kind: str) -> Iterator[None]:
    """A file that is cut off or something else is told as one, by name."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error, binascii.Error, pa.ArrowException) as exc:
        raise StoreError(f"{path} is damaged, or is not in the format {kind}: {exc}") from exc


def _files(path: str) -> list[str]:
    path = path.removeprefix("file://")
    if "://" in path:
        raise ConfigError(
            "archives are read from a file system; for an object store let Spark read the Parquet and "
            "use shinar.pipeline.rows.validate.judged_frame",
            setting="path",
        )
    if os.path.isfile(path) or folder_log(path) is not None:
        return [path]
    if os.path.isdir(path):
        inside = glob.glob(os.path.join(glob.escape(path), "**"), recursive=True)
        landings = [os.path.dirname(p) for p in inside if os.path.basename(p) == BEGUN]
        found = (p for p in inside if os.path.isfile(p) and _is_data(os.path.relpath(p, path)))
        return sorted(p for p in found if all(_is_kept(p, root) for root in landings))
    return sorted(p for p in glob.glob(path) if os.path.isfile(p))


def _is_data(path: str) -> bool:
    """Not what is hidden or private, as Spark has it: _SUCCESS, _spark_metadata, Delta's log; nor the marks
    beside our segments."""
    return not any(part[0] in "._" for part in path.split(os.sep)) and not path.endswith(".settled")


def _is_kept(path: str, landing: str) -> bool:
    """Of a landing only the segments: attempts may hold the same rows again, what is gone is in a sink."""
    inside = os.path.relpath(path, landing).split(os.sep)
    if inside[0] == "..":
        return True
    return path.endswith(".arrow") and inside[0] not in ("attempts", "gone")


def _format(path: str, asked: str) -> str:
    if asked:
        if asked not in _FORMATS:
            raise ConfigError(f"{asked!r} is not one of {', '.join(_FORMATS)}", setting="archiveFormat")
        return asked
    if os.path.isdir(path):
        return "broker"
    name = path.removesuffix(".gz")
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    raise ConfigError(
        f"the format of {path} is not known from its name; set archiveFormat={'|'.join(_FORMATS)}",
        setting="path",
    )


# -- JSON lines: a body a line


def _plan_lines(path: str, step: int, kind: str = "jsonl") -> list[ArchivePartition]:
    size = os.path.getsize(path)
    if path.endswith(".gz"):
        return [ArchivePartition(path, kind, 0, -1)]  # cannot be entered in the middle
    return [ArchivePartition(path, kind, start, min(start + step, size)) for start in range(0, size, step)]


def _read_lines(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    for places, lines in _lines(part):
        positions = pa.array([f"{part.path}:{place}" for place in places], pa.string())
        yield pa.record_batch({"body": pa.array(lines, pa.binary()), "position": positions})


def _lines(part: ArchivePartition) -> Iterator[tuple[list[int], list[bytes]]]:
    """(offsets, lines) without blank lines. A line belongs to the partition it begins in."""
    with _opened(part.path) as file:
        place = part.start
        if place > 0:
            file.seek(place - 1)
            place += len(file.readline()) - 1
        places: list[int] = []
        lines: list[bytes] = []
        while part.end < 0 or place < part.end:
            line = file.readline()
            if not line:
                break
            text = line.rstrip(b"\r\n")
            if text:
                places.append(place)
                lines.append(text)
            place += len(line)
            if len(lines) >= ROWS:
                yield places, lines
                places, lines = [], []
        if lines:
            yield places, lines


def _opened(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]  # reads like one, and is not declared so
    return open(path, "rb")


# -- export records: a JSON object a line, the body and what was known of its delivery


class _Record(msgspec.Struct):
    #: The body as text, or in base64 where it is not UTF-8.
    body: str | None = None
    body_base64: str | None = None
    queue: str | None = None
    headers: dict[str, str] | None = None
    key_base64: str | None = None
    native_count: int | None = None
    position: str | None = None
    broker: str | None = None
    #: Epoch milliseconds.
    received_ms: int | None = None


_record: Final = msgspec.json.Decoder(_Record).decode


def _read_export(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    for places, lines in _lines(part):
        records = [_parsed(line, f"{part.path}:{place}") for place, line in zip(places, lines, strict=True)]
        times = [None if r.received_ms is None else r.received_ms * 1000 for r in records]
        headers = [list(r.headers.items()) if r.headers else None for r in records]
        yield pa.record_batch(
            {
                "body": pa.array([_body(record) for record in records], pa.binary()),
                "queue": pa.array([r.queue for r in records], pa.string()),
                "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
                "key": pa.array([_bytes(r.key_base64) for r in records], pa.binary()),
                "native_count": pa.array([r.native_count for r in records], pa.int64()),
                "position": pa.array([r.position for r in records], pa.string()),
                "broker": pa.array([r.broker or "archive" for r in records], pa.string()),
                "received_at": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )


def _parsed(line: bytes, where: str) -> _Record:
    try:
        record = _record(line)
        if (record.body is None) == (record.body_base64 is None):
            raise StoreError(f"{where} must have exactly one of body and body_base64")
        return record
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise StoreError(
            f"{where} is not an export record: {exc}; for bare bodies set archiveFormat=jsonl"
        ) from None


def _body(record: _Record) -> bytes:
    return record.body.encode() if record.body is not None else _decoded(record.body_base64 or "")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else _decoded(text)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# -- Parquet: a column `body`, and any of the delivery columns


def _plan_parquet(path: str, step: int) -> list[ArchivePartition]:
    with pq.ParquetFile(path) as file:
        if "body" not in file.schema_arrow.names:
            raise ConfigError(
                f"{path} has no column body; it has {', '.join(file.schema_arrow.names)}", setting="path"
            )
        found: list[ArchivePartition] = []
        start = size = 0
        for group in range(file.num_row_groups):
            size += file.metadata.row_group(group).total_byte_size
            if size >= step or group == file.num_row_groups - 1:
                found.append(ArchivePartition(path, "parquet", start, group + 1))
                start, size = group + 1, 0
    return found


def _read_parquet(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(part.path) as file:
        columns = [name for name in _DELIVERY if name in file.schema_arrow.names]
        groups = list(range(part.start, part.end))
        row = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
        for batch in file.iter_batches(batch_size=ROWS, row_groups=groups, columns=columns):
            if "position" not in columns:
                numbers = pa.array(range(row, row + batch.num_rows), pa.int64()).cast(pa.string())
                places = pc.binary_join_element_wise(part.path, numbers, "#")
                batch = batch.append_column("position", places)
            row += batch.num_rows
            yield batch


# -- segments, validated when they were captured


def _plan_segment(path: str, step: int) -> list[ArchivePartition]:
    return [ArchivePartition(path, "segments", 0, -1)]


def _read_segments(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    for chunk in read_segment(part.path):
        yield chunk.rows


# -- the log of acknowledged messages that a broker keeps in its folder


def _plan_log(path: str, step: int) -> list[ArchivePartition]:
    first, end = open_log(path).bounds(Path(path))
    starts = range(first, end, LOG_ROWS)
    return [ArchivePartition(path, "broker", start, min(start + LOG_ROWS, end)) for start in starts]


def _read_log(part: ArchivePartition) -> Iterator[pa.RecordBatch]:
    return read_log_range(part.path, part.start, part.end)


def open_log(folder: str) -> FolderLog:
    found = folder_log(folder)
    if found is None:
        raise StoreError(f"{folder} is not a broker's data folder; name the folder given to --data")
    return found


def read_log_range(
    folder: str, start: int, end: int, queues: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Raw rows of a broker's log, to be validated."""
    log = open_log(folder)
    found = log.read(Path(folder), start, end, queues)
    while messages := list(islice(found, ROWS)):
        yield _log_batch(messages, log.broker)


def _log_batch(messages: Sequence[Delivery], broker: str) -> pa.RecordBatch:
    headers = [list(m.headers.items()) if m.headers else None for m in messages]
    return pa.record_batch(
        {
            "body": pa.array([m.body for m in messages], pa.binary()),
            "queue": pa.array([m.queue for m in messages], pa.string()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.string())),
            "key": pa.array([m.key for m in messages], pa.binary()),
            "position": pa.array([m.position for m in messages], pa.string()),
            "broker": pa.array([broker] * len(messages), pa.string()),
            "received_at": pa.array([m.received_ms * 1000 for m in messages], pa.timestamp("us", tz="UTC")),
        }
    )


@dataclass(frozen=True, slots=True)
class _Format:
    plan: Callable[[str, int], list[ArchivePartition]]
    read: Callable[[ArchivePartition], Iterator[Any]]


_FORMATS: Final = {
    "jsonl": _Format(_plan_lines, _read_lines),
    "export": _Format(lambda path, step: _plan_lines(path, step, "export"), _read_export),
    "parquet": _Format(_plan_parquet, _read_parquet),
    "segments": _Format(_plan_segment, _read_segments),
    "broker": _Format(_plan_log, _read_log),
}
_SUFFIXES: Final = {
    ".export.jsonl": "export",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "segments",
}
