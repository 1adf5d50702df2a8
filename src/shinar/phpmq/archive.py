"""Acknowledged messages as a log that can be read again: by position, from any process on the host.

`shinar broker serve --archive` keeps them, in the same file and the same commit as the ack. Positions
only grow and are never given twice, so a range of them is the same rows whenever it is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from shinar.errors import StoreError
from shinar.phpmq.protocol.extension import unpack_extra
from shinar.phpmq.schema import APPLICATION_ID, DATA_FILE, SCHEMA_VERSION

#: Rows read in one transaction: a long one would keep the server from reusing its write-ahead log.
PAGE_ROWS: Final = 1000


class Archived(msgspec.Struct, frozen=True):
    position: int
    queue: str
    body: bytes
    headers: dict[str, str]
    key: bytes | None
    published_ms: int
    #: When it was acknowledged or moved.
    settled_ms: int


def bounds(folder: Path) -> tuple[int, int]:
    """First position still kept and the one after the last: read(start, end) takes these."""
    with closing(_open(folder)) as db:
        (first,) = db.execute("SELECT min(position) FROM archive").fetchone()
        found = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'archive'").fetchone()
    end = found[0] + 1 if found else 1
    return (end if first is None else first), end


def read(folder: Path, start: int, end: int, queues: Collection[str] = ()) -> Iterator[Archived]:
    """The messages at start <= position < end, in order; those of some queues only, if any is named."""
    with closing(_open(folder)) as db:
        position = start
        while position < end:
            rows = db.execute(
                "SELECT position, queue, body, extra, published_ms, settled_ms FROM archive "
                "WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
                (position, end, PAGE_ROWS),
            ).fetchall()
            if not rows:
                return
            for number, name, body, packed, published_ms, settled_ms in rows:
                if not queues or name in queues:
                    extra = unpack_extra(packed)
                    headers, key = (extra.headers, extra.key) if extra else ({}, None)
                    yield Archived(number, name, body, headers, key, published_ms, settled_ms)
            position = rows[-1][0] + 1


def _open(folder: Path) -> sqlite3.Connection:
    path = Path(folder) / DATA_FILE
    if not path.exists():
        raise StoreError(f"{folder} does not contain a broker's data file; name the folder given to --data")
    try:
        db = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, isolation_level=None)
        kind = (
            db.execute("PRAGMA application_id").fetchone()[0],
            db.execute("PRAGMA user_version").fetchone()[0],
        )
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be read: {exc}") from None
    if kind != (APPLICATION_ID, SCHEMA_VERSION):
        db.close()
        raise StoreError(f"{path} is not a broker's data file of this version")
    return db
