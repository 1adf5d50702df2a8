"""The durable store: messages, delays, delivery counts and queue figures in one SQLite file.

It writes what it is told inside one open transaction and makes it durable on `commit`; the caller
groups as many requests into a commit as came in together. A damaged page is reported with the queue it
belongs to. Must not know a socket, a consumer or a lease.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from shinar.errors import StoreError
from shinar.phpmq import schema
from shinar.phpmq.schema import DATA_FILE, Durability, key_of, queue_of

#: A message as it is kept in memory, written to the store and put on the wire: key, body, extra,
#: published_ms, expires_ms and, if it was delivered before, how often.
Entry = tuple[Any, ...]
#: A message that is due later: due_ms, queue, body, extra (packed), published_ms, expires_ms, count.
DelayedRow = tuple[int, int, bytes, bytes | None, int, int, int]
#: Rows one maintenance step touches, so that no step delays the traffic.
STEP_ROWS: Final = 5_000


class QueueRow(msgspec.Struct):
    """A queue's figures. Every commit writes those that changed, so a restart need not count messages."""

    id: int
    name: str
    next: int
    mark: int
    messages: int = 0
    delayed: int = 0
    published: int = 0
    acked: int = 0
    expired: int = 0
    dead: int = 0

    @property
    def first(self) -> int:
        return key_of(self.id, 0)

    @property
    def last(self) -> int:
        """Greatest key given out so far."""
        return self.next - 1


class Later(msgspec.Struct, frozen=True):
    """A message that becomes visible at `due_ms`."""

    id: int
    due_ms: int
    queue: int
    body: bytes
    extra: bytes | None
    published_ms: int
    expires_ms: int
    count: int


class DamagedPage(StoreError):
    """Part of one queue cannot be read or changed; nothing of the failed step was done."""

    def __init__(self, text: str, queue: int) -> None:
        super().__init__(text)
        #: The queue's number.
        self.queue = queue


