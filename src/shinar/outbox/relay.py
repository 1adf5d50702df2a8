"""Publishes what the outbox holds, confirmed, and only then marks it. At least once.

Several relays may run: each claims its rows under a lease. One that dies between the broker's
confirmation and the mark leaves rows that are published again once the lease ends, with the same
bytes and so the same `meta.id`: consumers tell them apart by it (see docs/idempotency.md).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from shinar.brokers.contract import Broker, Outgoing
from shinar.brokers.registry import parse
from shinar.clock import SYSTEM, Clock
from shinar.database.columns import DEFAULT_PREFIX, bytes_of, headers_of
from shinar.database.dialects import table_name
from shinar.database.session import CONNECT_OPTIONS, Database, check_options
from shinar.errors import BrokerError, ConfigError, PublishFailed, ShinarError
from shinar.outbox.table import OutboxStatements, schema_sql

log: Final = logging.getLogger("shinar.outbox")

_OWN: Final = frozenset({"prefix", "declare", "lease_s", "batch", "keep_s"})
OPTIONS: Final = _OWN.union(*CONNECT_OPTIONS.values())

#: Rows claimed and published at once.
BATCH: Final = 100
#: How long a relay may take for one batch before another may try the same rows.
LEASE_S: Final = 60.0
#: Backoff of a row that failed n times before: this much times n + 1, up to the cap.
BACKOFF_STEP_S: Final = 0.05
BACKOFF_CAP_S: Final = 5.0
#: A drain ends after so many passes even if writers keep up with it.
DRAIN_CEILING: Final = 10_000
#: Pause of `run` on an empty outbox.
IDLE_S: Final = 0.25
#: Longest error text kept with a row.
_ERROR_CHARS: Final = 500


class Pass(msgspec.Struct, frozen=True):
    published: int = 0
    failed: int = 0

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.published + other.published, self.failed + other.failed)


class Backlog(msgspec.Struct, frozen=True):
    pending: int
    #: Those of the pending that were tried and refused at least once.
    failing: int
    oldest_age_s: float | None


class _OutboxRow(msgspec.Struct, frozen=True):
    id: int
    queue: str
    failures: int
    message: Outgoing


class Relay:
    def __init__(self, url: str, broker: Broker, *, clock: Clock = SYSTEM) -> None:
        """`url` is the database of the outbox, e.g. `postgresql://…/shop?lease_s=120&keep_s=86400`;
        `broker` is where the messages go."""
        parsed = parse(url)
        if parsed.scheme not in CONNECT_OPTIONS:
            raise ConfigError(
                f"an outbox lives in sqlite://, postgresql:// or mysql://, not {parsed.scheme}://",
                setting="url",
            )
        check_options(parsed, _OWN)
        prefix = parsed.option("prefix", DEFAULT_PREFIX)
        table = table_name(prefix, "outbox")
        self._broker = broker
        self._batch = int(parsed.number("batch", BATCH, least=1))
        self._lease_ms = round(parsed.number("lease_s", LEASE_S, least=0.001) * 1000)
        #: How long a published row stays for the record; 0 removes it at once.
        self._keep_ms = round(parsed.number("keep_s", 0.0) * 1000)
        self._database = Database(parsed, clock)
        self._sql = OutboxStatements.of(self._database.dialect, table)
        self._database.ensure(table, schema_sql(parsed.scheme, prefix), create=parsed.flag("declare", True))

    def flush(self) -> Pass:
        """One pass: claim a batch, publish it, mark each row by its outcome."""
        token, rows = self._claim()
        if not rows:
            return Pass()
        outcome: dict[int, ShinarError | None] = {}
        for queue, group in _by_queue(rows).items():
            outcome |= self._publish(queue, group)
        return self._mark(token, rows, outcome)

    def drain(self, max_passes: int = DRAIN_CEILING) -> Pass:
        """Passes until one publishes nothing: all is sent, or what is left fails for now."""
        total = Pass()
        for _ in range(max_passes):
            done = self.flush()
            total += done
            if not done.published:
                break
        return total

    def run(self, stopped: Callable[[], bool], idle_s: float = IDLE_S) -> Pass:
        """Passes until `stopped()`. A database or a broker that is away is waited for, longer each time."""
        total, bad_passes = Pass(), 0
        while not stopped():
            try:
                done = self.flush()
            except BrokerError as exc:
                if not exc.transient:
                    raise
                log.warning("the outbox cannot be read, trying again: %s", exc)
                done = Pass(failed=1)
            else:
                total += done
            bad_passes = bad_passes + 1 if done.failed and not done.published else 0
            if not done.published:
                self._database.clock.sleep(max(idle_s, backoff_s(bad_passes - 1)))
        return total

    def backlog(self) -> Backlog:
        now_ms = self._database.now_ms()
        with self._database.statement() as cursor:
            cursor.execute(self._sql.backlog)
            pending, failing, oldest_ms = cursor.fetchone()
        age_s = None if oldest_ms is None else max(0, now_ms - int(oldest_ms)) / 1000
        return Backlog(int(pending), int(failing), age_s)

    def close(self) -> None:
        """Hang up on the database; the broker is the caller's."""
        self._database.close()

    def _claim(self) -> tuple[int, list[_OutboxRow]]:
        now_ms = self._database.now_ms()
        token = secrets.randbits(63)
        # Look first: an empty outbox costs no write lock, so an idle relay disturbs no writer.
        with self._database.statement() as cursor:
            cursor.execute(self._sql.due, (now_ms,))
            if cursor.fetchone() is None:
                return token, []
        with self._database.transaction() as cursor:
            cursor.execute(self._sql.pick, (now_ms, self._batch))
            found = cursor.fetchall()
            if found:
                ids = self._database.dialect.listed([int(row[0]) for row in found])
                cursor.execute(self._sql.hold, (token, now_ms + self._lease_ms, ids))
        return token, [_row(row, now_ms) for row in found]

    def _publish(self, queue: str, rows: Sequence[_OutboxRow]) -> dict[int, ShinarError | None]:
        """What became of each row: None when the broker confirmed it, else why not."""
        try:
            self._broker.publish(queue, [row.message for row in rows])
        except PublishFailed as exc:
            return {row.id: exc if index in exc.unconfirmed else None for index, row in enumerate(rows)}
        except ShinarError as exc:
            if exc.transient or len(rows) == 1:
                return dict.fromkeys((row.id for row in rows), exc)
            # One of them is refused for good: alone, the others pass.
            alone: dict[int, ShinarError | None] = {}
            for row in rows:
                alone |= self._publish(queue, [row])
            return alone
        return dict.fromkeys((row.id for row in rows), None)

    def _mark(self, token: int, rows: Sequence[_OutboxRow], outcome: dict[int, ShinarError | None]) -> Pass:
        now_ms = self._database.now_ms()
        sent = [row.id for row in rows if outcome[row.id] is None]
        refused = [(row, exc) for row in rows if (exc := outcome[row.id]) is not None]
        with self._database.transaction() as cursor:
            if sent:
                ids = self._database.dialect.listed(sent)
                if self._keep_ms:
                    cursor.execute(self._sql.keep, (now_ms, token, ids))
                    cursor.execute(self._sql.purge, (now_ms - self._keep_ms,))
                else:
                    cursor.execute(self._sql.remove, (token, ids))
            for row, exc in refused:
                again_ms = now_ms + round(backoff_s(row.failures) * 1000)
                text = f"{type(exc).__name__}: {exc}"[:_ERROR_CHARS]
                cursor.execute(self._sql.fail, (again_ms, text, token, row.id))
        if refused:
            first, exc = refused[0]
            log.warning("%d rows of the outbox stay, the first (%d) by %s", len(refused), first.id, exc)
        return Pass(len(sent), len(refused))


def backoff_s(prior_failures: int) -> float:
    return min(BACKOFF_CAP_S, BACKOFF_STEP_S * (prior_failures + 1))


def _by_queue(rows: Sequence[_OutboxRow]) -> dict[str, list[_OutboxRow]]:
    """In the order of the table within each queue; one publish per queue."""
    groups: dict[str, list[_OutboxRow]] = {}
    for row in rows:
        groups.setdefault(row.queue, []).append(row)
    return groups


def _row(found: Any, now_ms: int) -> _OutboxRow:
    id_, queue, deliver_ms, failures, headers, key, body = found
    message = Outgoing(
        body=bytes_of(body),
        headers=headers_of(headers),
        key=None if key is None else bytes_of(key),
        delay_s=max(0, int(deliver_ms) - now_ms) / 1000,
    )
    name = queue.decode() if isinstance(queue, bytes) else str(queue)
    return _OutboxRow(int(id_), name, int(failures), message)
