"""DataFrame handlers by URN: they get the new messages of a batch and may return rows for a table.

A handler that fails stops nothing else: its batch is recorded as pending and tried again with the next
batches, read back from `messages`. What a handler returns is committed once per batch. Must not know a
broker.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from shinar import durable_files as durable
from shinar.clock import SYSTEM, Clock
from shinar.envelope.urn import check_pattern
from shinar.errors import ConfigError
from shinar.pipeline.batch.journal import BatchId, Manifest, stage_dir
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import STATE_DIR, Commit, TableStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Folder of the tables that handlers fill.
HANDLED_DIR: Final = "handled"
#: Failed batches tried again per new batch: a broken handler must not delay the stream.
RETRIES_PER_BATCH: Final = 2
#: After this many failures a batch is parked: it stays listed as pending, for `Pipeline.retry_handlers`.
MAX_ATTEMPTS: Final = 5
_ERROR_CHARS: Final = 4000

Transform = Callable[["DataFrame"], "DataFrame | None"]


class Handler(msgspec.Struct, frozen=True):
    name: str
    patterns: tuple[str, ...]
    transform: Transform

    @property
    def table(self) -> str:
        return f"{HANDLED_DIR}/{self.name}"


class Pending(msgspec.Struct, frozen=True):
    """A batch that a handler has not run over, or not with success."""

    batch: BatchId
    attempts: int
    error: str
    #: Name of the handler.
    handler: str = ""


class HandlerState(msgspec.Struct, frozen=True):
    """Per handler: the last batch it was given in each run, and those that are pending."""

    given: dict[str, int] = {}
    pending: tuple[Pending, ...] = ()


def make(name: str, patterns: Sequence[str], transform: Transform) -> Handler:
    for pattern in patterns:
        check_pattern(pattern)
    if not name.isidentifier():
        raise ConfigError("a handler's name must be a Python identifier", setting=f"handler {name!r}")
    return Handler(name, tuple(patterns), transform)


class HandlerRunner:
    def __init__(
        self, store: TableStore, job: str, handlers: Sequence[Handler], clock: Clock = SYSTEM
    ) -> None:
        self._store = store
        self._job = job
        self._handlers = tuple(handlers)
        self._clock = clock

    def add_pending(self, manifest: Manifest) -> None:
        """Before the batch is committed: a crash right after it must leave a record that no handler saw it.
        Spark asks for a stream's batch again, nobody does for an archive's."""
        batch = manifest.batch
        for handler in self._handlers:
            state = self.state(handler)
            known = any(pending.batch == batch for pending in state.pending)
            if not known and state.given.get(batch.app, -1) < batch.number:
                pending = (*state.pending, Pending(batch, 0, "not run yet", handler.name))
                self._save(handler, HandlerState(state.given, pending))

    def after(self, spark: SparkSession, manifest: Manifest) -> list[Pending]:
        """Run every handler over a committed batch, and some pending ones. Returns the failures."""
        failed = []
        for handler in self._handlers:
            state = self.state(handler)
            if state.given.get(manifest.batch.app, -1) < manifest.batch.number:
                rows = self._of_manifest(spark, manifest)
                failure = self._attempt(handler, rows, manifest.batch, attempt=1)
                given = {**state.given, manifest.batch.app: manifest.batch.number}
                others = tuple(p for p in state.pending if p.batch != manifest.batch)
                self._save(handler, HandlerState(given, (*others, failure) if failure else others))
                failed += [failure] if failure else []
            due = [p for p in self.state(handler).pending if p.batch != manifest.batch]
            for pending in [p for p in due if p.attempts < MAX_ATTEMPTS][:RETRIES_PER_BATCH]:
                failed += self._again(spark, handler, pending)
        return failed

    def retry(self, spark: SparkSession) -> list[Pending]:
        """Run all pending batches again, parked ones included. Returns what failed again."""
        failed = []
        for handler in self._handlers:
            for pending in self.state(handler).pending:
                failed += self._again(spark, handler, pending)
        return failed

    def state(self, handler: Handler) -> HandlerState:
        try:
            return msgspec.json.decode(self._path(handler).read_bytes(), type=HandlerState)
        except FileNotFoundError:
            return HandlerState()

    def _again(self, spark: SparkSession, handler: Handler, pending: Pending) -> list[Pending]:
        rows = tables.read(spark, self._store, "messages").where(F.col("batch") == pending.batch.name)
        failure = self._attempt(handler, rows, pending.batch, pending.attempts + 1)
        state = self.state(handler)
        others = tuple(p for p in state.pending if p.batch != pending.batch)
        self._save(handler, HandlerState(state.given, (*others, failure) if failure else others))
        return [failure] if failure else []

    def _attempt(self, handler: Handler, rows: DataFrame, batch: BatchId, attempt: int) -> Pending | None:
        try:
            result = handler.transform(rows.where(_wanted(handler.patterns)))
            if result is not None:
                self._keep(handler, result, batch, attempt)
        except Exception as exc:  # The outermost loop around a user's code: whatever it raises is recorded.
            error = "".join(traceback.format_exception(exc))[-_ERROR_CHARS:]
            self._record(handler, batch, attempt, error)
            return Pending(batch, attempt, f"{type(exc).__name__}: {exc}"[:500], handler.name)
        return None

    def _keep(self, handler: Handler, result: DataFrame, batch: BatchId, attempt: int) -> None:
        work = stage_dir(self._store, batch)
        folder = self._store.data_dir(handler.table, work.name)
        # A late success has a name of its own: the batch's number is lower than the last one committed.
        app, version = f"{batch.app}/{handler.name}", batch.number
        if attempt > 1:
            app, version = f"{app}/{batch.number}", 0
        result.write.parquet(str(folder))
        paths = sorted(folder.glob("*.parquet"))
        durable.sync_all(paths)
        files = tables.describe(self._store.root / handler.table, paths)
        if files:
            shape = _arrow_schema(result)
            self._store.commit(Commit(handler.table, app, version, files, tables.packed(shape)))

    def _of_manifest(self, spark: SparkSession, manifest: Manifest) -> DataFrame:
        rows = tables.read(spark, self._store, "messages", _first_us(manifest))
        return rows.where(F.col("batch") == manifest.batch.name)

    def _record(self, handler: Handler, batch: BatchId, attempt: int, error: str) -> None:
        row = {
            "handler": handler.name,
            "batch": batch.name,
            "attempt": attempt,
            "failed_at": datetime.fromtimestamp(self._clock.epoch_s(), UTC),
            "error": error,
        }
        folder = self._store.data_dir("handler_failures", stage_dir(self._store, batch).name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "failure.parquet"
        pq.write_table(pa.Table.from_pylist([row], schema=tables.HANDLER_FAILURES), path)
        files = tables.describe(self._store.root / "handler_failures", [path])
        app = f"{batch.app}/{handler.name}/{batch.number}/failure"
        columns = tables.packed(tables.HANDLER_FAILURES)
        self._store.commit(Commit("handler_failures", app, attempt, files, columns))

    def _path(self, handler: Handler) -> Path:
        return self._store.root / STATE_DIR / "handlers" / self._job / f"{handler.name}.json"

    def _save(self, handler: Handler, state: HandlerState) -> None:
        durable.write(self._path(handler), msgspec.json.encode(state))


def _first_us(manifest: Manifest) -> int | None:
    files = [file for commit in manifest.commits if commit.table == "messages" for file in commit.files]
    starts = [file.first_us for file in files]
    return None if None in starts or not starts else min(start for start in starts if start is not None)


def _wanted(patterns: Sequence[str]) -> Column:
    wanted = F.lit(False)
    for pattern in patterns:
        urn = F.col("urn")
        wanted = wanted | (urn.startswith(pattern[:-1]) if pattern.endswith("*") else urn == pattern)
    return wanted


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    shape: Any = to_arrow_schema(frame.schema, timezone="UTC")
    return shape
