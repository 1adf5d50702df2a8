"""One connection to a database: opened on use, reopened after a cut, its errors mapped in one place.

Every table of ours (queue, idempotency marks, outbox) is reached through a `Database`. It knows
transactions, time and missing tables, but no queue and no message.
"""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.database.dialects import BY_SCHEME, Dialect, fault_of, for_version
from shinar.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    MissingExtra,
    QueueMissing,
    StoreError,
    Unsupported,
    UsageError,
)

#: URL options that say how to reach the database, per scheme.
CONNECT_OPTIONS: Final = {
    "sqlite": frozenset({"busy_s", "durability"}),
    "postgresql": frozenset({"sslmode", "sslrootcert", "host", "connect_timeout_s"}),
    "mysql": frozenset({"ssl_ca", "unix_socket", "connect_timeout_s"}),
}
#: How long SQLite waits for another process's write before it gives up.
BUSY_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
#: Between two looks at a lock that SQLite does not wait for by itself, in seconds.
_LOCK_POLL_S: Final = 0.05
#: A statement is prepared on the server once it was used so often.
_PREPARE_AFTER: Final = 3
#: How long the measured difference to the database's clock is trusted.
CLOCK_TRUST_S: Final = 60.0


class Database:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self.dialect = BY_SCHEME[url.scheme]
        self.clock: Final = clock
        self._url = url
        self._driver = load_driver(self.dialect)
        self._always_relaxed = url.option("durability") == "os"
        self._connection: Any = None
        #: (monotonic seconds, epoch ms by the database) at the last comparison.
        self._compared: tuple[float, int] | None = None
        if self.dialect.version:
            with self.statement() as cursor:
                cursor.execute(self.dialect.version)
                self.dialect = for_version(self.dialect, str(cursor.fetchone()[0]))

    # -- the connection

    @property
    def raw(self) -> Any:
        """The driver's connection, in autocommit mode, opened if it must be."""
        if self._connection is None:
            self._compared = None
            self._connection = _OPEN[self.dialect.name](self._driver, self._url)
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._driver.Error):
                connection.close()

    @contextmanager
    def errors(self, queue: str = "") -> Iterator[None]:
        """The one place where a driver's error becomes one of ours."""
        try:
            yield
        except self._driver.Error as exc:
            fault = fault_of(self.dialect, exc)
            if fault is None and isinstance(
                exc, (self._driver.OperationalError, self._driver.InterfaceError)
            ):
                fault = "away"
            if fault == "away" and not self.dialect.one_writer:
                self.close()
            _fail(self.dialect, fault, exc, queue)

    @contextmanager
    def transaction(self, queue: str = "") -> Iterator[Any]:
        """A cursor inside one transaction: committed at the end, or rolled back on any error."""
        with self.errors(queue):
            cursor = self._begun()
            try:
                yield cursor
                cursor.execute("COMMIT")
            except self._driver.Error:
                with suppress(self._driver.Error):
                    cursor.execute("ROLLBACK")
                raise
            except Exception:
                cursor.execute("ROLLBACK")
                raise
            except BaseException:
                # Interrupted in the middle of an exchange: only a fresh connection is in a known state.
                self.close()
                raise
            finally:
                with suppress(self._driver.Error):
                    cursor.close()

    def _begun(self) -> Any:
        """A cursor inside a new transaction. Servers hang up on idle connections; as nothing has been
        said yet, a second try on a fresh one is safe."""
        try:
            return self._begin()
        except self._driver.Error:
            if self.dialect.one_writer:
                raise
            self.close()
            return self._begin()

    def _begin(self) -> Any:
        cursor = self.raw.cursor()
        cursor.execute(self.dialect.begin)
        return cursor

    @contextmanager
    def statement(self, queue: str = "") -> Iterator[Any]:
        """A cursor for single statements, each its own transaction."""
        with self.errors(queue):
            cursor = self.raw.cursor()
            try:
                yield cursor
            except (KeyboardInterrupt, SystemExit):
                self.close()
                raise
            finally:
                with suppress(self._driver.Error):
                    cursor.close()

    @contextmanager
    def relaxed(self, queue: str = "") -> Iterator[Any]:
        """Like `statement`, for what may be forgotten in a power cut: a reservation, not a message."""
        before, after = self.dialect.relaxed
        with self.statement(queue) as cursor:
            if not before or self._always_relaxed:
                yield cursor
                return
            cursor.execute(before)
            try:
                yield cursor
            finally:
                cursor.execute(after)

    # -- time

    def now_ms(self) -> int:
        """Now by the database's clock, so that machines with different clocks agree on leases."""
        if not self.dialect.now_ms:
            return self.clock.epoch_ms()
        monotonic_s = self.clock.monotonic_s()
        if self._compared is None or monotonic_s - self._compared[0] > CLOCK_TRUST_S:
            with self.statement() as cursor:
                cursor.execute(self.dialect.now_ms)
                self._compared = (monotonic_s, int(cursor.fetchone()[0]))
        since_s, then_ms = self._compared
        return then_ms + int((monotonic_s - since_s) * 1000)

    # -- tables

    def ensure(self, table: str, ddl: Sequence[str], *, create: bool) -> None:
        """See that `table` is there, or hang up. Without `create` a missing one is an error that holds
        the SQL to run."""
        try:
            if not self._has(table):
                if not create:
                    script = "\n".join(f"{text};" for text in ddl)
                    raise QueueMissing(
                        f"there is no table {table} and ?declare=false forbids creating it; run\n{script}",
                        broker=self.dialect.name,
                    )
                self._create(ddl)
        except BaseException:
            self.close()
            raise

    def _has(self, table: str) -> bool:
        try:
            with self.statement() as cursor:
                cursor.execute(f"SELECT 1 FROM {table} WHERE 1 = 0")
                cursor.fetchall()
            return True
        except QueueMissing:
            # A database that is not there looks alike, but then there is no connection either.
            if self._connection is None:
                raise
            return False

    def _create(self, ddl: Sequence[str]) -> None:
        with self.transaction() as cursor:
            if self.dialect.ddl_lock:
                cursor.execute(self.dialect.ddl_lock)
                cursor.fetchall()
            for text in ddl:
                cursor.execute(text)


