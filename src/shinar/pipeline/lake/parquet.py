"""Plain Parquet tables: one folder per committed batch, for readers that want folders and no log.

A batch appears by one rename. A marker per (app, version), inside the renamed folder, makes a second
commit a no-op. Widening needs no rewrite: readers get the union of the columns.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from shinar import durable_files as durable
from shinar.errors import StoreError
from shinar.pipeline.lake.store import (
    STATE_DIR,
    Commit,
    DataFile,
    packed,
    remove_tree,
    require_files,
    widened,
)

#: Written into every batch folder; hidden from Spark, DuckDB and pyarrow by its leading dot or underscore.
MARKER: Final = "_batch.json"
_SCHEMA: Final = "_schema.arrow"
#: Application -> last batch of it that retention deleted.
_DROPPED: Final = "_dropped.json"


class Marker(msgspec.Struct, frozen=True):
    app: str
    version: int
    rows: int
    last_us: int | None


class FolderStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def data_dir(self, table: str, attempt: str) -> Path:
        return self.root / table / f".tmp-{attempt}"

    def commit(self, change: Commit) -> bool:
        table_dir = self.root / change.table
        target = table_dir / folder_of(change.app, change.version)
        if target.exists():
            return False
        shape = widened(self.schema(change.table), change.arrow_schema())
        durable.write(table_dir / _SCHEMA, packed(shape))
        gathered = table_dir / f".new-{target.name}"
        gathered.mkdir(parents=True, exist_ok=True)
        missing = tuple(file for file in change.files if not _gathered(gathered, file).exists())
        require_files(table_dir, msgspec.structs.replace(change, files=missing))
        for file in missing:
            os.replace(table_dir / file.path, _gathered(gathered, file))
        ends = [file.last_us for file in change.files if file.last_us is not None]
        marker = Marker(change.app, change.version, change.rows, max(ends) if ends else None)
        durable.write(gathered / MARKER, msgspec.json.encode(marker))
        try:
            os.rename(gathered, target)
        except OSError as exc:
            if target.exists():
                return False
            raise StoreError(f"table {change.table}: {exc}; the batch is kept and committed again") from exc
        durable.sync(table_dir)
        return True

    def committed(self, table: str, app: str) -> int | None:
        versions = [marker.version for _, marker in self.batches(table) if marker.app == app]
        dropped = self._dropped(table).get(app)
        return max([*versions, *([] if dropped is None else [dropped])], default=None)

    def drop(self, table: str, folder: Path, marker: Marker) -> None:
        """Delete a batch's rows for good; that it was committed stays known."""
        known = self._dropped(table)
        known[marker.app] = max(marker.version, known.get(marker.app, marker.version))
        durable.write(self.root / table / _DROPPED, msgspec.json.encode(known))
        hidden = folder.with_name(f".gone-{folder.name}")
        os.rename(folder, hidden)
        remove_tree(hidden)

    def _dropped(self, table: str) -> dict[str, int]:
        try:
            return msgspec.json.decode((self.root / table / _DROPPED).read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}

    def batches(self, table: str) -> list[tuple[Path, Marker]]:
        found = sorted((self.root / table).glob(f"[!.]*/{MARKER}"))
        return [(path.parent, msgspec.json.decode(path.read_bytes(), type=Marker)) for path in found]

    def files(self, table: str, since_us: int | None = None) -> list[str]:
        paths: list[str] = []
        for folder, marker in self.batches(table):
            if since_us is None or marker.last_us is None or marker.last_us >= since_us:
                paths += [str(path) for path in sorted(folder.glob("*.parquet"))]
        return paths

    def schema(self, table: str) -> pa.Schema | None:
        path = self.root / table / _SCHEMA
        return pa.ipc.read_schema(pa.py_buffer(path.read_bytes())) if path.exists() else None

    def tables(self) -> list[str]:
        names = (path.parent.relative_to(self.root).as_posix() for path in self.root.glob(f"**/{_SCHEMA}"))
        return sorted(name for name in names if not name.startswith(STATE_DIR))


def _gathered(folder: Path, file: DataFile) -> Path:
    return folder / file.path.replace("/", "_").lstrip(".")


def folder_of(app: str, version: int) -> str:
    return f"b{version:08d}-{sha256(app.encode()).hexdigest()[:12]}"
