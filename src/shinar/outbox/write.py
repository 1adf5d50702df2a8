"""Writing to the outbox, inside the caller's transaction. Publishes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shinar.clock import SYSTEM, Clock
from shinar.database.columns import DEFAULT_PREFIX, check_queue, checked_key, due_ms, headers_text
from shinar.database.dialects import table_name, unwrap
from shinar.envelope import Message, build_from, encode, judge
from shinar.errors import ContractError
from shinar.outbox.table import OutboxStatements, schema_sql

_NO_HEADERS: Final[Mapping[str, str]] = {}


class Outbox:
    """One value for the whole program: it keeps no connection and may be shared by threads."""

    def __init__(self, *, prefix: str = DEFAULT_PREFIX, clock: Clock = SYSTEM) -> None:
        self._prefix = prefix
        self._table = table_name(prefix, "outbox")
        self._clock = clock

    def create(self, connection: Any) -> None:
        """Create the table through the caller's connection. (A relay creates it too.)"""
        dialect, raw = unwrap(connection)
        cursor = raw.cursor()
        try:
            for text in schema_sql(dialect.name, self._prefix):
                cursor.execute(text)
        finally:
            cursor.close()

    def write(
        self,
        connection: Any,
        message: object,
        *,
        queue: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        key: bytes | None = None,
        delay_s: float = 0.0,
    ) -> int:
        """Store one message; it is sent if, and only if, the caller commits. The row's id.

        `connection` is an SQLAlchemy Session or Connection, or one of sqlite3, psycopg or pymysql, in
        the middle of the caller's transaction. `message` is a Message, its encoded bytes, or any object
        with a URN and a payload. It is encoded here, once; the relay sends these very bytes.
        """
        dialect, raw = unwrap(connection)
        body, target = _encoded(message, queue)
        check_queue(target)
        now_ms = self._clock.epoch_ms()
        text = OutboxStatements.of(dialect, self._table).insert
        row = (
            target,
            now_ms,
            due_ms(now_ms, delay_s),
            now_ms,
            headers_text(headers),
            checked_key(key),
            body,
        )
        cursor = raw.cursor()
        try:
            if dialect.insert_returns:
                cursor.execute(f"{text} RETURNING id", row)
                return int(cursor.fetchone()[0])
            cursor.execute(text, row)
            return int(cursor.lastrowid)
        finally:
            cursor.close()


def _encoded(message: object, queue: str | None) -> tuple[bytes, str]:
    if isinstance(message, bytes):
        verdict = judge(message)
        if verdict.message is None:
            raise ContractError(f"not a message: {verdict.reason}", pointer=verdict.pointer or None)
        return message, queue or verdict.message.meta.queue or "default"
    built = message if isinstance(message, Message) else build_from(message, queue=queue or "default")
    return encode(built), queue or built.meta.queue or "default"
