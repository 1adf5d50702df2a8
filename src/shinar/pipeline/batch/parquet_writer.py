"""The Parquet files one task writes: one for each table it has rows of. Must not know Spark or messages.

Rows are buffered until a row group is worth writing; the buffers of all tables together are bounded. A file
is opened with its first row group, so that a task with rows of hundreds of tables has few files open.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from shinar import durable_files as durable

#: A row group has at most so many rows, and is written when so many bytes are buffered for its table.
GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 32 << 20
#: Bytes buffered for all tables of the task before the largest buffers are written.
BUFFER_BYTES: Final = 96 << 20
#: Columns in which hardly a value comes twice: a dictionary of them is work for nothing.
_UNIQUE: Final = frozenset({"body", "data", "id", "id_hash", "trace_id", "position", "_id", "_trace_id"})
#: Columns nobody searches by smallest and largest value.
_UNBOUNDED: Final = frozenset({"body", "data"})


class Sinks:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._sinks: dict[str, _Sink] = {}
        self._buffered = 0

    def add(self, table: str, rows: pa.Table) -> None:
        if not len(rows):
            return
        if table not in self._sinks:
            self._sinks[table] = _Sink(self._folder / table / f"{self._name}.parquet", rows.schema)
        sink = self._sinks[table]
        before = sink.buffered_bytes
        sink.add(rows)
        self._buffered += sink.buffered_bytes - before
        if self._buffered > BUFFER_BYTES:
            for one in sorted(self._sinks.values(), key=lambda one: -one.buffered_bytes):
                self._buffered -= one.buffered_bytes
                one.flush()
                if self._buffered <= BUFFER_BYTES // 2:
                    break

    def close(self) -> dict[str, str]:
        """The finished files by table, on disk to stay."""
        return {table: sink.close() for table, sink in self._sinks.items()}

    def discard(self) -> None:
        for sink in self._sinks.values():
            sink.discard()
        self._sinks = {}


class _Sink:
    def __init__(self, path: Path, shape: pa.Schema) -> None:
        self._path = path
        self._shape = shape
        self._file: pq.ParquetWriter | None = None
        self._buffer: list[pa.Table] = []
        self._rows = 0
        self.buffered_bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._buffer.append(rows)
        self._rows += len(rows)
        self.buffered_bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self.buffered_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._opened().write_table(pa.concat_tables(self._buffer), row_group_size=GROUP_ROWS)
        self._buffer, self._rows, self.buffered_bytes = [], 0, 0

    def close(self) -> str:
        self.flush()
        self._opened().close()
        durable.sync(self._path)
        return str(self._path)

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            os.unlink(self._path)

    def _opened(self) -> pq.ParquetWriter:
        if self._file is None:
            leaves = _leaves(self._shape)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(
                self._path,
                self._shape,
                compression="zstd",
                use_dictionary=[leaf for leaf in leaves if leaf not in _UNIQUE],
                write_statistics=[leaf for leaf in leaves if leaf not in _UNBOUNDED],
            )
        return self._file


def _leaves(shape: pa.Schema) -> list[str]:
    """The names Parquet gives the columns: those of a list or map are inside it."""
    names = []
    for field in shape:
        if pa.types.is_map(field.type):
            names += [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
        elif pa.types.is_list(field.type):
            names.append(f"{field.name}.list.element")
        else:
            names.append(field.name)
    return names
