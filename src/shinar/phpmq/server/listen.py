"""The server: a store on listeners, from `start` to `stop`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError
from shinar.phpmq.engine import BrokerEngine, Options
from shinar.phpmq.server.access import Access
from shinar.phpmq.server.connection import Connection
from shinar.phpmq.server.hub import Hub, Listener
from shinar.phpmq.server.metrics_endpoint import MetricsEndpoint, MetricsListener
from shinar.phpmq.server.sockets import remove_stale
from shinar.phpmq.store import BrokerStore

#: Seconds a client has for its TLS handshake.
HANDSHAKE_S: Final = 10.0
#: Connections the kernel keeps for us while a commit runs.
BACKLOG: Final = 1024


class Server:
    """A store, served on listeners. `start` and `stop` belong to one event loop."""

    def __init__(
        self, store: BrokerStore, listeners: tuple[Listener, ...], *, options: Options | None = None,
        access: Access | None = None, clock: Clock = SYSTEM, metrics: MetricsListener | None = None,
    ) -> None:  # fmt: skip
        self.listeners = listeners
        self.access = access or Access()
        self._store = store
        self._options = options or Options()
        self._clock = clock
        self._metrics = metrics
        self._servers: list[asyncio.Server] = []
        self._metrics_server: asyncio.Server | None = None
        self.hub: Hub

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.hub = Hub(BrokerEngine(self._store, self._options, self._clock), self.access, loop)
        loop.set_exception_handler(self.hub.loop_error)
        try:
            for listener in self.listeners:
                self._servers.append(await self._listen(loop, listener))
            if self._metrics is not None:
                self._metrics_server = await self._serve_metrics(loop, self._metrics)
        except ConfigError:
            await self.stop()
            raise

    async def _serve_metrics(
        self, loop: asyncio.AbstractEventLoop, listener: MetricsListener
    ) -> asyncio.Server:
        endpoint = MetricsEndpoint(self.hub, listener)
        try:
            return await loop.create_server(endpoint.accept, listener.host, listener.port)
        except OSError as exc:
            raise ConfigError(
                f"cannot listen on {listener.host}:{listener.port}: {exc.strerror}", setting="--metrics"
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
        remove_stale(path)
        before = os.umask(0o177)  # readable by its owner only, from its first moment
        try:
            return await loop.create_unix_server(accepted, str(path), backlog=BACKLOG)
        finally:
            os.umask(before)

    @property
    def metrics_port(self) -> int:
        """Where the metrics are served; 0 when they are not."""
        if self._metrics_server is None:
            return 0
        port: int = self._metrics_server.sockets[0].getsockname()[1]
        return port

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
        for server in (*self._servers, *([self._metrics_server] if self._metrics_server else [])):
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
