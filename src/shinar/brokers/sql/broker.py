"""`sqlite://`, `postgresql://` and `mysql://`: a queue in one table of an ordinary database.

A row is visible once its `available_at` has come. Taking it moves that moment to the end of the
lease and writes a token, so an abandoned row comes back by itself, and whoever holds id and token
may settle it, from any process. What differs between the databases is in `sql_dialects`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from shinar.brokers.contract import Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.sql.table import QueueStatements, channel, insert, schema_sql
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.database.columns import DEFAULT_PREFIX, bytes_of, check_queue, headers_of
from shinar.database.dialects import table_name, unwrap
from shinar.database.session import CONNECT_OPTIONS, Database, check_options
from shinar.errors import BodyTooLarge, ConfigError, UsageError
from shinar.settlement.traits import Traits

_OWN: Final = frozenset({"prefix", "lease_s", "declare", "poll_s", "notify"})
OPTIONS: Final = _OWN.union(*CONNECT_OPTIONS.values())

#: How long a taken message stays hidden unless its holder extends the lease.
LEASE_S: Final = 60.0
#: First pause on an empty queue; it doubles up to the dialect's (or the user's) longest.
FIRST_POLL_S: Final = 0.002
#: Rows a look at the queue fetches at once: flat memory, few round trips.
BROWSE_PAGE: Final = 200

#: Room in a MySQL statement for everything but the body.
PACKET_MARGIN: Final = 65536

#: A message's id and the token of its reservation: enough to settle it from anywhere.
SqlReceipt = tuple[int, int]
RECEIPT: Final = SqlReceipt


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name=url.scheme,
        key=True,
        attempts="max",
        count_base=0,
        lease_s=url.number("lease_s", LEASE_S, least=0.001),
        lasting_lease=True,
        portable_receipts=True,
        stable_position=True,
        atomic_move=True,
        release_counts=True,
        release_uncounted=True,
        release_to="back",
    )


def connect(url: BrokerUrl, clock: Clock) -> SqlBroker:
    check_options(url, _OWN)
    if "notify" in url.options and url.scheme != "postgresql":
        raise ConfigError("only PostgreSQL can notify", setting="?notify=")
    return SqlBroker(url, Database(url, clock))


def enqueue(
    connection: Any,
    queue: str,
    messages: Sequence[Outgoing],
    *,
    prefix: str = DEFAULT_PREFIX,
    clock: Clock = SYSTEM,
) -> None:
    """Publish inside the caller's own transaction: visible when, and only if, the caller commits.

    `connection` is an SQLAlchemy Session or Connection, or one of sqlite3, psycopg or pymysql. The
    table must be there (any `connect` of the same database makes it; `schema_sql` prints it).
    """
    dialect, raw = unwrap(connection)
    check_queue(queue)
    statements = QueueStatements.of(dialect, table_name(prefix, "messages"))
    cursor = raw.cursor()
    try:
        insert(cursor, dialect, statements, queue, [(m, clock.epoch_ms()) for m in messages])
    finally:
        cursor.close()


class SqlBroker:
    def __init__(self, url: BrokerUrl, database: Database) -> None:
        self._traits = traits(url)
        self._lease_ms = round((self._traits.lease_s or LEASE_S) * 1000)
        self._database = database
        self._dialect = database.dialect
        self._poll_s = url.number("poll_s", self._dialect.poll_s, least=0.001)
        self._notify = bool(self._dialect.notify) and url.flag("notify", True)
        #: The one queue this connection listens to (PostgreSQL), to be woken instead of polling.
        self._listening: tuple[object, str] | None = None
        #: Our own messages never get an earlier moment than the one before: order survives a clock step.
        self._last_ms = 0
        prefix = url.option("prefix", DEFAULT_PREFIX)
        table = table_name(prefix, "messages")
        self._sql = QueueStatements.of(self._dialect, table)
        database.ensure(table, schema_sql(self._dialect, prefix), create=url.flag("declare", True))
        self._traits = replace(self._traits, max_body_bytes=_max_body_bytes(database))

    @property
    def traits(self) -> Traits:
        return self._traits

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        if not messages:
            return
        check_queue(queue)
        self._check_sizes(queue, messages)
        now_ms = self._ordered_now_ms()
        with self._database.transaction(queue) as cursor:
            insert(
                cursor, self._dialect, self._sql, queue, [(m, now_ms) for m in messages], notify=self._notify
            )

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        clock = self._database.clock
        deadline_s = clock.monotonic_s() + wait_s
        pause_s = FIRST_POLL_S
        due_in_s = self._due_in_s(queue) if self._dialect.one_writer else 0.0
        found = self._take(queue, limit) if due_in_s <= 0 else []
        while not found and limit > 0:
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                break
            # A message that is due but was not given is locked by another consumer: pause all the same.
            self._pause(queue, pause_s, min(left_s, max(due_in_s, FIRST_POLL_S)))
            pause_s = min(pause_s * 2, self._poll_s)
            due_in_s = self._due_in_s(queue)
            if due_in_s <= 0:
                found = self._take(queue, limit)
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        by_token = _by_token(deliveries)
        if not by_token:
            return ()
        late: list[Delivery] = []
        # One reservation is one statement, which needs no transaction around it: two round trips saved.
        scope = self._database.statement if len(by_token) == 1 else self._database.transaction
        with scope() as cursor:
            for token, group in by_token.items():
                cursor.execute(self._sql.ack, (token, self._dialect.listed(list(group))))
                if cursor.rowcount < len(group):
                    # A row that is gone was settled before; one that is still there is somebody else's.
                    cursor.execute(self._sql.present, (self._dialect.listed(list(group)),))
                    late += [group[int(row[0])] for row in cursor.fetchall()]
        return tuple(late)

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        available_ms = self._database.now_ms() + round(delay_s * 1000)
        statement = self._sql.release if count else self._sql.release_uncounted
        return self._change(deliveries, statement, available_ms)

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        return self._change(deliveries, self._sql.extend, self._database.now_ms() + round(lease_s * 1000))

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        if not copies:
            return ()
        check_queue(queue)
        self._check_sizes(queue, [copy for _, copy in copies])
        now_ms = self._ordered_now_ms()
        deliveries = [delivery for delivery, _ in copies]
        with self._database.transaction(queue) as cursor:
            held = self._held(cursor, deliveries)
            kept = [(copy, now_ms) for delivery, copy in copies if delivery.receipt in held]
            if held:
                insert(cursor, self._dialect, self._sql, queue, kept, notify=self._notify)
                cursor.execute(self._sql.remove, (self._dialect.listed([id_ for id_, _ in held]),))
        return tuple(d for d in deliveries if d.receipt not in held)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        with self._database.statement(queue) as cursor:
            cursor.execute(self._sql.last)
            last_id = int(cursor.fetchone()[0])
        at_ms, after_id, left = -1, -1, limit
        while left is None or left > 0:
            page = BROWSE_PAGE if left is None else min(left, BROWSE_PAGE)
            with self._database.statement(queue) as cursor:
                cursor.execute(self._sql.browse_same, (queue, last_id, at_ms, after_id, page))
                rows = list(cursor.fetchall())
                if len(rows) < page:
                    cursor.execute(self._sql.browse_later, (queue, last_id, at_ms, page - len(rows)))
                    rows += cursor.fetchall()
            now_ms = self._database.clock.epoch_ms()
            for row in rows:
                yield _delivery(row, queue, now_ms)
            if len(rows) < page:
                return
            after_id, at_ms = int(rows[-1][0]), int(rows[-1][1])
            left = None if left is None else left - page

    def depth(self, queue: str) -> Depth:
        now_ms = self._database.now_ms()
        with self._database.statement(queue) as cursor:
            cursor.execute(self._sql.ready, (queue, now_ms))
            ready = int(cursor.fetchone()[0])
            cursor.execute(self._sql.hidden, (queue, now_ms))
            hidden, reserved = (int(value) for value in cursor.fetchone())
            cursor.execute(self._sql.oldest, (queue,))
            first = cursor.fetchone()
        return Depth(
            ready=ready,
            reserved=reserved,
            delayed=hidden - reserved,
            oldest_age_s=max(0, now_ms - int(first[0])) / 1000 if first else None,
        )

    def close(self) -> None:
        self._database.close()

    # -- taking

    def _take(self, queue: str, limit: int) -> list[Delivery]:
        if limit < 1:
            return []
        now_ms = self._database.now_ms()
        token = secrets.randbits(63)
        until_ms = now_ms + self._lease_ms
        rows: list[Any]
        if self._sql.take:
            with self._database.relaxed(queue) as cursor:
                cursor.execute(self._sql.take, (queue, now_ms, limit, token, until_ms))
                rows = sorted(cursor.fetchall(), key=_row_id)
        else:
            with self._database.transaction(queue) as cursor:
                cursor.execute(self._sql.pick, (queue, now_ms, limit))
                rows = list(cursor.fetchall())
                if rows:
                    ids = self._dialect.listed([int(row[0]) for row in rows])
                    cursor.execute(self._sql.hold, (token, until_ms, ids))
        received_ms = self._database.clock.epoch_ms()
        return [_delivery(row, queue, received_ms, token, received_ms + self._lease_ms) for row in rows]

    def _due_in_s(self, queue: str) -> float:
        """Seconds until the queue's next message can be taken; 0 or less when one can."""
        now_ms = self._database.now_ms()
        with self._database.statement(queue) as cursor:
            cursor.execute(self._sql.next, (queue,))
            row = cursor.fetchone()
        return (int(row[0]) - now_ms) / 1000 if row else float("inf")

    def _pause(self, queue: str, pause_s: float, longest_s: float) -> None:
        if not self._notify:
            self._database.clock.sleep(min(pause_s, longest_s))
            return
        wanted = (self._database.raw, queue)
        with self._database.statement(queue) as cursor:
            if self._listening != wanted:
                cursor.execute("UNLISTEN *")
                cursor.execute(self._dialect.listen.format(channel=channel(queue)))
                # Look once more before waiting: it may have come before we listened.
                self._listening = wanted
                return
            # Who writes rows by hand or with ?notify=false wakes nobody: hence a longest wait here too.
            for _ in self._database.raw.notifies(timeout=min(self._poll_s, longest_s), stop_after=1):
                pass

    # -- settling

    def _held(self, cursor: Any, deliveries: Sequence[Delivery]) -> set[SqlReceipt]:
        held: set[SqlReceipt] = set()
        for token, group in _by_token(deliveries).items():
            cursor.execute(self._sql.held, (token, self._dialect.listed(list(group))))
            held.update((int(row[0]), token) for row in cursor.fetchall())
        return held

    def _change(self, deliveries: Sequence[Delivery], statement: str, available_ms: int) -> Lapsed:
        if not deliveries:
            return ()
        with self._database.transaction() as cursor:
            held = self._held(cursor, deliveries)
            if held:
                cursor.execute(statement, (available_ms, self._dialect.listed([id_ for id_, _ in held])))
        return tuple(d for d in deliveries if d.receipt not in held)

    # -- publishing

    def _ordered_now_ms(self) -> int:
        self._last_ms = max(self._last_ms, self._database.now_ms())
        return self._last_ms

    def _check_sizes(self, queue: str, messages: Sequence[Outgoing]) -> None:
        limit = self._traits.max_body_bytes
        if limit is None:
            return
        for message in messages:
            if len(message.body) > limit:
                raise BodyTooLarge(len(message.body), limit, broker=self._traits.name, queue=queue)


