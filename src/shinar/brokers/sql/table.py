"""The queue's table: its columns, its statements in each dialect, and how a message becomes a row.

Runs on any cursor, the broker's own or one of the caller's transaction. Holds no connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shinar.brokers.contract import Outgoing
from shinar.database.columns import DEFAULT_PREFIX, checked_key, due_ms, headers_text
from shinar.database.dialects import Dialect, table_name


def schema_sql(dialect: Dialect, prefix: str = DEFAULT_PREFIX) -> tuple[str, ...]:
    """The statements that create the queue's table, for those who let nobody else do it."""
    table = table_name(prefix, "messages")
    columns = (
        "id {serial}, queue {name} NOT NULL, available_at {bigint} NOT NULL, token {bigint}, "
        "deliveries {bigint} NOT NULL DEFAULT 0, created_at {bigint} NOT NULL, headers {text}, "
        "ordering_key {blob}, body {blob} NOT NULL"
    )
    failed = table_name(prefix, "failed")
    dead = f"SELECT * FROM {table} WHERE queue LIKE '%.dlq'"
    view = dialect.render(f"CREATE {{or_replace}}VIEW {{if_absent}}{failed} AS {dead}")
    return (*dialect.create(table, columns, "due", "queue, available_at, id"), view)


@dataclass(frozen=True, slots=True)
class QueueStatements:
    """Every statement on the queue's table, in one dialect's text."""

    insert: str
    #: Take and return in one statement; "" where the database needs `pick` and `hold`.
    take: str
    pick: str
    hold: str
    next: str
    ack: str
    present: str
    held: str
    release: str
    release_uncounted: str
    extend: str
    remove: str
    ready: str
    hidden: str
    oldest: str
    last: str
    browse_same: str
    browse_later: str

    @classmethod
    def of(cls, dialect: Dialect, table: str) -> QueueStatements:
        due = f"FROM {table} WHERE queue = %s AND available_at <= %s ORDER BY available_at, id LIMIT %s"
        columns = "id, available_at, deliveries{less}, headers, ordering_key, body"
        look = f"SELECT {columns.format(less='')} FROM {table} WHERE queue = %s AND id <= %s"
        texts = {
            # Marks only between the brackets: pymysql joins rows into one statement for that form alone.
            "insert": f"INSERT INTO {table} (queue, available_at, created_at, headers, ordering_key, body) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            # MATERIALIZED: a plan that ran the inner select twice would lock more rows than it returns.
            "take": f"WITH picked AS MATERIALIZED (SELECT id {due} {{skip}}) UPDATE {table} "
            "SET token = %s, available_at = %s, deliveries = deliveries + 1 "
            f"WHERE id IN (SELECT id FROM picked){{relax}} RETURNING {columns.format(less=' - 1')}"
            if dialect.returning
            else "",
            "pick": f"SELECT {columns.format(less='')} {due} {{skip}}",
            "hold": f"UPDATE {table} SET token = %s, available_at = %s, deliveries = deliveries + 1 "
            "WHERE id {in_list}",
            "next": f"SELECT available_at FROM {table} WHERE queue = %s ORDER BY available_at, id LIMIT 1",
            "ack": f"DELETE FROM {table} WHERE token = %s AND id {{in_list}}",
            "present": f"SELECT id FROM {table} WHERE id {{in_list}}",
            "held": f"SELECT id FROM {table} WHERE token = %s AND id {{in_list}} {{lock}}",
            "release": f"UPDATE {table} SET token = NULL, available_at = %s WHERE id {{in_list}}",
            "release_uncounted": f"UPDATE {table} SET token = NULL, available_at = %s, "
            "deliveries = deliveries - 1 WHERE id {in_list}",
            "extend": f"UPDATE {table} SET available_at = %s WHERE id {{in_list}}",
            "remove": f"DELETE FROM {table} WHERE id {{in_list}}",
            "ready": f"SELECT COUNT(*) FROM {table} WHERE queue = %s AND available_at <= %s",
            "hidden": f"SELECT COUNT(*), COUNT(token) FROM {table} WHERE queue = %s AND available_at > %s",
            "oldest": f"SELECT created_at FROM {table} WHERE queue = %s ORDER BY available_at, id LIMIT 1",
            "last": f"SELECT COALESCE(MAX(id), 0) FROM {table}",
            # Two plain ranges instead of one comparison of pairs, which not every database can index.
            "browse_same": f"{look} AND available_at = %s AND id > %s ORDER BY id LIMIT %s",
            "browse_later": f"{look} AND available_at > %s ORDER BY available_at, id LIMIT %s",
        }
        return cls(**{name: dialect.render(text) for name, text in texts.items()})


def insert(
    cursor: Any,
    dialect: Dialect,
    statements: QueueStatements,
    queue: str,
    messages: Sequence[tuple[Outgoing, int]],
    notify: bool = True,
) -> None:
    rows = [
        (
            queue,
            due_ms(now_ms, message.delay_s),
            now_ms,
            headers_text(message.headers),
            checked_key(message.key),
            message.body,
        )
        for message, now_ms in messages
    ]
    cursor.executemany(statements.insert, rows)
    if notify and dialect.notify:
        cursor.execute(dialect.notify, (channel(queue),))


def channel(queue: str) -> str:
    return f"shinar_{hashlib.sha256(queue.encode()).hexdigest()[:24]}"
