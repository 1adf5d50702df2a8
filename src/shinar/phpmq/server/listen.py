"""The server: listeners, connections, and the tick that commits for all of them at once.

Everything runs in one event loop thread, the store's commits included: a separate commit thread was
measured to cost more than it gives. Requests that arrive while a commit runs make up the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, ProtocolViolation, StoreError
from shinar.phpmq.protocol import Message
from shinar.phpmq.server import upkeep
from shinar.phpmq.server.access import Access
from shinar.phpmq.server.connection import Connection
from shinar.phpmq.server.engine import Engine
from shinar.phpmq.server.http import MetricsConnection
from shinar.phpmq.server.options import DispatchForm, Options, Refused
from shinar.phpmq.store import Store

log = logging.getLogger("shinar.phpmq")

#: Where the broker listens, and clients look for it, when nothing else is said.
DEFAULT_PORT: Final = 9100
#: Seconds between two rounds of looking for clients that take too long.
PATROL_S: Final = 0.5
#: Clients cut off between two rounds that are logged one by one.
LOGGED_CUTS: Final = 20
#: Seconds between two rounds of forgetting old archived messages.
PRUNE_S: Final = 60.0
#: Seconds a client has for its TLS handshake.
HANDSHAKE_S: Final = 10.0
#: Connections the kernel keeps for us while a commit runs.
BACKLOG: Final = 1024


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
    """What all connections share."""

    def __init__(self, engine: Engine, access: Access, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.options = engine.options
        self.clock = engine.clock
        self.access = access
        self.store_id = engine.store.id.encode()
        self.version = f"shinar {_version()}"
        self.browse_bytes = self.options.limits.max_payload_bytes // 4
        self.connections: set[Connection] = set()
        self.outgoing: set[Connection] = set()
        self.inbound_bytes = 0
        self.since_s = self.clock.monotonic_s()
        #: Set when not even a fresh start from the file works: the process should end.
        self.failed = asyncio.Event()
        self._pruned_s = float("-inf")
        #: Clients cut off since the last round of the patrol.
        self._cut_lately = 0
        self._loop = loop
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._patrol: asyncio.TimerHandle | None = loop.call_later(PATROL_S, self._look_around)

    def joined(self, connection: Connection) -> None:
        if len(self.connections) >= self.options.max_connections:
            silent = min(
                (one for one in self.connections if not one.frames), key=lambda one: one.since_s, default=None
            )
            victim = silent or connection
            victim.cut_off("too many connections")
            self.connections.discard(victim)
            if victim is connection:
                return
        self.connections.add(connection)

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.outgoing.discard(connection)
        self._guarded(lambda: self._leave(connection))

    def _leave(self, connection: Connection) -> None:
        for consumer in list(connection.consumers.values()):
            self.engine.stop_consuming(consumer)
        connection.consumers.clear()
        self.engine.leave(connection)

    def guard(self, connection: Connection, messages: list[Message]) -> None:
        """Carry out requests; whatever is wrong with them ends this connection only."""
        try:
            self._guarded(lambda: connection.handle(messages))
        except (ProtocolViolation, Refused) as exc:
            connection.cut_off(exc)

    def wake(self, connection: Connection) -> None:
        """A client can take bytes again."""
        for consumer in connection.consumers.values():
            self.engine.wake(consumer.queue)
        for queue in connection.waiting.values():
            self.engine.wake(queue)
        self.touch()

    def note_cut_off(self, peer: str, reason: Exception | str) -> None:
        """Count it, and log it; of a flood only the first few each second."""
        kind = type(reason).__name__ if isinstance(reason, Exception) else str(reason)
        counts = self.engine.totals.cut_off
        counts[kind] = counts.get(kind, 0) + 1
        self._cut_lately += 1
        if self._cut_lately <= LOGGED_CUTS:
            log.warning("client %s cut off: %s", peer, str(reason))

    def touch(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._tick)

    def commit(self) -> None:
        """One tick of the engine for everybody; what was promised leaves afterwards."""
        self._guarded(self.engine.tick, touch=False)
        outgoing, self.outgoing = self.outgoing, set()
        for connection in outgoing:
            connection.flush()

    def _tick(self) -> None:
        self._planned = False
        self.commit()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self.engine.next_wake_s()
        if wake_s == 0:
            self.touch()
        elif wake_s is not None:
            self._timer = self._loop.call_later(wake_s, self.touch)

    def _guarded(self, action: Callable[[], None], touch: bool = True) -> None:
        """A store that fails has rolled back: nobody was promised anything, so everybody starts anew."""
        try:
            action()
        except (ProtocolViolation, Refused):
            raise
        except StoreError as exc:
            log.error("the store failed, all clients are cut off: %s", exc)
            self._begin_anew()
        except Exception:
            # The outermost loop: a fault of ours must not leave half a request behind.
            log.exception("internal error, all clients are cut off")
            self._begin_anew()
        if touch:
            self.touch()

    def _begin_anew(self) -> None:
        self.engine.totals.store_failures += 1
        self.outgoing.clear()
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
                connection.holding = 0
                connection.abort()

    def _look_around(self) -> None:
        now_s = self.clock.monotonic_s()
        if self._cut_lately > LOGGED_CUTS:
            log.warning("%d more clients cut off", self._cut_lately - LOGGED_CUTS)
        self._cut_lately = 0
        for connection in list(self.connections):
            reason = connection.overdue(now_s)
            if reason is not None:
                connection.cut_off(reason)
        keep_s = self.options.archive_keep_s
        if keep_s is not None and now_s - self._pruned_s >= PRUNE_S:
            self._pruned_s = now_s
            self.engine.jobs.append(upkeep.prune(self.engine, keep_s))
            self.touch()
        self._patrol = self._loop.call_later(PATROL_S, self._look_around)

    def stop(self) -> None:
        for timer in (self._timer, self._patrol):
            if timer is not None:
                timer.cancel()


class Server:
    """A store, served on listeners. `start` and `stop` belong to one event loop."""

    def __init__(
        self, store: Store, listeners: tuple[Listener, ...], *, options: Options | None = None,
        access: Access | None = None, clock: Clock = SYSTEM, metrics: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.listeners = listeners
        self.access = access or Access()
        self._store = store
        self._options = options or Options()
        self._clock = clock
        #: Host and port of the Prometheus endpoint; None for none.
        self._metrics = metrics
        self._servers: list[asyncio.Server] = []
        self._http: asyncio.Server | None = None
        self.hub: Hub

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.hub = Hub(Engine(self._store, self._options, self._clock), self.access, loop)
        try:
            for listener in self.listeners:
                self._servers.append(await self._listen(loop, listener))
            if self._metrics is not None:
                self._http = await self._serve_metrics(loop, *self._metrics)
        except ConfigError:
            await self.stop()
            raise

    async def _serve_metrics(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> asyncio.Server:
        try:
            return await loop.create_server(lambda: MetricsConnection(self.hub), host, port)
        except OSError as exc:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {exc.strerror}", setting="--metrics"
            ) from None

    async def _listen(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> asyncio.Server:
        def accepted() -> Connection:
            return Connection(self.hub, listener)

        try:
            if listener.unix is not None:
                return await self._listen_unix(loop, accepted, listener.unix)
            return await loop.create_server(
                accepted, listener.host, listener.port, backlog=BACKLOG, ssl=listener.tls,
                ssl_handshake_timeout=HANDSHAKE_S if listener.tls else None,
            )  # fmt: skip
        except OSError as exc:
            where = str(listener.unix or f"{listener.host}:{listener.port}")
            raise ConfigError(f"cannot listen on {where}: {exc.strerror}", setting="--listen") from None

    async def _listen_unix(
        self, loop: asyncio.AbstractEventLoop, accepted: Callable[[], Connection], path: Path
    ) -> asyncio.Server:
        _remove_stale(path)
        before = os.umask(0o177)  # readable by its owner only, from its first moment
        try:
            return await loop.create_unix_server(accepted, str(path), backlog=BACKLOG)
        finally:
            os.umask(before)

    @property
    def urls(self) -> list[str]:
        """Where clients find this server, one URL for each listener."""
        found = []
        for listener, server in zip(self.listeners, self._servers, strict=True):
            if listener.unix is not None:
                found.append(f"phpmq+unix://{listener.unix.absolute()}")
                continue
            host, port = server.sockets[0].getsockname()[:2]
            found.append(
                f"phpmq{'s' if listener.tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
            )
        return found

    async def stop(self) -> None:
        """Refuse new clients, commit, let the last replies leave, hang up, close the store."""
        for server in (*self._servers, *([self._http] if self._http else [])):
            server.close()
        self.hub.commit()
        for connection in list(self.hub.connections):
            connection.say_goodbye()
        for _ in range(int(self._options.stop_s / 0.05)):
            if not self.hub.connections:
                break
            await asyncio.sleep(0.05)
        for connection in list(self.hub.connections):
            connection.abort()
        await asyncio.sleep(0)
        self.hub.stop()
        self.hub.engine.tick()
        self._store.close()
        for listener in self.listeners:
            if listener.unix is not None:
                listener.unix.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """A socket file nobody listens on is left over from a crash; one somebody listens on is not ours."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)


def _version() -> str:
    try:
        return version("shinar")
    except PackageNotFoundError:
        return "unknown"
