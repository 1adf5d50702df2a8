"""Backup and check of a data folder, beside a running server or without one.

A backup is a consistent snapshot taken while traffic goes on. A check reads only; repairing needs the
folder for itself and mends what can be derived from the messages: figures and orphans, never a body.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from shinar import durable_files as durable
from shinar.errors import StoreError
from shinar.phpmq import schema
from shinar.phpmq.schema import DATA_FILE, SEQUENCE_BITS

#: Check -> (what it finds, how it is mended or None)
_CHECKS: Final[dict[str, tuple[str, str | None]]] = {
    "queue figures": (
        "SELECT q.name || ': ' || q.messages || ' recorded, ' || count(m.key) || ' there' FROM queue q "
        f"LEFT JOIN message m ON m.key > q.id << {SEQUENCE_BITS} AND m.key < (q.id + 1) << {SEQUENCE_BITS} "
        "GROUP BY q.id HAVING count(m.key) <> q.messages",
        "UPDATE queue SET messages = (SELECT count(*) FROM message m "
        f"WHERE m.key > id << {SEQUENCE_BITS} AND m.key < (id + 1) << {SEQUENCE_BITS})",
    ),
    "delayed figures": (
        "SELECT name || ': ' || delayed || ' recorded' FROM queue "
        "WHERE delayed <> (SELECT count(*) FROM delayed d WHERE d.queue = queue.id)",
        "UPDATE queue SET delayed = (SELECT count(*) FROM delayed d WHERE d.queue = queue.id)",
    ),
    "keys beyond their queue's end": (
        "SELECT q.name FROM queue q WHERE EXISTS "
        f"(SELECT 1 FROM message m WHERE m.key >= q.next AND m.key < (q.id + 1) << {SEQUENCE_BITS})",
        "UPDATE queue SET next = max(next, 1 + coalesce((SELECT max(m.key) FROM message m "
        f"WHERE m.key > id << {SEQUENCE_BITS} AND m.key < (id + 1) << {SEQUENCE_BITS}), 0))",
    ),
    "messages of no queue": (
        "SELECT printf('key %d', key) FROM message "
        f"WHERE key >> {SEQUENCE_BITS} NOT IN (SELECT id FROM queue)",
        None,
    ),
    "delayed messages of no queue": (
        "SELECT printf('id %d', id) FROM delayed WHERE queue NOT IN (SELECT id FROM queue)",
        None,
    ),
    "delivery counts of no message": (
        "SELECT printf('key %d', key) FROM delivery WHERE key NOT IN (SELECT key FROM message)",
        "DELETE FROM delivery WHERE key NOT IN (SELECT key FROM message)",
    ),
}


def backup(folder: Path, target: Path) -> int:
    """A consistent copy of a folder's data file, finished and on disk when this returns; its size.

    Only its owner can read it. An existing file, or a link, is never written to.
    """
    if os.path.lexists(target):
        raise StoreError(f"{target} exists; name a new file, a backup never overwrites")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with closing(_open(folder)) as source:
            schema.private_file(draft)
            with closing(sqlite3.connect(draft)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
        durable.sync(draft)
        _name(draft, target)
        durable.sync(target.parent)
        return target.stat().st_size
    except (sqlite3.Error, OSError) as exc:
        raise StoreError(f"backup to {target} failed: {exc}") from None
    finally:
        draft.unlink(missing_ok=True)


def _name(draft: Path, target: Path) -> None:
    """Give the finished copy its name; a link, unlike a rename, fails if the target was made meanwhile."""
    try:
        os.link(draft, target)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(draft, target)  # a file system without links


def check(folder: Path) -> list[str]:
    """What is wrong with a folder's data file; [] when nothing is."""
    with closing(_open(folder)) as db:
        try:
            # One read transaction: a running server must not change the figures between two looks.
            db.execute("BEGIN")
            return list(_findings(db))
        except sqlite3.Error as exc:
            return [f"cannot be read: {exc}"]


def repair(folder: Path, *, compact: bool = False) -> list[str]:
    """Mend what can be mended and report it; the folder must not be in use."""
    descriptor = schema.lock(folder)
    try:
        with closing(schema.open_file(folder / DATA_FILE, "fsync")) as db:
            found = list(_findings(db))
            for _, mend in _CHECKS.values():
                if mend is not None:
                    db.execute(mend)
            if compact:
                db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as exc:
        raise StoreError(f"repair failed: {exc}; restore a backup into an empty folder") from None
    finally:
        os.close(descriptor)
    return found


def _findings(db: sqlite3.Connection) -> Iterator[str]:
    for (line,) in db.execute("PRAGMA integrity_check(20)"):
        if line != "ok":
            yield f"file: {line}"
    for what, (query, _) in _CHECKS.items():
        for (found,) in db.execute(query).fetchmany(20):
            yield f"{what}: {found}"


def _open(folder: Path) -> sqlite3.Connection:
    path = folder / DATA_FILE
    if not path.exists():
        raise StoreError(f"{folder} does not contain a broker's data file; name the folder given to --data")
    try:
        return sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be opened: {exc}") from None
