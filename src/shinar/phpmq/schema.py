"""Tables of the embedded broker's data file, their version, and how a file is opened.

A message's key is its queue's number and its place in that queue in one integer, so one B-tree keeps
every queue in order, and a queue is a range of it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from shinar import durable_files
from shinar.errors import StoreError

#: fsync: a confirmed message survives a power cut. os: it survives a killed process only.
Durability = Literal["fsync", "os"]

#: Raised whenever the tables change; a file of another version is refused, not guessed at.
SCHEMA_VERSION: Final = 1
#: "SHNR": tells the file from any other SQLite file.
APPLICATION_ID: Final = 0x53484E52
#: Bits of a key that count within a queue; the rest (23 bits) is the queue's number.
SEQUENCE_BITS: Final = 40
#: Write-ahead log that may gather before it is copied into the data file.
CHECKPOINT_MIB: Final = 32
#: SQLite pages in a MiB.
_PAGES: Final = 256
#: SQLite's own page cache.
CACHE_KIB: Final = 32 * 1024
DATA_FILE: Final = "broker.sqlite"
LOCK_FILE: Final = "broker.lock"

_TABLES: Final = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
-- `mark` is the last key ever handed out: a message at or below it without a row in `delivery`
-- was delivered once. So a first delivery costs no write of its own, and still counts.
CREATE TABLE queue (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, next INTEGER NOT NULL, mark INTEGER NOT NULL,
  messages INTEGER NOT NULL, delayed INTEGER NOT NULL,
  published INTEGER NOT NULL, acked INTEGER NOT NULL, expired INTEGER NOT NULL, dead INTEGER NOT NULL);
CREATE TABLE message (
  key INTEGER PRIMARY KEY, body BLOB NOT NULL, extra BLOB,
  published_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL);
CREATE INDEX message_expiry ON message (expires_ms) WHERE expires_ms > 0;
CREATE TABLE delivery (key INTEGER PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE delayed (
  id INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL, queue INTEGER NOT NULL, body BLOB NOT NULL, extra BLOB,
  published_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, count INTEGER NOT NULL);
CREATE INDEX delayed_due ON delayed (due_ms, id);
CREATE INDEX delayed_queue ON delayed (queue, due_ms);
CREATE TABLE archive (
  position INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, key INTEGER NOT NULL,
  body BLOB NOT NULL, extra BLOB, published_ms INTEGER NOT NULL, settled_ms INTEGER NOT NULL);
"""


def key_of(queue: int, sequence: int) -> int:
    return queue << SEQUENCE_BITS | sequence


def queue_of(key: int) -> int:
    return key >> SEQUENCE_BITS


def lock(folder: Path) -> int:
    """Take the folder for this process; returns the descriptor to close when done."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreError(f"{folder} is in use by another broker; stop it or choose another --data") from None
    return descriptor


def open_file(path: Path, durability: Durability, checkpoint_mib: int = CHECKPOINT_MIB) -> sqlite3.Connection:
    """The data file, created if absent; autocommit, so that transactions are written out by the store."""
    if not path.exists():
        _create(path)
    elif path.stat().st_size == 0:
        raise StoreError(
            f"{path} is empty, so its messages are lost; restore a backup, or delete the file to start anew"
        )
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous(durability)}")
        db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        db.execute(f"PRAGMA wal_autocheckpoint={checkpoint_mib * _PAGES}")
        db.execute(f"PRAGMA journal_size_limit={checkpoint_mib * 4 * 2**20}")
        _check_kind(db, path)
    except sqlite3.Error as exc:
        db.close()
        raise StoreError(f"{path} cannot be opened: {exc}; run `shinar broker fsck` on it") from None
    except StoreError:
        db.close()
        raise
    return db


def synchronous(durability: Durability) -> str:
    return "FULL" if durability == "fsync" else "NORMAL"


def private_file(path: Path) -> None:
    """A new, empty file that only its owner can read. SQLite gives the files beside it the same mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _create(path: Path) -> None:
    """Under another name first: a data file that exists is complete, whenever the process may die."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        private_file(draft)
        with closing(sqlite3.connect(draft, isolation_level=None)) as db:
            db.executescript(f"BEGIN IMMEDIATE; {_TABLES}")
            db.execute("INSERT INTO setting VALUES ('store', ?)", (secrets.token_hex(8),))
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
        durable_files.sync(draft)
        draft.rename(path)
        durable_files.sync(path.parent)
    except (sqlite3.Error, OSError) as exc:
        draft.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be created: {exc}; check the disk and the folder's rights") from None


def _check_kind(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is some other SQLite file; choose another --data folder")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema version {version}, this Shinar reads {SCHEMA_VERSION}; "
            "drain it with the version that wrote it"
        )
