"""Delta tables through delta-rs: the log is written by the driver, the files by whoever has the rows.

No Spark and no jar here. Files of a failed attempt stay where they are, unseen, until `vacuum`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from shinar.clock import SYSTEM
from shinar.errors import StoreError
from shinar.pipeline.lake.store import STATE_DIR, Commit, DataFile, require_files, widened

#: Commits between two checkpoints of the log: opening a table stays quick after many batches.
CHECKPOINT_EVERY: Final = 20
#: A rival commit (compaction, another job) is tried again this often before we give up.
COMMIT_TRIES: Final = 15
#: Times everything is done from the start when the table's columns changed meanwhile, and the longest pause.
RIVAL_TRIES: Final = 12
RIVAL_PAUSE_S: Final = 0.3

T = TypeVar("T")


class DeltaStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def data_dir(self, table: str, attempt: str) -> Path:
        return self.root / table / "data" / attempt

    def commit(self, change: Commit) -> bool:
        return contended(
            lambda: self._commit(change), f"table {change.table}", "the batch is kept and committed again"
        )

    def _commit(self, change: Commit) -> bool:
        table = self._ready(change)
        if _done(table, change):
            return False
        require_files(self.root / change.table, change)
        table.create_write_transaction(
            [_action(file) for file in change.files],
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(change.app, change.version)],
                custom_metadata={"shinar.app": change.app, "shinar.version": str(change.version)},
                max_commit_retries=COMMIT_TRIES,
            ),
        )
        return True

    def _ready(self, change: Commit) -> DeltaTable:
        path = str(self.root / change.table)
        wanted = change.arrow_schema()
        if not DeltaTable.is_deltatable(path):
            DeltaTable.create(
                path,
                schema=Schema.from_arrow(wanted),
                mode="ignore",
                name=change.table,
                configuration={"delta.checkpointInterval": str(CHECKPOINT_EVERY)},
            )
        table = DeltaTable(path)
        have = _arrow(table)
        missing = [field for field in widened(have, wanted) if field.name not in have.names]
        if missing:
            # Its own commit: a new column is harmless when the batch never follows.
            table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            table = DeltaTable(path)
        return table

    def committed(self, table: str, app: str) -> int | None:
        opened = self.open(table)
        return None if opened is None else opened.transaction_version(app)

    def open(self, table: str) -> DeltaTable | None:
        try:
            return DeltaTable(str(self.root / table))
        except TableNotFoundError:
            return None

    def files(self, table: str, since_us: int | None = None) -> list[str]:
        opened = self.open(table)
        if opened is None:
            return []
        # Not `file_uris`: those are percent-encoded, and a lake may lie in a folder with a blank.
        actions = pa.table(opened.get_add_actions(flatten=True))
        paths = [str(self.root / table / path) for path in actions["path"].to_pylist()]
        latest = next((name for name in actions.column_names if name in _LATEST), None)
        if latest is None or since_us is None:
            return paths
        edge = datetime.fromtimestamp(since_us / 1_000_000, UTC)
        kept = zip(paths, actions[latest].to_pylist(), strict=True)
        return [path for path, last in kept if last is None or last >= edge]

    def schema(self, table: str) -> pa.Schema | None:
        opened = self.open(table)
        return None if opened is None else _arrow(opened)

    def tables(self) -> list[str]:
        logs = self.root.glob("**/_delta_log")
        names = (log.parent.relative_to(self.root).as_posix() for log in logs)
        return sorted(name for name in names if not name.startswith(STATE_DIR))


def contended(act: Callable[[], T], what: str, advice: str) -> T:
    """Do it, and again from the start while somebody else's commit came in between: delta-rs itself tries
    again only where the columns stayed as they were."""
    for left in reversed(range(RIVAL_TRIES)):
        try:
            return act()
        except CommitFailedError as exc:
            if not left:
                raise StoreError(f"{what}: {exc}; {advice}") from exc
            SYSTEM.sleep(random.uniform(0, RIVAL_PAUSE_S))
    raise AssertionError("the last try raises or returns")


#: Statistics that bound the age of a file, by the name delta-rs gives them.
_LATEST: Final = ("max.received_at", "max._received_at", "max.last_received_at", "max.failed_at")


def _done(table: DeltaTable, change: Commit) -> bool:
    last = table.transaction_version(change.app)
    return last is not None and last >= change.version


def _arrow(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _action(file: DataFile) -> AddAction:
    stats: dict[str, Any] = {"numRecords": file.rows}
    if file.time_column and file.first_us is not None and file.last_us is not None:
        # Milliseconds by the protocol; the upper bound is rounded up so that it stays a bound.
        stats["minValues"] = {file.time_column: _millis(file.first_us // 1000)}
        stats["maxValues"] = {file.time_column: _millis(-(-file.last_us // 1000))}
        stats["nullCount"] = {file.time_column: 0}
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={},
        modification_time=int(SYSTEM.utc_now().timestamp() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _millis(epoch_ms: int) -> str:
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