def _delivery(
    row: Any, queue: str, received_ms: int, token: int | None = None, until_ms: int | None = None
) -> Delivery:
    id_, _, earlier, headers, key, body = row
    return Delivery(
        body=bytes_of(body),
        queue=queue,
        receipt=None if token is None else (int(id_), token),
        headers=headers_of(headers),
        key=None if key is None else bytes_of(key),
        native_count=int(earlier),
        received_ms=received_ms,
        lease_until_ms=until_ms,
        position=str(id_),
    )


def _by_token(deliveries: Sequence[Delivery]) -> dict[int, dict[int, Delivery]]:
    """Deliveries by reservation, then by id: each reservation is settled by one statement."""
    groups: dict[int, dict[int, Delivery]] = {}
    for delivery in deliveries:
        if delivery.receipt is None:
            raise UsageError(
                f"message {delivery.position} of {delivery.queue} was only browsed; reserve it to settle it"
            )
        id_, token = delivery.receipt
        groups.setdefault(token, {})[id_] = delivery
    return groups


def _row_id(row: Any) -> int:
    return int(row[0])


def _max_body_bytes(database: Database) -> int | None:
    """MySQL cuts the connection on a statement over its packet limit; better to say so before."""
    if not database.dialect.longest_statement:
        return None
    with database.statement() as cursor:
        cursor.execute(database.dialect.longest_statement)
        # The client writes a body as hexadecimal digits: two bytes each.
        return max(0, int(cursor.fetchone()[0]) - PACKET_MARGIN) // 2
