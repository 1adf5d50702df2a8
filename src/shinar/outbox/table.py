"""The outbox's table and its statements in each dialect. Holds no connection.

A row is due once its `available_at` has come. A relay that takes it moves that moment to the end
of its lease and writes a token; a failed publish moves it by the backoff; a published row that is
kept for the record moves out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shinar.database.columns import DEFAULT_PREFIX
from shinar.database.dialects import BY_SCHEME, Dialect, table_name
from shinar.errors import UsageError

#: `available_at` of a row that was published and is kept: later than any clock.
NEVER_MS: Final = 2**62


def schema_sql(scheme: str, prefix: str = DEFAULT_PREFIX) -> tuple[str, ...]:
    """The statements that create the outbox in a sqlite, postgresql or mysql database."""
    if scheme not in BY_SCHEME:
        raise UsageError(f"no outbox for {scheme!r}; there are {', '.join(BY_SCHEME)}")
    dialect = BY_SCHEME[scheme]
    table = table_name(prefix, "outbox")
    columns = (
        "id {serial}, available_at {bigint} NOT NULL, token {bigint}, queue {name} NOT NULL, "
        "deliver_at {bigint} NOT NULL, created_at {bigint} NOT NULL, published_at {bigint}, "
        "failures {bigint} NOT NULL, error {text}, headers {text}, ordering_key {blob}, body {blob} NOT NULL"
    )
    return dialect.create(table, columns, "due", "available_at, id")


@dataclass(frozen=True, slots=True)
class OutboxStatements:
    insert: str
    due: str
    pick: str
    hold: str
    remove: str
    keep: str
    fail: str
    purge: str
    backlog: str

    @classmethod
    def of(cls, dialect: Dialect, table: str) -> OutboxStatements:
        own = "WHERE token = %s AND id"
        texts = {
            "insert": f"INSERT INTO {table} (queue, available_at, deliver_at, created_at, failures, headers, "
            "ordering_key, body) VALUES (%s, %s, %s, %s, 0, %s, %s, %s)",
            "due": f"SELECT 1 FROM {table} WHERE available_at <= %s LIMIT 1",
            "pick": f"SELECT id, queue, deliver_at, failures, headers, ordering_key, body FROM {table} "
            "WHERE available_at <= %s ORDER BY available_at, id LIMIT %s {skip}",
            "hold": f"UPDATE {table} SET token = %s, available_at = %s WHERE id {{in_list}}",
            "remove": f"DELETE FROM {table} {own} {{in_list}}",
            "keep": f"UPDATE {table} SET token = NULL, available_at = {NEVER_MS}, published_at = %s, "
            f"error = NULL {own} {{in_list}}",
            "fail": f"UPDATE {table} SET token = NULL, available_at = %s, failures = failures + 1, "
            f"error = %s {own} = %s",
            "purge": f"DELETE FROM {table} WHERE available_at = {NEVER_MS} AND published_at <= %s",
            "backlog": "SELECT COUNT(*), COUNT(CASE WHEN failures > 0 THEN 1 END), MIN(created_at) "
            f"FROM {table} WHERE available_at < {NEVER_MS}",
        }
        return cls(**{name: dialect.render(text) for name, text in texts.items()})
