"""The table of differences: what an error means, which server can skip locked rows, what a prefix is."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest

from shinar.brokers.sql.table import QueueStatements, schema_sql
from shinar.database.dialects import MYSQL, POSTGRESQL, SQLITE, fault_of, for_version, table_name, unwrap
from shinar.errors import ConfigError, UsageError


@pytest.mark.parametrize(
    ("version", "skips"),
    [
        ("10.11.19-MariaDB-0+deb12u1", True),
        ("10.6.0-MariaDB", True),
        ("11.4.2-MariaDB-log", True),
        ("10.5.22-MariaDB", False),
        ("5.5.5-10.5.8-MariaDB", False),
        ("8.0.1", True),
        ("8.4.0-commercial", True),
        ("8.0.0", False),
        ("5.7.44-log", False),
        ("9.1.0", True),
    ],
)
def test_which_servers_skip_locked_rows(version: str, skips: bool) -> None:
    statements = QueueStatements.of(for_version(MYSQL, version), "t")
    assert ("SKIP LOCKED" in statements.pick) is skips
    assert "FOR UPDATE" in statements.pick


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1045, "denied"),
        (1146, "missing"),
        (1213, "away"),
        (2006, "away"),
        (2013, "away"),
        (1114, "full"),
        (1064, None),
    ],
)
def test_mysql_codes(number: int, fault: str | None) -> None:
    assert fault_of(MYSQL, pymysql.err.OperationalError(number, "text")) == fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (psycopg.errors.UndefinedTable("x"), "missing"),
        (psycopg.errors.InvalidPassword("x"), "denied"),
        (psycopg.errors.InsufficientPrivilege("x"), "denied"),
        (psycopg.errors.DiskFull("x"), "full"),
        (psycopg.errors.TooManyConnections("x"), "away"),
        (psycopg.errors.DeadlockDetected("x"), "away"),
        (psycopg.errors.AdminShutdown("x"), "away"),
        (psycopg.errors.UniqueViolation("x"), None),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "a"'), "denied"),
        (psycopg.OperationalError('FATAL:  database "x" does not exist'), "missing"),
    ],
)
def test_postgresql_states(error: Exception, fault: str | None) -> None:
    assert fault_of(POSTGRESQL, error) == fault


def test_sqlite_names() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("SELECT 1 FROM nowhere")
    connection.close()
    assert fault_of(SQLITE, caught.value) == "missing"
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    assert fault_of(SQLITE, error) == "away"


@pytest.mark.parametrize("prefix", ["shinar_", "a", "app.shinar_", "_x1"])
def test_prefixes(prefix: str) -> None:
    assert table_name(prefix, "messages") == f"{prefix}messages"


@pytest.mark.parametrize("prefix", ["", "1a", "a b", "a;", "a.b.c", 'a"', "x" * 41, "é"])
def test_what_is_no_prefix(prefix: str) -> None:
    with pytest.raises(ConfigError, match="is not a table prefix"):
        table_name(prefix, "messages")


@pytest.mark.parametrize("dialect", [SQLITE, POSTGRESQL, MYSQL])
def test_an_index_is_named_without_the_schema(dialect) -> None:
    script = "\n".join(schema_sql(dialect, "app.q_"))
    assert "app.q_messages" in script
    assert "app.q_messages_due" not in script
    assert "q_messages_due" in script
    assert "{" not in script


@pytest.mark.parametrize("thing", [None, 7, object(), "sqlite:///x.db"])
def test_what_is_no_connection(thing: object) -> None:
    with pytest.raises(UsageError, match="sqlite3, psycopg or pymysql"):
        unwrap(thing)


def test_an_asynchronous_session_is_told_what_to_do() -> None:
    class AsyncSession:
        """Shaped like SQLAlchemy's, which needs one more package."""

        def run_sync(self) -> None: ...

    with pytest.raises(UsageError, match="open a plain Session"):
        unwrap(AsyncSession())