class BrokerStore:
    def __init__(
        self, folder: Path, *, durability: Durability = "fsync", archive: bool = False,
        checkpoint_mib: int = schema.CHECKPOINT_MIB,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.path = folder / DATA_FILE
        self.durability = durability
        self.archiving = archive
        self._checkpoint_mib = checkpoint_mib
        self._lock = schema.lock(folder)
        try:
            self._db = schema.open_file(self.path, durability, checkpoint_mib)
        except StoreError:
            os.close(self._lock)
            raise
        self._open = False
        (self.id,) = self._db.execute("SELECT value FROM setting WHERE name = 'store'").fetchone()
        #: False as long as no message was delivered twice: then a delete need not look for counts.
        (self._counted,) = self._db.execute("SELECT EXISTS (SELECT 1 FROM delivery)").fetchone()

    # -- transactions

    def commit(self, queues: Sequence[QueueRow] = (), counts: Sequence[tuple[int, int]] = ()) -> None:
        """Make everything since the last commit durable, with these figures and delivery counts
        (key, count) beside it; or raise StoreError with nothing of it done."""
        # Delivery marks alone need not wait for the disk: they are a count, not a promise.
        relaxed = not self._open and self.durability == "fsync"
        if not self._open and not queues and not counts:
            return
        with _mapped("commit"):
            if relaxed:
                self._db.execute("PRAGMA synchronous=NORMAL")
            db = self._begin()
            if counts:
                self.add_counts(counts)
            if queues:
                db.executemany(_UPDATE_QUEUE, [_values(row) for row in queues])
            db.execute("COMMIT")
            self._open = False
            if relaxed:
                db.execute("PRAGMA synchronous=FULL")

    def rollback(self) -> None:
        """Undo what is not committed; a file that refuses even that is opened afresh."""
        self._open = False
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._db.execute(f"PRAGMA synchronous={schema.synchronous(self.durability)}")
        except sqlite3.Error:
            self._db.close()
            self._db = schema.open_file(self.path, self.durability, self._checkpoint_mib)

    def close(self) -> None:
        self.rollback()
        with _mapped("close"):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        os.close(self._lock)

    def _begin(self) -> sqlite3.Connection:
        if not self._open:
            with _mapped("begin"):
                self._db.execute("BEGIN IMMEDIATE")
            self._open = True
        return self._db

    @contextmanager
    def _savepoint(self, what: str, queue: int) -> Iterator[sqlite3.Connection]:
        """Several statements on one queue: all of them, or none when a damaged page is among them."""
        db = self._begin()
        db.execute("SAVEPOINT step")
        try:
            with _mapped(what, queue):
                yield db
        except DamagedPage:
            db.execute("ROLLBACK TO step")
            raise
        finally:
            if db.in_transaction:  # some errors make SQLite roll back everything by itself
                db.execute("RELEASE step")

    # -- queues

    def queues(self) -> list[QueueRow]:
        with _mapped("read queues"):
            rows = self._db.execute(f"SELECT {_QUEUE_COLUMNS} FROM queue ORDER BY id").fetchall()
        return [QueueRow(*row) for row in rows]

    def create_queue(self, name: str) -> QueueRow:
        db = self._begin()
        with _mapped("create queue"):
            (number,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM queue").fetchone()
            row = QueueRow(number, name, key_of(number, 1), key_of(number, 0))
            db.execute(f"INSERT INTO queue ({_QUEUE_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)", _values(row))
        return row

    def drop_queue(self, number: int) -> None:
        """Forget a queue that never had a message."""
        with _mapped("drop queue"):
            self._begin().execute("DELETE FROM queue WHERE id = ?", (number,))

    # -- messages

    def insert(self, rows: Sequence[Entry]) -> None:
        """Rows of key, body, extra (packed), published_ms, expires_ms."""
        with self._savepoint("write messages", queue_of(rows[0][0])) as db:
            db.executemany("INSERT INTO message VALUES (?,?,?,?,?)", rows)

    def load(self, after: int, row: QueueRow, limit: int, max_bytes: int) -> list[Entry]:
        """The messages of a queue behind key `after`, in order: at least one, if there is one."""
        found: list[Entry] = []
        size = 0
        with _mapped("read messages", row.id):
            cursor = self._db.execute(
                "SELECT m.key, body, extra, published_ms, expires_ms, d.count FROM message m "
                "LEFT JOIN delivery d ON d.key = m.key WHERE m.key > ? AND m.key < ? ORDER BY m.key LIMIT ?",
                (after, row.next, limit),
            )
            for fields in cursor:
                found.append(_entry(fields, row.mark))
                size += len(fields[1])
                if size >= max_bytes:
                    break
            cursor.close()
        return found

    def keys(self, after: int, last: int, limit: int) -> list[int]:
        """Keys behind `after` up to and with `last`."""
        with _mapped("read keys", queue_of(last)):
            rows = self._db.execute(
                "SELECT key FROM message WHERE key > ? AND key <= ? ORDER BY key LIMIT ?",
                (after, last, limit),
            )
            return [key for (key,) in rows]

    def get(self, key: int, count: int) -> Entry | None:
        """One message, delivered `count` times before; None when it is gone."""
        with _mapped("read message", queue_of(key)):
            fields = self._db.execute("SELECT * FROM message WHERE key = ?", (key,)).fetchone()
        if fields is None:
            return None
        entry: Entry = _entry((*fields, count), key)
        return entry

    def get_many(self, counts: dict[int, int]) -> list[Entry]:
        """The messages of one queue that are still there, in order: key -> deliveries before."""
        found: list[Entry] = []
        with _mapped("read messages", queue_of(next(iter(counts)))):
            for first, last in _runs(list(counts)):
                rows = self._db.execute("SELECT * FROM message WHERE key BETWEEN ? AND ?", (first, last))
                found += [_entry((*fields, counts[fields[0]]), last) for fields in rows]
        return found

    def delete(self, keys: Sequence[int]) -> None:
        """Forget messages of one queue, and how often they were delivered."""
        runs = _runs(keys)
        with self._savepoint("delete messages", queue_of(keys[0])) as db:
            db.executemany("DELETE FROM message WHERE key BETWEEN ? AND ?", runs)
            if self._counted:
                db.executemany("DELETE FROM delivery WHERE key BETWEEN ? AND ?", runs)

    def add_counts(self, counts: Sequence[tuple[int, int]]) -> None:
        """How often messages (by key) have been delivered so far."""
        self._counted = True
        with _mapped("write counts"):
            self._begin().executemany("INSERT OR REPLACE INTO delivery VALUES (?,?)", counts)

    def to_archive(self, keys: Sequence[int], queue: str, settled_ms: int) -> None:
        """Keep a copy of messages that are about to be deleted."""
        with self._savepoint("archive messages", queue_of(keys[0])) as db:
            db.executemany(
                "INSERT INTO archive (queue, key, body, extra, published_ms, settled_ms) "
                "SELECT ?1, key, body, extra, published_ms, ?2 FROM message WHERE key BETWEEN ?3 AND ?4",
                [(queue, settled_ms, first, last) for first, last in _runs(keys)],
            )

    def oldest_ms(self, row: QueueRow) -> int:
        if not row.messages:
            return 0
        with _mapped("read oldest", row.id):
            found = self._db.execute(
                "SELECT published_ms FROM message WHERE key > ? AND key < ? ORDER BY key LIMIT 1",
                (row.first, row.next),
            ).fetchone()
        return found[0] if found else 0

    def expired(self, now_ms: int, after: tuple[int, int], limit: int) -> list[tuple[int, int]]:
        """Expiry time and key of messages whose TTL ended, in this order, behind a pair of the two."""
        with _mapped("read expired"):
            return self._db.execute(
                "SELECT expires_ms, key FROM message WHERE expires_ms > 0 AND expires_ms <= ?1 "
                "AND expires_ms >= ?2 AND (expires_ms > ?2 OR key > ?3) ORDER BY expires_ms, key LIMIT ?4",
                (now_ms, *after, limit),
            ).fetchall()

    def next_expiry_ms(self) -> int | None:
        with _mapped("read expiry"):
            (found,) = self._db.execute("SELECT min(expires_ms) FROM message WHERE expires_ms > 0").fetchone()
        return found if isinstance(found, int) else None

    # -- delays

    def delay(self, rows: Sequence[DelayedRow]) -> None:
        with _mapped("write delays"):
            self._begin().executemany(
                "INSERT INTO delayed (due_ms, queue, body, extra, published_ms, expires_ms, count) "
                "VALUES (?,?,?,?,?,?,?)",
                rows,
            )

    def due(self, now_ms: int, limit: int) -> list[Later]:
        with _mapped("read delays"):
            rows = self._db.execute(
                "SELECT id, due_ms, queue, body, extra, published_ms, expires_ms, count FROM delayed "
                "WHERE due_ms <= ? ORDER BY due_ms, id LIMIT ?",
                (now_ms, limit),
            ).fetchall()
        return [Later(*row) for row in rows]

    def delete_delayed(self, ids: Sequence[int]) -> None:
        with _mapped("delete delays"):
            self._begin().executemany("DELETE FROM delayed WHERE id = ?", [(number,) for number in ids])

    def flush_delayed(self, queue: int, limit: int) -> int:
        with _mapped("delete delays"):
            done = self._begin().execute(
                "DELETE FROM delayed WHERE id IN (SELECT id FROM delayed WHERE queue = ? LIMIT ?)",
                (queue, limit),
            )
        return done.rowcount

    def next_due_ms(self) -> int | None:
        with _mapped("read delays"):
            (found,) = self._db.execute("SELECT min(due_ms) FROM delayed").fetchone()
        return found if isinstance(found, int) else None

    # -- looking after itself

    def size_bytes(self) -> int:
        """Data file and write-ahead log together."""
        wal = self.path.with_name(self.path.name + "-wal")
        return sum(path.stat().st_size for path in (self.path, wal) if path.exists())

    def free_bytes(self) -> int:
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize

    def prune_archive(self, before_ms: int) -> int:
        """Forget one step's worth of archived messages settled before a time."""
        with _mapped("prune archive"):
            done = self._begin().execute(
                "DELETE FROM archive WHERE settled_ms < ?2 AND position IN "
                "(SELECT position FROM archive ORDER BY position LIMIT ?1)",
                (STEP_ROWS, before_ms),
            )
        return done.rowcount


_QUEUE_COLUMNS: Final = "id, name, next, mark, messages, delayed, published, acked, expired, dead"
_UPDATE_QUEUE: Final = (
    "UPDATE queue SET name=?2, next=?3, mark=?4, messages=?5, delayed=?6, published=?7, acked=?8, "
    "expired=?9, dead=?10 WHERE id=?1"
)


def _values(row: QueueRow) -> tuple[Any, ...]:
    return msgspec.structs.astuple(row)


def _entry(fields: tuple[Any, ...], mark: int) -> Entry:
    """A message with its count. A 0 that was recorded is kept: the next hand-out must replace that record."""
    key, body, extra, published_ms, expires_ms, count = fields
    raw = None if extra is None else msgspec.Raw(extra)
    if count is None and key > mark:
        return (key, body, raw, published_ms, expires_ms)
    return (key, body, raw, published_ms, expires_ms, 1 if count is None else count)


def _runs(keys: Sequence[int]) -> list[tuple[int, int]]:
    """Keys as ranges without gaps: a batch settled together is usually one range."""
    ordered = sorted(keys)
    if ordered[-1] - ordered[0] == len(ordered) - 1:
        return [(ordered[0], ordered[-1])]
    runs: list[tuple[int, int]] = []
    first = last = ordered[0]
    for key in ordered[1:]:
        if key != last + 1:
            runs.append((first, last))
            first = key
        last = key
    runs.append((first, last))
    return runs


@contextmanager
def _mapped(what: str, queue: int = 0) -> Iterator[None]:
    """SQLite's errors as ours; a damaged page among the messages of one queue as such."""
    try:
        yield
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorname", "") or type(exc).__name__
        text = f"cannot {what}: {exc} ({code}); check the disk, then run `shinar broker fsck`"
        if queue and code.startswith("SQLITE_CORRUPT"):
            raise DamagedPage(text, queue) from exc
        raise StoreError(text) from exc


__all__ = ["BrokerStore", "DamagedPage", "DelayedRow", "Durability", "Entry", "Later", "QueueRow", "queue_of"]
