"""What differs between SQLite, PostgreSQL and MySQL/MariaDB, as data. Opens nothing, runs nothing.

Statements elsewhere are written once, with `%s` marks and the names of this table in braces;
`render` turns them into a dialect's own text. Knows no queue and no message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from shinar.errors import ConfigError, UsageError

#: What a driver's error means to us; `sql_session` turns it into the error tree.
Fault = Literal["away", "full", "denied", "missing", "large", "damaged", "refused"]

#: A table prefix, with a schema before it where the database has schemas.
_PREFIX: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    name: str
    #: Driver, and the extra that installs it.
    driver: str
    extra: str = ""
    mark: str = "%s"
    #: Starts a transaction that is going to write.
    begin: str = "BEGIN"
    #: Column types and clauses for `render`.
    words: Mapping[str, str]
    #: One writer at a time, whatever the rows: look before taking, or an empty queue costs the write lock.
    one_writer: bool = False
    #: One round trip takes and returns rows; otherwise select for update, then update.
    returning: bool = False
    #: An index comes with its table: there is no CREATE INDEX IF NOT EXISTS that a race could not break.
    inline_index: bool = False
    #: An insert tells the new id by RETURNING; otherwise the cursor knows it.
    insert_returns: bool = False
    #: Ends an insert that may meet a row of the same {key}, whose {column} it then overwrites.
    upsert: str = "ON CONFLICT ({key}) DO UPDATE SET {column} = excluded.{column}"
    #: Asks how long a statement may be; "" where a body is no problem.
    longest_statement: str = ""
    #: How a column is compared with a list, and how that list is handed over as one parameter.
    in_list: str
    listed: Callable[[Sequence[int] | Sequence[str]], Any]
    #: Milliseconds since 1970 by the database's own clock; "" when it is our own machine's.
    now_ms: str = ""
    #: Asks for the server's version, where it decides what the server can do.
    version: str = ""
    #: Wakes whoever listens on a channel, once the transaction commits; "" when there is no such thing.
    notify: str = ""
    listen: str = ""
    #: Keeps two first users from creating a table at the same time; "" when the DDL is safe anyway.
    ddl_lock: str = ""
    #: Statements around one that need not survive a power cut; empty where that would not be faster.
    relaxed: tuple[str, str] = ("", "")
    #: The driver's error code, or its class, as text -> what it means.
    faults: Mapping[str, Fault] = field(default_factory=dict)
    #: Where the code alone does not say: part of the driver's text -> what it means.
    hints: Mapping[str, Fault] = field(default_factory=dict)
    #: Longest pause between two looks at an empty queue.
    poll_s: float = 0.25

    def render(self, text: str, **names: str) -> str:
        return text.format(**self.words, in_list=self.in_list, **names).replace("%s", self.mark)

    def create(self, table: str, columns: str, index: str, indexed: str) -> tuple[str, ...]:
        """The statements for a table with one index; `columns` in the words of `render`."""
        name = f"{table.rpartition('.')[2]}_{index}"
        if self.inline_index:
            texts = [f"CREATE TABLE IF NOT EXISTS {table} ({columns}, KEY {name} ({indexed})){{tail}}"]
        else:
            texts = [
                f"CREATE TABLE IF NOT EXISTS {table} ({columns}){{tail}}",
                f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({indexed})",
            ]
        return tuple(self.render(text) for text in texts)


SQLITE: Final = Dialect(
    name="sqlite",
    driver="sqlite3",
    mark="?",
    begin="BEGIN IMMEDIATE",
    words={
        # AUTOINCREMENT: an id is never used again, so a late settlement cannot meet a stranger.
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "name": "TEXT",
        "text": "TEXT",
        "blob": "BLOB",
        "bigint": "INTEGER",
        "tail": "",
        "or_replace": "",
        "if_absent": "IF NOT EXISTS ",
        "lock": "",
        "skip": "",
        "relax": "",
        "ignore": "OR IGNORE",
        "no_conflict": "",
    },
    one_writer=True,
    returning=True,
    in_list="IN (SELECT value FROM json_each(%s))",
    listed=lambda values: json.dumps(list(values)),
    relaxed=("PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"),
    faults={
        "SQLITE_BUSY": "away",
        "SQLITE_LOCKED": "away",
        "SQLITE_IOERR": "away",
        "SQLITE_FULL": "full",
        "SQLITE_NOMEM": "full",
        "SQLITE_READONLY": "denied",
        "SQLITE_PERM": "denied",
        "SQLITE_AUTH": "denied",
        "SQLITE_CANTOPEN": "denied",
        "SQLITE_TOOBIG": "large",
        "SQLITE_CORRUPT": "damaged",
        "SQLITE_NOTADB": "damaged",
    },
    hints={"no such table": "missing"},
    poll_s=0.05,
)

POSTGRESQL: Final = Dialect(
    name="postgresql",
    driver="psycopg",
    extra="postgresql",
    words={
        "serial": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "name": "TEXT",
        "text": "TEXT",
        "blob": "BYTEA",
        "bigint": "BIGINT",
        # A queue is all churn: vacuum by a small share of dead rows, not by a fifth of the table.
        "tail": " WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)",
        "or_replace": "OR REPLACE ",
        "if_absent": "",
        "lock": "FOR UPDATE",
        "skip": "FOR UPDATE SKIP LOCKED",
        # For this transaction only: a reservation that a crash of the server forgets is a redelivery.
        "relax": " AND (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL",
        "ignore": "",
        "no_conflict": "ON CONFLICT DO NOTHING",
    },
    returning=True,
    insert_returns=True,
    in_list="= ANY(%s)",
    listed=list,
    now_ms="SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    notify="SELECT pg_notify(%s, '')",
    listen="LISTEN {channel}",
    ddl_lock="SELECT pg_advisory_xact_lock(7237411934)",
    faults={
        "08": "away",
        "40": "away",
        "55P03": "away",
        "57": "away",
        "53300": "away",
        "53": "full",
        "28": "denied",
        "42501": "denied",
        "3D000": "missing",
        "3F000": "missing",
        "42P01": "missing",
        "54": "large",
        "XX": "damaged",
        "22": "refused",
    },
    hints={
        "authentication failed": "denied",
        "no pg_hba.conf entry": "denied",
        "does not exist": "missing",
        "no password supplied": "denied",
    },
)

MYSQL: Final = Dialect(
    name="mysql",
    driver="pymysql",
    extra="mysql",
    words={
        "serial": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        # Bytes, because every text collation folds case or trailing spaces: two names, one queue.
        "name": "VARBINARY(255)",
        "text": "LONGTEXT CHARACTER SET utf8mb4",
        "blob": "LONGBLOB",
        "bigint": "BIGINT",
        "tail": " ENGINE=InnoDB",
        "or_replace": "OR REPLACE ",
        "if_absent": "",
        "lock": "FOR UPDATE",
        "skip": "FOR UPDATE SKIP LOCKED",
        "relax": "",
        "ignore": "IGNORE",
        "no_conflict": "",
    },
    inline_index=True,
    upsert="ON DUPLICATE KEY UPDATE {column} = VALUES({column})",
    longest_statement="SELECT @@max_allowed_packet",
    in_list="IN %s",
    listed=list,
    version="SELECT VERSION()",
    now_ms="SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
    faults={
        "1040": "away",
        "1053": "away",
        "1205": "away",
        "1213": "away",
        "1317": "away",
        "1927": "away",
        "2": "away",
        "0": "away",
        "1021": "full",
        "1041": "full",
        "1114": "full",
        "1044": "denied",
        "1045": "denied",
        "1142": "denied",
        "1227": "denied",
        "1698": "denied",
        "1049": "missing",
        "1146": "missing",
        "1153": "large",
        "1301": "large",
        "1406": "refused",
        "1034": "damaged",
        "1194": "damaged",
    },
)

BY_SCHEME: Final[Mapping[str, Dialect]] = {d.name: d for d in (SQLITE, POSTGRESQL, MYSQL)}
_BY_DRIVER: Final[Mapping[str, Dialect]] = {d.driver: d for d in (SQLITE, POSTGRESQL, MYSQL)}


def for_version(dialect: Dialect, version: str) -> Dialect:
    """MariaDB before 10.6 and MySQL before 8.0.1 cannot skip locked rows: their consumers take turns."""
    least = (10, 6) if "mariadb" in version.lower() else (8, 0, 1)
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if numbers >= least:
        return dialect
    return replace(dialect, words={**dialect.words, "skip": dialect.words["lock"]})


def fault_of(dialect: Dialect, exc: Exception) -> Fault | None:
    """What a driver's error means; None when it says nothing to us."""
    for code in _codes(exc):
        if code in dialect.faults:
            return dialect.faults[code]
    text = str(exc)
    return next((fault for part, fault in dialect.hints.items() if part in text), None)


