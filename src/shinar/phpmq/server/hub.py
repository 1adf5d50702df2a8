"""What all connections share: the line for slices of time, the tick that commits for all, the patrol.

Everything runs in one event loop thread, the store's commits included: a separate commit thread was
measured to cost more than it gives. Requests that arrive while a commit runs make up the next one. Every
client gets a bounded slice of each tick, however many connections and requests it has.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from shinar.errors import ProtocolViolation, StoreError
from shinar.phpmq.engine import BrokerEngine, DispatchForm, RequestRefused
from shinar.phpmq.engine.accounts import Account
from shinar.phpmq.server.access import Access
from shinar.phpmq.server.connection import Connection
from shinar.phpmq.server.events import EventLog
from shinar.phpmq.server.logins import FailedLogins
from shinar.phpmq.server.patience import overdue

log = logging.getLogger("shinar.phpmq")

#: Where the broker listens, and clients look for it, when nothing else is said.
DEFAULT_PORT: Final = 9100
#: Seconds of one tick that the requests of one client may take, and those of one connection in a row.
CLIENT_SLICE_S: Final = 0.005
CONNECTION_SLICE_S: Final = 0.002
#: A request cannot be stopped halfway. A client whose slice took longer than it should lets others go first
#: for as long as that was, and at most for this.
LONGEST_REST_S: Final = 0.1
#: Seconds between two rounds of looking for clients that take too long.
PATROL_S: Final = 0.5
#: Seconds between two rounds of forgetting old archived messages.
PRUNE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: int = DEFAULT_PORT
    #: Path of a Unix socket; then host and port mean nothing.
    unix: Path | None = None
    tls: ssl.SSLContext | None = None
    #: True: clients must say hello with a token.
    token: bool = False
    dispatch_form: DispatchForm = "legacy"


class Hub:
    def __init__(self, engine: BrokerEngine, access: Access, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.options = engine.options
        self.clock = engine.clock
        self.access = access
        self.store_id = engine.store.id.encode()
        self.version = f"shinar {_version()}"
        self.connections: set[Connection] = set()
        self.outgoing: set[Connection] = set()
        self.inbound_bytes = 0
        self.since_s = self.clock.monotonic_s()
        self.events = EventLog(self.clock)
        self.logins = FailedLogins()
        #: Set when not even a fresh start from the file works: the process should end.
        self.failed = asyncio.Event()
        self._line: dict[Account, deque[Connection]] = {}
        self._pruned_s = float("-inf")
        self._loop = loop
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._patrol: asyncio.TimerHandle | None = loop.call_later(PATROL_S, self._look_around)

    # -- connections

    def joined(self, connection: Connection) -> None:
        """If there are too many connections now, one that never spoke, or else an idle one, must go."""
        self.connections.add(connection)
        if len(self.connections) <= self.options.max_connections:
            return
        self.engine.totals.limit_reached("connections")
        others = [one for one in self.connections if one is not connection]
        silent = [one for one in others if not one.frames]
        idle = [one for one in others if one.idle]
        victim = min(silent or idle or [connection], key=lambda one: one.active_s)
        victim.cut_off("too many connections")
        self.connections.discard(victim)

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.outgoing.discard(connection)
        self._guarded(lambda: self._leave(connection))
        self.touch()

    def _leave(self, connection: Connection) -> None:
        for consumer in list(connection.consumers.values()):
            self.engine.dispatcher.stop_consuming(consumer)
        connection.consumers.clear()
        self.engine.dispatcher.leave(connection)

    def note_cut_off(self, peer: str, reason: Exception | str) -> None:
        kind = type(reason).__name__ if isinstance(reason, Exception) else str(reason)
        counts = self.engine.totals.cut_off
        counts[kind] = counts.get(kind, 0) + 1
        self.events.warn(f"client cut off ({kind})", f"client {peer} cut off: {reason}")

    def login_failed(self, connection: Connection) -> float | None:
        """Count and log it; seconds until it may be answered, None when it is not worth an answer."""
        self.engine.totals.failed_logins += 1
        self.events.warn("login failed", f"login of {connection.peer} failed: no token, or a wrong one")
        return self.logins.failed(connection.address, self.clock.monotonic_s())

    def loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio reports by itself: handshakes that fail, files that run out; clients can cause it."""
        error = context.get("exception")
        text = f"{context.get('message', 'error')}: {error!r}"
        if isinstance(error, OSError):
            self.events.warn("socket error", text)
        else:
            log.error("%s", text, exc_info=error)

    def wake(self, connection: Connection) -> None:
        """A client can take bytes again."""
        self.engine.wake(*connection.consumers, *(queue.name for queue in connection.waiting.values()))
        self.touch()

    # -- slices of time

    def line_up(self, connection: Connection) -> None:
        """A connection has requests to carry out."""
        if not connection.in_line:
            connection.in_line = True
            self._line.setdefault(connection.account, deque()).append(connection)
        self.touch()

    def _serve(self) -> None:
        """Give each client with requests its slice; its connections take turns."""
        line, self._line = self._line, {}
        for account, connections in line.items():
            now_s = self.clock.monotonic_s()
            until_s = now_s + CLIENT_SLICE_S
            if len(line) > 1 and now_s < account.rests_until_s:
                until_s = now_s
            while connections and now_s < until_s:
                connection = connections.popleft()
                connection.in_line = False
                self._guard(connection, min(until_s, now_s + CONNECTION_SLICE_S))
                now_s = self.clock.monotonic_s()
                if connection.has_work:
                    # Of the same client still, unless it said hello just now.
                    connections.append(connection)
                    connection.in_line = True
            account.rests_until_s = max(account.rests_until_s, now_s + min(now_s - until_s, LONGEST_REST_S))
            for connection in connections:
                connection.in_line = False
                self.line_up(connection)

    def finish(self, connection: Connection) -> None:
        """A connection is gone, but its last requests are here."""
        try:
            self._guarded(connection.finish)
        except (ProtocolViolation, RequestRefused) as exc:
            self.note_cut_off(connection.peer, exc)

    def _guard(self, connection: Connection, until_s: float) -> None:
        """Carry out requests; whatever is wrong with them ends this connection only."""
        try:
            self._guarded(lambda: connection.work(until_s))
        except (ProtocolViolation, RequestRefused) as exc:
            connection.cut_off(exc)

    # -- the tick

    def touch(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._tick)

    def commit(self) -> None:
        """One tick of the engine for everybody; what was promised leaves afterwards."""
        self._guarded(self.engine.tick)
        outgoing, self.outgoing = self.outgoing, set()
        for connection in outgoing:
            connection.flush()

    def _tick(self) -> None:
        self._planned = False
        self._serve()
        self.commit()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self.engine.next_wake_s()
        if wake_s == 0:
            self.touch()
        elif wake_s is not None:
            self._timer = self._loop.call_later(wake_s, self.touch)

    def _guarded(self, action: Callable[[], None]) -> None:
        """A store that fails has rolled back: nobody was promised anything, so everybody starts anew."""
        try:
            action()
        except (ProtocolViolation, RequestRefused):
            raise
        except StoreError as exc:
            log.error("the store failed, all clients are cut off: %s", exc)
            self._begin_anew()
        except Exception:
            # The outermost loop: a fault of ours must not leave half a request behind.
            log.exception("internal error, all clients are cut off")
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.engine.totals.store_failures += 1
        self.outgoing.clear()
        self._line.clear()
        try:
            self.engine.reload()
        except StoreError as exc:
            log.critical("the store cannot be opened again: %s", exc)
            self.failed.set()
        finally:
            for connection in list(self.connections):
                connection.leases.clear()
                connection.waiting.clear()
                connection.consumers.clear()
                connection.forget_requests()
                connection.abort()

    def _look_around(self) -> None:
        now_s = self.clock.monotonic_s()
        self.events.summarise()
        for connection in list(self.connections):
            reason = overdue(connection, self.options, now_s)
            if reason is not None:
                connection.cut_off(reason)
                continue
            connection.count_unsent()
            connection.go_on()
        keep_s = self.options.archive_keep_s
        if keep_s is not None and now_s - self._pruned_s >= PRUNE_S:
            self._pruned_s = now_s
            self.engine.upkeep.prune(keep_s)
            self.touch()
        self._patrol = self._loop.call_later(PATROL_S, self._look_around)

    def stop(self) -> None:
        for timer in (self._timer, self._patrol):
            if timer is not None:
                timer.cancel()


def _version() -> str:
    try:
        return version("shinar")
    except PackageNotFoundError:
        return "unknown"
