"""The table queue, side by side in one run with the barest safe use of each database's driver.

    python bench/broker_sql.py [--messages 20000] [--batch 100] [sqlite postgresql mariadb]

`bare` inserts bodies with executemany, takes a batch by one select-and-mark and deletes it by id: no
queues, no headers, no delay, no tokens, no counts. Both commit durably per batch. Each side's best of
three rounds: what disturbs a machine only ever slows it down.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shinar.brokers import Outgoing, connect
from shinar.brokers.registry import parse
from shinar.database.dialects import BY_SCHEME
from shinar.envelope import build, encode

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

BODY = encode(build("urn:babel:orders:created", {"order_id": 1042, "text": "x" * 100}, queue="orders"))
ROUNDS = 3

Rates = tuple[float, float]


def rate(count: int, action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def ours(url: str, count: int, batch: int) -> Rates:
    broker = connect(url)

    def publish() -> None:
        for _ in range(0, count, batch):
            broker.publish("orders", [Outgoing(BODY) for _ in range(batch)])

    def consume() -> None:
        while found := broker.reserve("orders", batch, 0):
            assert broker.ack(found) == ()

    rates = rate(count, publish), rate(count, consume)
    broker.close()
    return rates


def bare(url: str, count: int, batch: int) -> Rates:
    connection, mark = bare_connection(url)
    cursor = connection.cursor()
    dialect = BY_SCHEME[parse(url).scheme]
    cursor.execute("DROP TABLE IF EXISTS bare_queue")
    cursor.execute(dialect.render("CREATE TABLE bare_queue (id {serial}, held {bigint}, body {blob})"))
    insert = f"INSERT INTO bare_queue (held, body) VALUES ({mark}, {mark})"
    select = dialect.render("SELECT id, body FROM bare_queue WHERE held = 0 ORDER BY id LIMIT %s {skip}")
    hold = dialect.render("UPDATE bare_queue SET held = 1 WHERE id {in_list}")
    delete = dialect.render("DELETE FROM bare_queue WHERE id {in_list}")

    def publish() -> None:
        for _ in range(0, count, batch):
            cursor.execute(dialect.begin)
            cursor.executemany(insert, [(0, BODY)] * batch)
            cursor.execute("COMMIT")

    def consume() -> None:
        while True:
            cursor.execute(dialect.begin)
            cursor.execute(select, (batch,))
            rows = cursor.fetchall()
            ids = dialect.listed([row[0] for row in rows])
            if rows:
                cursor.execute(hold, (ids,))
            cursor.execute("COMMIT")
            if not rows:
                return
            cursor.execute(dialect.begin)
            cursor.execute(delete, (ids,))
            cursor.execute("COMMIT")

    rates = rate(count, publish), rate(count, consume)
    connection.close()
    return rates


def bare_connection(url: str):
    parsed = parse(url)
    if parsed.scheme == "sqlite":
        connection = sqlite3.connect(parsed.path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection, "?"
    given = {"host": parsed.host, "port": parsed.port, "user": parsed.user, "password": parsed.password}
    if parsed.scheme == "postgresql":
        import psycopg

        return psycopg.connect(dbname=parsed.path, autocommit=True, **given), "%s"
    import pymysql

    return pymysql.connect(database=parsed.path, autocommit=True, **given), "%s"


def compare(name: str, url: str, count: int, batch: int) -> None:
    rounds = [(ours(url, count, batch), bare(url, count, batch)) for _ in range(ROUNDS)]
    for index, what in enumerate(("publish", "reserve+ack")):
        best_ours = max(row[0][index] for row in rounds)
        best_bare = max(row[1][index] for row in rounds)
        print(
            f"{name:<24}{what:<14}{best_ours:>10,.0f}/s   bare {best_bare:>10,.0f}/s"
            f"   ratio {best_ours / best_bare:.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql", "mariadb"])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    print(f"{options.messages} messages of {len(BODY)} bytes, batches of {options.batch}, durable commits")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.databases:
            if name == "sqlite":
                compare(
                    f"sqlite {sqlite3.sqlite_version}",
                    f"sqlite://{folder}/queue.db",
                    options.messages,
                    options.batch,
                )
                continue
            from servers import acquire

            server = acquire(name)
            compare(f"{name} {server.version}", server.url, options.messages, options.batch)


if __name__ == "__main__":
    main()