def _codes(exc: Any) -> tuple[str, ...]:
    name = getattr(exc, "sqlite_errorname", None)
    if name:  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
        return (name, "_".join(name.split("_")[:2]))
    number = exc.args[0] if exc.args and isinstance(exc.args[0], int) else None
    if number is not None:  # MySQL: 2000 to 2999 come from the client, the connection is gone
        return (str(number), "2" if 2000 <= number < 3000 else "")
    state = getattr(exc, "sqlstate", None)
    return (state, state[:2]) if state else ()  # the first two characters are the class


def table_name(prefix: str, name: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"{prefix!r} is not a table prefix; use letters, digits and _, at most 40", setting="?prefix="
        )
    return prefix + name


def unwrap(connection: Any) -> tuple[Dialect, Any]:
    """The dialect and the DB-API connection of whatever the caller's transaction runs on: sqlite3,
    psycopg, pymysql, or an SQLAlchemy Session or Connection over one of them."""
    if hasattr(connection, "run_sync"):
        raise UsageError(
            "an asynchronous session cannot be used here; open a plain Session for this transaction"
        )
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):  # a Session
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):  # an SQLAlchemy Connection; starts its transaction
        if not connection.in_transaction():
            connection.begin()
        connection = connection.connection.driver_connection
    for base in type(connection).__mro__:
        found = _BY_DRIVER.get(base.__module__.partition(".")[0])
        if found is not None:
            return found, connection
    raise UsageError(
        f"cannot write through a {type(connection).__module__}.{type(connection).__qualname__}; "
        "give an SQLAlchemy Session or Connection, or a connection of sqlite3, psycopg or pymysql"
    )
