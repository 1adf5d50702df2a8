"""Marks in a table of SQLite, PostgreSQL or MySQL, alone or in one transaction with the effect.

`once` and `claim` write the mark and the caller's own rows together: after a crash either both are
there or neither, so a redelivered message is recognised and its effect happens once.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.database.columns import DEFAULT_PREFIX
from shinar.database.dialects import Dialect, table_name, unwrap
from shinar.database.session import CONNECT_OPTIONS, Database, check_options
from shinar.errors import UsageError
from shinar.idempotency.guard import TTL_S, each

_OWN: Final = frozenset({"prefix", "declare", "scope", "ttl_s"})
OPTIONS: Final = _OWN.union(*CONNECT_OPTIONS.values())

#: Longer ids are filed under their hash: the narrowest index of the three databases takes 255 bytes.
_LONGEST_ID_BYTES: Final = 200
#: Expired marks are removed this often, by whoever remembers something.
_SWEEP_EVERY_S: Final = 60.0
#: No database keeps these in a text.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
#: Ids per statement.
_CHUNK: Final = 500


def schema_sql(dialect: Dialect, prefix: str = DEFAULT_PREFIX) -> tuple[str, ...]:
    table = table_name(prefix, "idempotency")
    columns = "scope {name} NOT NULL, id {name} NOT NULL, ends_at {bigint} NOT NULL, PRIMARY KEY (scope, id)"
    return dialect.create(table, columns, "ends", "ends_at")


@dataclass(frozen=True, slots=True)
class _Statements:
    mark: str
    claim: str
    forget: str
    ends: str
    expire: str
    sweep: str
    seen: str

    @classmethod
    def of(cls, dialect: Dialect, table: str) -> _Statements:
        into = f"INTO {table} (scope, id, ends_at) VALUES (%s, %s, %s)"
        upsert = dialect.upsert.format(key="scope, id", column="ends_at")
        one = f"DELETE FROM {table} WHERE scope = %s AND id = %s"
        texts = {
            "mark": f"INSERT {into} {upsert}",
            "claim": f"INSERT {{ignore}} {into} {{no_conflict}}",
            "forget": one,
            "ends": f"SELECT ends_at FROM {table} WHERE scope = %s AND id = %s",
            "expire": f"{one} AND ends_at <= %s",
            "sweep": f"DELETE FROM {table} WHERE ends_at <= %s",
            "seen": f"SELECT id FROM {table} WHERE scope = %s AND ends_at > %s AND id {{in_list}}",
        }
        return cls(**{name: dialect.render(text) for name, text in texts.items()})


@dataclass(frozen=True, slots=True)
class Once:
    #: False: the effect has happened already, leave it.
    first: bool
    #: For the caller's own statements: they commit together with the mark.
    cursor: Any


class SqlStore:
    """Safe to share between threads: calls take turns on one connection."""

    def __init__(self, url: BrokerUrl, clock: Clock = SYSTEM) -> None:
        check_options(url, _OWN)
        prefix = url.option("prefix", DEFAULT_PREFIX)
        table = table_name(prefix, "idempotency")
        self._database = Database(url, clock)
        self._dialect = self._database.dialect
        self._scope = _check_scope(url.option("scope"))
        self._ttl_ms = round(url.number("ttl_s", TTL_S, least=0.001) * 1000)
        self._sql = _Statements.of(self._dialect, table)
        self._lock = threading.RLock()
        self._swept_s = clock.monotonic_s()
        self._database.ensure(table, schema_sql(self._dialect, prefix), create=url.flag("declare", True))

    def seen(self, ids: Iterable[str]) -> set[str]:
        keys = {_key(id_): id_ for id_ in each(ids)}
        names = list(keys)
        found: set[str] = set()
        with self._lock:
            now_ms = self._database.now_ms()
            for start in range(0, len(names), _CHUNK):
                chunk = self._dialect.listed(names[start : start + _CHUNK])
                with self._database.statement() as cursor:
                    cursor.execute(self._sql.seen, (self._scope, now_ms, chunk))
                    found.update(keys[_text(row[0])] for row in cursor.fetchall())
        return found

    def remember(self, ids: Iterable[str]) -> None:
        with self._lock:
            now_ms = self._database.now_ms()
            # In one order everywhere: two workers with the same ids must not wait for each other.
            keys = sorted({_key(id_) for id_ in each(ids)})
            rows = [(self._scope, key, now_ms + self._ttl_ms) for key in keys]
            if not rows:
                return
            with self._database.transaction() as cursor:
                cursor.executemany(self._sql.mark, rows)
            self._sweep(now_ms)

    def forget(self, ids: Iterable[str]) -> None:
        rows = [(self._scope, key) for key in sorted({_key(id_) for id_ in each(ids)})]
        if rows:
            with self._lock, self._database.transaction() as cursor:
                cursor.executemany(self._sql.forget, rows)

    @contextmanager
    def once(self, message_id: str) -> Iterator[Once]:
        """One transaction for the mark and the caller's effect:

            with store.once(message.meta.id) as once:
                if once.first:
                    once.cursor.execute("INSERT INTO payments ...")

        Committed at the end; an exception rolls both back. A second delivery at the same moment waits
        here for the first one's outcome.
        """
        with self._lock:
            now_ms = self._database.now_ms()
            with self._database.transaction() as cursor:
                first = _claim(cursor, self._sql, (self._scope, _key(message_id)), now_ms, self._ttl_ms)
                yield Once(first, cursor)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _sweep(self, now_ms: int) -> None:
        monotonic_s = self._database.clock.monotonic_s()
        if monotonic_s - self._swept_s >= _SWEEP_EVERY_S:
            self._swept_s = monotonic_s
            with self._database.statement() as cursor:
                cursor.execute(self._sql.sweep, (now_ms,))


def claim(
    connection: Any,
    message_id: str,
    *,
    scope: str = "",
    ttl_s: float = TTL_S,
    prefix: str = DEFAULT_PREFIX,
    clock: Clock = SYSTEM,
) -> bool:
    """Mark a message inside the caller's own transaction; False when it was marked before.

    `connection` is an SQLAlchemy Session or Connection, or one of sqlite3, psycopg or pymysql. The
    table must be there: open an `SqlStore` on the database once, or run `schema_sql`.
    """
    dialect, raw = unwrap(connection)
    statements = _Statements.of(dialect, table_name(prefix, "idempotency"))
    cursor = raw.cursor()
    try:
        key = (_check_scope(scope), _key(message_id))
        return _claim(cursor, statements, key, clock.epoch_ms(), round(ttl_s * 1000))
    finally:
        cursor.close()


def _claim(cursor: Any, sql: _Statements, key: tuple[str, str], now_ms: int, ttl_ms: int) -> bool:
    cursor.execute(sql.claim, (*key, now_ms + ttl_ms))
    if cursor.rowcount == 1:
        return True
    # There is a mark, and it counts unless it has expired. Read it before deleting: two deliveries
    # that share a lock on it and both wanted to delete would block each other.
    cursor.execute(sql.ends, key)
    row = cursor.fetchone()
    if row is not None and int(row[0]) > now_ms:
        return False
    cursor.execute(sql.expire, (*key, now_ms))
    cursor.execute(sql.claim, (*key, now_ms + ttl_ms))
    return bool(cursor.rowcount == 1)


def _key(message_id: str) -> str:
    """The id itself, marked `=`; or its hash, marked `#`, where a database could not hold the id."""
    if not message_id:
        raise UsageError("an empty id cannot be marked; see usable_id")
    raw = message_id.encode("utf-8", "surrogatepass")
    plain = len(raw) <= _LONGEST_ID_BYTES and "\0" not in message_id and not _SURROGATES.search(message_id)
    return f"={message_id}" if plain else f"#{hashlib.sha256(raw).hexdigest()}"


def _check_scope(scope: str) -> str:
    if len(scope.encode()) > _LONGEST_ID_BYTES or "\0" in scope:
        raise UsageError(f"a scope has at most {_LONGEST_ID_BYTES} bytes and no NUL")
    return scope


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
