"""The Parquet files one task writes: one for each table it has rows of. Knows no Spark and no message.

Rows are held until a row group is worth writing; what all tables hold together is bounded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from shinar import durable_files as durable

#: A row group has at most so many rows, and is written when so many bytes are held for its table...
GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 32 << 20
#: ...or for all tables of the task.
HELD_BYTES: Final = 96 << 20
#: Columns in which hardly a value comes twice: a dictionary of them is work for nothing.
_UNIQUE: Final = frozenset({"body", "data", "id", "id_hash", "trace_id", "position", "_id", "_trace_id"})
#: Columns nobody searches by smallest and largest value.
_UNBOUNDED: Final = frozenset({"body", "data"})


class Sinks:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._sinks: dict[str, _Sink] = {}
        self._held = 0

    def add(self, table: str, rows: pa.Table) -> None:
        if not len(rows):
            return
        if table not in self._sinks:
            self._sinks[table] = _Sink(self._folder / table / f"{self._name}.parquet", rows.schema)
        sink = self._sinks[table]
        before = sink.held_bytes
        sink.add(rows)
        self._held += sink.held_bytes - before
        if self._held > HELD_BYTES:
            for one in self._sinks.values():
                one.flush()
            self._held = 0

    def close(self) -> dict[str, str]:
        """The finished files by table, on disk to stay."""
        return {table: sink.close() for table, sink in self._sinks.items()}

    def discard(self) -> None:
        for sink in self._sinks.values():
            os.unlink(sink.close())
        self._sinks = {}


class _Sink:
    def __init__(self, path: Path, shape: pa.Schema) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = pq.ParquetWriter(
            path,
            shape,
            compression="zstd",
            use_dictionary=[leaf for leaf in _leaves(shape) if leaf not in _UNIQUE],
            write_statistics=[leaf for leaf in _leaves(shape) if leaf not in _UNBOUNDED],
        )
        self._held: list[pa.Table] = []
        self._rows = 0
        self.held_bytes = 0

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._rows += len(rows)
        self.held_bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self.held_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._file.write_table(pa.concat_tables(self._held), row_group_size=GROUP_ROWS)
        self._held, self._rows, self.held_bytes = [], 0, 0

    def close(self) -> str:
        self.flush()
        self._file.close()
        durable.sync(self._path)
        return str(self._path)


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