def load_driver(dialect: Dialect) -> Any:
    try:
        return importlib.import_module(dialect.driver)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != dialect.driver:
            raise
        raise MissingExtra(f"{dialect.name}://", dialect.driver, dialect.extra) from None


def check_options(url: BrokerUrl, own: frozenset[str]) -> None:
    """Options of another dialect are refused: a setting that does nothing is worse than an error."""
    known = own | CONNECT_OPTIONS[url.scheme]
    for name in url.options:
        if name not in known:
            raise ConfigError(
                f"{url.scheme}:// has no such option; known: {', '.join(sorted(known))}", setting=f"?{name}="
            )


def _fail(dialect: Dialect, fault: str | None, exc: Exception, queue: str) -> NoReturn:
    text = " ".join(str(exc).split())
    place = {"broker": dialect.name, "queue": queue}
    match fault:
        case "away":
            raise BrokerUnavailable(f"{text}; try again once the database answers", **place) from exc
        case "full":
            raise BrokerFull(f"{text}; make room, then try again", **place) from exc
        case "denied":
            raise AccessDenied(f"{text}; check user, password and rights", **place) from exc
        case "missing":
            raise QueueMissing(f"{text}; create it, or leave ?declare= on", **place) from exc
        case "damaged":
            raise StoreError(f"{dialect.name}: {text}; restore the database from a backup") from exc
        case "large" | "refused":
            raise UsageError(f"{dialect.name} refused a value: {text}; nothing was written") from exc
        case _:
            raise BrokerError(text, **place) from exc


def _open_sqlite(_driver: Any, url: BrokerUrl) -> sqlite3.Connection:
    path = url.netloc + url.path
    if not path or path in ("/", ":memory:"):
        raise ConfigError("name a file: sqlite:///var/lib/app/queue.db (in memory: memory://)", setting="url")
    if not Path(path).parent.is_dir():
        raise ConfigError(f"there is no folder {Path(path).parent}; create it first", setting="url")
    if sqlite3.sqlite_version_info < (3, 35):
        raise Unsupported("sqlite", "take messages", "this Python's SQLite is older than 3.35; upgrade it")
    busy_s = url.number("busy_s", BUSY_S)
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        _use_wal(connection, busy_s)
        connection.execute(f"PRAGMA synchronous = {sqlite_synchronous(url)}")
        connection.execute("PRAGMA cache_size = -16000")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    """Wait for a lock as for any other: SQLite itself does not while it changes the journal."""
    end_s = SYSTEM.monotonic_s() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or SYSTEM.monotonic_s() >= end_s:
                raise
            SYSTEM.sleep(_LOCK_POLL_S)


def sqlite_synchronous(url: BrokerUrl) -> str:
    durability = url.option("durability", "fsync")
    if durability not in ("fsync", "os"):
        raise ConfigError(f"{durability!r} is neither fsync nor os", setting="?durability=")
    return "FULL" if durability == "fsync" else "NORMAL"


def _open_postgresql(driver: Any, url: BrokerUrl) -> Any:
    settings: dict[str, Any] = {
        "host": url.option("host") or url.host,
        "port": url.port,
        "user": url.user,
        "password": url.password,
        "dbname": url.path,
        "sslmode": url.option("sslmode"),
        "sslrootcert": url.option("sslrootcert"),
        "connect_timeout": max(2, round(url.number("connect_timeout_s", CONNECT_TIMEOUT_S))),
        "application_name": "shinar",
    }
    given = {name: value for name, value in settings.items() if value}
    # Without notifications there may be a pooler between us, which changes the server's session under
    # our feet: then nothing may be prepared in it either.
    prepare_after = _PREPARE_AFTER if url.flag("notify", True) else None
    connection = driver.connect(autocommit=True, prepare_threshold=prepare_after, **given)
    (isolation,) = connection.execute("SHOW default_transaction_isolation").fetchone()
    if isolation != "read committed":
        # SKIP LOCKED under a stricter level fails on rows that others have changed.
        connection.execute("SET default_transaction_isolation = 'read committed'")
    return connection


def _open_mysql(driver: Any, url: BrokerUrl) -> Any:
    if not url.path:
        raise ConfigError("name a database: mysql://user@host/database", setting="url")
    settings: dict[str, Any] = {
        "host": url.host or "localhost",
        "port": url.port or url.usual_port,
        "user": url.user or None,
        "password": url.password,
        "database": url.path,
        "unix_socket": url.option("unix_socket") or None,
        "ssl_ca": url.option("ssl_ca") or None,
        "connect_timeout": max(1, round(url.number("connect_timeout_s", CONNECT_TIMEOUT_S))),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    connection = driver.connect(autocommit=True, charset="utf8mb4", **given)
    with connection.cursor() as cursor:
        # READ COMMITTED: no gap locks, which would make consumers and publishers wait for each other.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
    return connection


_OPEN: Final = {"sqlite": _open_sqlite, "postgresql": _open_postgresql, "mysql": _open_mysql}
