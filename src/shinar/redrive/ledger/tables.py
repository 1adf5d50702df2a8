"""The ledger's tables: where they are, how they are made, and how an older layout becomes this one.

SQLite or PostgreSQL. Knows columns and statements, but no rule about jobs and lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shinar.brokers.registry import parse
from shinar.clock import Clock
from shinar.database.session import Database, check_options
from shinar.errors import ConfigError, StoreError
from shinar.redrive.letters.letter import whole
from shinar.redrive.model import endpoint

#: Rows per statement or page.
CHUNK: Final = 500
#: Layout of the tables; a newer one is refused, an older one is brought up to date.
VERSION: Final = "2"

_JOBS: Final = (
    "CREATE TABLE IF NOT EXISTS shinar_redrive_jobs (id {name} PRIMARY KEY, who {text} NOT NULL, "
    "created_ms {bigint} NOT NULL, source {text} NOT NULL, queue {text} NOT NULL, target {text} NOT NULL, "
    "spec {text} NOT NULL, state {name} NOT NULL, planned {bigint} NOT NULL, anchor {text} NOT NULL, "
    "marks {text} NOT NULL, runner {text} NOT NULL, seen_ms {bigint} NOT NULL, note {text} NOT NULL, "
    "source_key {text} NOT NULL DEFAULT '')"
)
_LINES: Final = (
    "CREATE TABLE IF NOT EXISTS shinar_redrive_lines (job {name} NOT NULL, digest {name} NOT NULL, "
    "n {bigint} NOT NULL, id {text} NOT NULL, position {text} NOT NULL, target {text} NOT NULL, "
    "state {name} NOT NULL, why {text} NOT NULL, bytes {bigint} NOT NULL, new_id {text} NOT NULL, "
    "generation {bigint} NOT NULL, copy {text} NOT NULL, at_ms {bigint} NOT NULL, "
    "PRIMARY KEY (job, digest, n))"
)
_INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_id ON shinar_redrive_lines (id)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_new ON shinar_redrive_lines (new_id)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_digest ON shinar_redrive_lines (digest)",
    # Layout 2: open lines of one name, and letters known by their position.
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_open ON shinar_redrive_lines (job, state, digest, n)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_position ON shinar_redrive_lines (position)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_copy ON shinar_redrive_lines (copy)",
)
_VERSION_TABLE: Final = "CREATE TABLE IF NOT EXISTS shinar_redrive_version (version {name} PRIMARY KEY)"
#: Two first users may both come here.
_VERSION_ROW: Final = (
    f"INSERT {{ignore}} INTO shinar_redrive_version (version) VALUES ('{VERSION}') {{no_conflict}}"
)
_SCHEMA: Final = (_JOBS, _LINES, *_INDEXES, _VERSION_TABLE, _VERSION_ROW)
_FROM_1: Final = (
    "ALTER TABLE shinar_redrive_jobs ADD COLUMN source_key {text} NOT NULL DEFAULT ''",
    "DROP INDEX IF EXISTS shinar_redrive_lines_state",
    *_INDEXES,
)


def default_path() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "shinar" / "redrive.db"


class Tables:
    """Opened on a file or a postgresql:// URL. One thread at a time."""

    def __init__(self, location: str | os.PathLike[str], clock: Clock) -> None:
        text = os.fspath(location) or str(default_path())
        if "://" not in text:
            path = Path(text).expanduser().absolute()
            _private_file(path)
            text = f"sqlite://{path}"
        url = parse(text)
        if url.scheme not in ("sqlite", "postgresql"):
            raise ConfigError("a ledger is a SQLite file or a postgresql:// URL", setting="ledger")
        check_options(url, frozenset())
        #: For people: the file, or the URL without its secrets.
        self.shown = url.path if url.scheme == "sqlite" else url.masked
        with self._naming():
            self._database = Database(url, clock)
            self.dialect = self._database.dialect
            schema = tuple(self.dialect.render(sql) for sql in _SCHEMA)
            self._database.ensure("shinar_redrive_version", schema, create=True)
        try:
            self._bring_up_to_date()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._naming(), self._database.statement() as cursor:
            cursor.execute(self.dialect.render(sql), tuple(values))
            return list(cursor.fetchall())

    def listed_rows(self, sql: str, before: Sequence[Any], values: Iterable[str]) -> Iterator[Any]:
        """Rows of a statement whose last parameter is a list, however long the list is."""
        for chunk in chunks(values):
            yield from self.rows(sql, (*before, self.dialect.listed(chunk)))

    def write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """All of them or none, durably."""
        with self.exclusive() as cursor:
            write_rows(cursor, self.dialect.render(sql), rows)

    def update(self, sql: str, values: Sequence[Any]) -> int:
        """How many rows it changed."""
        with self._naming(), self._database.transaction() as cursor:
            cursor.execute(self.dialect.render(sql), tuple(values))
            return int(cursor.rowcount)

    @contextmanager
    def exclusive(self, *, alone: bool = False) -> Iterator[Any]:
        """A transaction. `alone` keeps every other such transaction out until it ends, so that what was
        read in it is still true when it writes."""
        with self._naming(), self._database.transaction() as cursor:
            if alone and self.dialect.ddl_lock:
                cursor.execute(self.dialect.ddl_lock)
                cursor.fetchall()
            yield cursor

    def _bring_up_to_date(self) -> None:
        if self._version() == VERSION:
            return
        with self.exclusive(alone=True) as cursor:
            cursor.execute("SELECT version FROM shinar_redrive_version ORDER BY version DESC LIMIT 1")
            found = cursor.fetchone()[0]
            if found == VERSION:
                return  # another process was faster
            if found != "1":
                raise ConfigError(
                    f"{self.shown} has layout {found}, this shinar knows {VERSION}; use a newer shinar",
                    setting="ledger",
                )
            for sql in _FROM_1:
                cursor.execute(self.dialect.render(sql))
            cursor.execute("SELECT id, source FROM shinar_redrive_jobs")
            named = [(endpoint(parse(source)), id_) for id_, source in cursor.fetchall()]
            sql = self.dialect.render("UPDATE shinar_redrive_jobs SET source_key = %s WHERE id = %s")
            if named:
                cursor.executemany(sql, named)
            cursor.execute(f"UPDATE shinar_redrive_version SET version = '{VERSION}'")

    def _version(self) -> str:
        found = self.rows("SELECT version FROM shinar_redrive_version ORDER BY version DESC LIMIT 1")
        return str(found[0][0]) if found else ""

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """A damaged ledger is told by its name."""
        try:
            yield
        except StoreError as exc:
            raise StoreError(f"the ledger {self.shown} cannot be used: {exc}") from exc


def write_rows(cursor: Any, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Texts are made whole first: there can be half an emoji in somebody's error text."""
    if rows:
        cursor.executemany(
            sql, [tuple(whole(one) if isinstance(one, str) else one for one in row) for row in rows]
        )


def chunks(values: Iterable[str]) -> Iterator[list[str]]:
    listed = list(dict.fromkeys(values))
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]


def _private_file(path: Path) -> None:
    """Ids, queues and error texts are nobody else's business: 0600, in a folder of 0700 if we make it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be opened: {exc.strerror}; name another file", setting="ledger"
        ) from None
