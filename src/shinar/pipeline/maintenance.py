"""Housekeeping of a lake: many small files into few, old rows out, and what is there. No Spark needed."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shinar.clock import SYSTEM
from shinar.errors import ConfigError, Unsupported
from shinar.pipeline.batch.journal import unfinished
from shinar.pipeline.checkpoint import CapturedBatch, captured_batches
from shinar.pipeline.handlers import HandlerState
from shinar.pipeline.lake.delta import DeltaStore, contended
from shinar.pipeline.lake.parquet import FolderStore
from shinar.pipeline.lake.store import CORE, STATE_DIR, TYPED_DIR, TableStore, null_count, remove_tree

#: Files of about this size scan well everywhere.
TARGET_BYTES: Final = 256 << 20
#: Files no table names are kept this long: a running batch may be about to name them.
ORPHAN_HOURS: Final = 24 * 7
_LATER: Final = "jobs write too often now; try again when they are quieter"
_TIME_COLUMN: Final = {
    "messages": "received_at",
    "quarantine": "received_at",
    "duplicates": "received_at",
    "dead_letters": "received_at",
    "typed_rejects": "received_at",
    "batches": "prepared_at",
    "handler_failures": "failed_at",
}


class TableStatus(msgspec.Struct, frozen=True):
    name: str
    rows: int
    files: int
    size_bytes: int
    #: Rows of a typed table with fields beyond its columns, in `_extra`.
    extra_rows: int = 0


class Compacted(msgspec.Struct, frozen=True):
    table: str
    files_before: int
    files_after: int


class LakeStatus(msgspec.Struct, frozen=True):
    tables: tuple[TableStatus, ...]
    batches: int
    received: int
    messages: int
    quarantine: int
    duplicates: int
    #: Of these, rows that may repeat an earlier one: see the column `redelivery`.
    possible_redeliveries: int
    last_received_at: datetime | None
    #: Batches that are planned, with messages that may be out of the queue already, and in no table yet.
    captured: tuple[CapturedBatch, ...]
    #: Batches decided but not committed everywhere; the next run of their job finishes them.
    unfinished: tuple[str, ...]
    #: "handler: batch (attempts, error)" of what handlers have still to run over.
    pending: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return self.received == self.messages + self.quarantine + self.duplicates


def status(store: TableStore) -> LakeStatus:
    batches = _batches(store)
    sums = {
        name: int(pc.sum(batches[name]).as_py() or 0)
        for name in ("received", *_PARTS, "possible_redeliveries")
    }
    return LakeStatus(
        tables=tuple(table_status(store, name) for name in store.tables()),
        batches=len(pc.unique(batches["batch"])),
        last_received_at=pc.max(batches["last_received_at"]).as_py() if len(batches) else None,
        unfinished=tuple(path.stem for path in sorted((store.root / STATE_DIR / "jobs").glob("*/*/*.json"))),
        captured=tuple(captured_batches(store)),
        pending=tuple(pending_batches(store)),
        **sums,
    )


_PARTS: Final = ("messages", "quarantine", "duplicates")


def _batches(store: TableStore) -> pa.Table:
    # By the schema: files of earlier versions lack the newer columns, which are null then.
    parts = [pq.read_table(path, schema=CORE["batches"]) for path in store.files("batches")]
    return pa.concat_tables(parts) if parts else CORE["batches"].empty_table()


def pending_batches(store: TableStore) -> list[str]:
    told = []
    for path in sorted((store.root / STATE_DIR / "handlers").glob("*/*.json")):
        for pending in msgspec.json.decode(path.read_bytes(), type=HandlerState).pending:
            runs = "1 attempt" if pending.attempts == 1 else f"{pending.attempts} attempts"
            told.append(f"{path.stem}: {pending.batch.name} ({runs}, {pending.error})")
    return told


def table_status(store: TableStore, name: str) -> TableStatus:
    files = store.files(name)
    footers = [pq.read_metadata(path) for path in files]
    extra = 0
    if name.startswith(f"{TYPED_DIR}/"):
        extra = sum(footer.num_rows - (null_count(footer, "_extra") or 0) for footer in footers)
    size_bytes = sum(os.path.getsize(path) for path in files)
    return TableStatus(name, sum(footer.num_rows for footer in footers), len(files), size_bytes, extra)


def compact(
    store: TableStore, only: tuple[str, ...] = (), target_bytes: int = TARGET_BYTES
) -> list[Compacted]:
    """Rewrite small files as few. Readers see the old files or the new ones, never both."""
    if not isinstance(store, DeltaStore):
        raise Unsupported("a plain Parquet lake", "be compacted in place", "use the delta format for that")
    done = []
    for name in _chosen(store, only):
        table = store.open(name)
        if table is None:
            continue
        before = len(table.file_uris())
        if before > 1:
            contended(partial(_compact, store, name, target_bytes), f"table {name}", _LATER)
            table.update_incremental()
        done.append(Compacted(name, before, len(table.file_uris())))
    return done


def _compact(store: DeltaStore, name: str, target_bytes: int) -> None:
    table = store.open(name)
    if table is not None:
        table.optimize.compact(target_size=target_bytes)
        table.create_checkpoint()


def retention(store: TableStore, keep: timedelta, only: tuple[str, ...] = ()) -> dict[str, int]:
    """Delete rows older than `keep`; returns rows gone per table. Ids that are gone are no longer compared:
    keep `messages` for at least the dedupe horizon."""
    edge = SYSTEM.utc_now() - keep
    gone: dict[str, int] = {}
    for name in _chosen(store, only):
        column = _TIME_COLUMN.get(name) or ("_received_at" if name.startswith(f"{TYPED_DIR}/") else None)
        if column is None:
            continue
        if isinstance(store, DeltaStore):
            gone[name] = contended(partial(_delete, store, name, column, edge), f"table {name}", _LATER)
        elif isinstance(store, FolderStore):
            gone[name] = _drop_folders(store, name, edge)
    return gone


def _delete(store: DeltaStore, name: str, column: str, edge: datetime) -> int:
    table = store.open(name)
    if table is None or column not in [field.name for field in table.schema().fields]:
        return 0
    # A bare TIMESTAMP is one of nanoseconds without a zone, which the kernel does not compare with ours.
    moment = f"arrow_cast('{edge.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    told = table.delete(f"{column} < {moment}")
    return int(told.get("num_deleted_rows") or 0)


def _drop_folders(store: FolderStore, name: str, edge: datetime) -> int:
    rows = 0
    edge_us = int(edge.timestamp() * 1_000_000)
    for folder, marker in store.batches(name):
        if marker.last_us is not None and marker.last_us < edge_us:
            store.drop(name, folder, marker)
            rows += marker.rows
    return rows


def vacuum(store: TableStore, hours: int = ORPHAN_HOURS) -> int:
    """Remove files no table names: leftovers of killed attempts, of compaction and of retention. What a
    decided batch has yet to commit stays, however old it is."""
    removed = 0
    for name in store.tables():
        if isinstance(store, DeltaStore):
            removed += _vacuum(store, name, hours)
        else:
            removed += _old_leftovers(store, name, hours)
    return removed


def _vacuum(store: DeltaStore, name: str, hours: int) -> int:
    # First of all: a batch committed meanwhile must be among them. delta-rs does not know our manifests.
    awaited = _awaited(store, name)
    table = store.open(name)
    if table is None:
        return 0
    # Full: also what no commit ever named, the leftovers of killed attempts.
    found = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
    gone = set(found) - awaited
    for path in gone:
        (store.root / name / path).unlink(missing_ok=True)
    return len(gone)


def _old_leftovers(store: TableStore, name: str, hours: int) -> int:
    removed = 0
    awaited = {path.partition("/")[0] for path in _awaited(store, name)}
    for path in (store.root / name).glob(".tmp-*"):
        if path.name not in awaited and SYSTEM.epoch_s() - path.stat().st_mtime > hours * 3600:
            remove_tree(path)
            removed += 1
    return removed


def _awaited(store: TableStore, name: str) -> set[str]:
    """Files, relative to the table, of batches that are decided and not committed everywhere."""
    commits = (change for _, manifest in unfinished(store) for change in manifest.commits)
    return {file.path for change in commits if change.table == name for file in change.files}


def _chosen(store: TableStore, only: tuple[str, ...]) -> list[str]:
    there = store.tables()
    for name in only:
        if name not in there:
            raise ConfigError(f"no table {name!r}; there are: {', '.join(there)}", setting="table")
    return list(only) or there
