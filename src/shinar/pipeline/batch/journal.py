"""A batch that is decided but maybe not yet committed everywhere: the write-ahead record of the job.

Everything a batch adds to every table is written down, durably and once, before the first table changes.
After a crash the record is carried out again and nothing is decided twice. Must not know Spark.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from shinar import durable_files as durable
from shinar.errors import StoreError
from shinar.pipeline.lake.store import STATE_DIR, Commit, TableStore, remove_tree
from shinar.pipeline.typed.types import PayloadColumns

#: Finished records kept per run: Spark asks again for the last batch only.
KEPT: Final = 20


class BatchId(msgspec.Struct, frozen=True):
    job: str
    #: New with every new checkpoint, so that a batch number is never mistaken for an older one.
    epoch: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.job}-{self.epoch[:8]}-{self.number:08d}"

    @property
    def app(self) -> str:
        return f"shinar/{self.job}/{self.epoch}"


class Balance(msgspec.Struct, frozen=True):
    """What a batch received from one queue, and where it went."""

    queue: str
    received: int
    messages: int
    quarantine: int
    duplicates: int
    #: Beside the sum: a dead letter is a message, a duplicate or a quarantined record as well.
    dead_letters: int = 0
    #: Beside the sum: rows of messages and quarantine that may repeat an earlier row, because their bytes are
    #: equal and the broker cannot tell which is which.
    possible_redeliveries: int = 0

    @property
    def adds_up(self) -> bool:
        return self.received == self.messages + self.quarantine + self.duplicates


class Manifest(msgspec.Struct, frozen=True):
    batch: BatchId
    commits: tuple[Commit, ...]
    balances: tuple[Balance, ...]
    #: Typed table -> its column map after this batch.
    typed: dict[str, msgspec.Raw] = {}
    took_ms: int = 0
    #: Hash of the source offsets the batch was read from; "" for a batch that came from no stream.
    offsets: str = ""

    def rows(self, table: str) -> int:
        return sum(commit.rows for commit in self.commits if commit.table == table)

    @property
    def received(self) -> int:
        return sum(balance.received for balance in self.balances)


class Journal:
    """The manifests of one job run, one file a batch: `.json` while open, `.done` when carried out."""

    def __init__(self, store: TableStore, job: str, epoch: str) -> None:
        self._store = store
        # An epoch is any text (Spark's query id); a folder name must not escape the lake.
        self._dir = store.root / STATE_DIR / "jobs" / job / sha256(epoch.encode()).hexdigest()[:16]

    def open_batch(self, number: int) -> Manifest | None:
        return self._load(self._path(number, "json"))

    def done_batch(self, number: int) -> Manifest | None:
        return self._load(self._path(number, "done"))

    def known_offsets(self, number: int) -> str | None:
        """The offsets a decided batch was read from; None when there is no record of it."""
        manifest = self.done_batch(number) or self.open_batch(number)
        return None if manifest is None else manifest.offsets

    def record(self, manifest: Manifest) -> Manifest:
        """Write it down; if another driver was first, its record is the one that counts."""
        # Before the manifest: if we die after it, no other job gives a column of ours another type.
        keep_columns(self._store, manifest)
        path = self._path(manifest.batch.number, "json")
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        durable.write(draft, msgspec.json.encode(manifest))
        try:
            os.link(draft, path)
        except FileExistsError:
            winner = self._load(path)
            if winner is None:
                raise StoreError(f"{path} vanished while it was read; run the job again") from None
            return winner
        finally:
            os.unlink(draft)
        durable.sync(path.parent)
        return manifest

    def carry_out(self, manifest: Manifest) -> None:
        """Commit every table. Safe to repeat at any point: a table that has the batch is skipped."""
        keep_columns(self._store, manifest)
        for change in manifest.commits:
            self._store.commit(change)
        number = manifest.batch.number
        os.replace(self._path(number, "json"), self._path(number, "done"))
        durable.sync(self._dir)
        for old in sorted(self._dir.glob("*.done"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def _path(self, number: int, suffix: str) -> Path:
        return self._dir / f"{number:08d}.{suffix}"

    @staticmethod
    def _load(path: Path) -> Manifest | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            return None


@contextmanager
def alone(store: TableStore) -> Iterator[None]:
    """One batch at a time decides on columns and commits, whatever jobs share the lake. Not to be nested."""
    path = store.root / STATE_DIR / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep_columns(store: TableStore, manifest: Manifest) -> None:
    """Add a batch's typed columns to those on disk; one that is there keeps its type and its position."""
    for name, packed in manifest.typed.items():
        path, mine = typed_path(store, name), msgspec.json.decode(packed, type=PayloadColumns)
        have = (
            msgspec.json.decode(path.read_bytes(), type=PayloadColumns) if path.exists() else PayloadColumns()
        )
        paths = {column.path for column in have.columns}
        new = tuple(column for column in mine.columns if column.path not in paths)
        if new or not path.exists():
            durable.write(path, msgspec.json.encode(PayloadColumns(have.columns + new)))


def typed_path(store: TableStore, table: str) -> Path:
    return store.root / STATE_DIR / "typed" / f"{table.replace('/', '.')}.json"


def stage_dir(store: TableStore, batch: BatchId) -> Path:
    return store.root / STATE_DIR / "stage" / f"{batch.name}-{os.urandom(4).hex()}"


def sweep_stages(store: TableStore, job: str) -> None:
    """Remove what killed attempts of this job left behind; called before its first batch."""
    for path in (store.root / STATE_DIR / "stage").glob(f"{job}-*"):
        remove_tree(path)


def unfinished(store: TableStore, job: str = "*") -> list[tuple[Journal, Manifest]]:
    """Batches of any run of this job (or of all) that were decided and not committed everywhere."""
    found = []
    for path in sorted((store.root / STATE_DIR / "jobs").glob(f"{job}/*/*.json")):
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except FileNotFoundError:
            continue  # Its job has just finished it.
        found.append((Journal(store, manifest.batch.job, manifest.batch.epoch), manifest))
    return found
