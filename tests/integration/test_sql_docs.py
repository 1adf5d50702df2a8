"""The page about the table queue names every option, and its recipe moves InitPHP tables. (That its programs
run is tested for all pages.)"""

from __future__ import annotations

import re
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from live import envelope, take
from shinar.brokers import connect, parse
from shinar.brokers.sql import broker as sql

PAGE = Path(__file__).parents[2] / "docs" / "brokers" / "sql.md"

#: Their tables, as far as the recipe reads them.
JOBS = "id INTEGER PRIMARY KEY, queue VARCHAR(255), payload TEXT, available_at DATETIME, created_at DATETIME"
FAILED = "id INTEGER PRIMARY KEY, queue VARCHAR(255), payload TEXT, failed_at DATETIME, created_at DATETIME"
NOON = "2026-01-02 12:00:00"


def test_the_option_table_is_complete() -> None:
    text = PAGE.read_text()
    assert [option for option in sql.OPTIONS if f"`{option}`" not in text] == []


def recipe() -> list[str]:
    (block,) = re.findall(r"```sql\n(INSERT INTO shinar_messages.*?)```", PAGE.read_text(), re.S)
    return [statement for statement in block.split(";") if statement.strip()]


def test_the_recipe_moves_initphps_tables_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/shop.db"
    connect(url).close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute(f"CREATE TABLE jobs ({JOBS})")
        shop.execute(f"CREATE TABLE jobs_failed ({FAILED})")
        shop.execute(
            "INSERT INTO jobs VALUES (1, 'orders', ?, ?, ?)",
            (envelope(1).decode(), "2999-01-01 00:00:00", NOON),
        )
        shop.execute("INSERT INTO jobs VALUES (2, 'orders', ?, ?, ?)", (envelope(2).decode(), NOON, NOON))
        shop.execute(
            "INSERT INTO jobs_failed VALUES (1, 'orders', ?, ?, ?)", (envelope(3).decode(), NOON, NOON)
        )
        for statement in recipe():
            text = re.sub(r"UNIX_TIMESTAMP\((\w+)\)", r"strftime('%s', \1)", statement)
            text = text.replace("AS BINARY", "AS BLOB").replace("CONCAT(queue, '.dlq')", "queue || '.dlq'")
            shop.execute(text)
        shop.commit()
    check(url)


@pytest.mark.live("mariadb")
def test_the_recipe_moves_initphps_tables_on_mariadb(server) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}_"
    url = f"{server.url}?prefix={prefix}"
    connect(url).close()
    parsed = parse(server.url)
    given = {"host": parsed.host, "port": parsed.port, "user": parsed.user, "password": parsed.password}
    with closing(pymysql.connect(database=parsed.path, autocommit=True, **given)) as shop:
        cursor = shop.cursor()
        cursor.execute(f"CREATE TABLE {prefix}jobs ({JOBS})")
        cursor.execute(f"CREATE TABLE {prefix}jobs_failed ({FAILED})")
        row = f"INSERT INTO {prefix}jobs VALUES (%s, 'orders', %s, %s, %s)"
        cursor.execute(row, (1, envelope(1).decode(), "2037-01-01 00:00:00", NOON))
        cursor.execute(row, (2, envelope(2).decode(), NOON, NOON))
        failed = f"INSERT INTO {prefix}jobs_failed VALUES (1, 'orders', %s, %s, %s)"
        cursor.execute(failed, (envelope(3).decode(), NOON, NOON))
        for statement in recipe():
            cursor.execute(
                re.sub(r"shinar_messages|\bjobs(_failed)?\b", lambda m: _named(m[0], prefix), statement)
            )
    check(url)


def _named(table: str, prefix: str) -> str:
    return prefix + table.removeprefix("shinar_")


def check(url: str) -> None:
    with closing(connect(url)) as broker:
        (ready,) = take(broker, "orders", 1)
        assert ready.body == envelope(2)
        assert (broker.depth("orders").ready, broker.depth("orders").delayed) == (0, 1)
        (dead,) = take(broker, "orders.dlq", 1)
        assert dead.body == envelope(3)
        broker.ack([ready])
        broker.ack([dead])
