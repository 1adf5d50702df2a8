"""GET /metrics and /health, and nothing else: enough HTTP for Prometheus and a load balancer.

The text is built in steps between ticks, kept for a moment and given to everybody who asks meanwhile, so that
scrapes cost the broker's clients next to nothing however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

from shinar.phpmq.server import metrics

if TYPE_CHECKING:
    from shinar.phpmq.server.hub import Hub

#: A request line and headers longer than this are not from Prometheus.
MAX_REQUEST_BYTES: Final = 8192
#: Seconds a client has for its request and for reading the answer.
REQUEST_S: Final = 10.0
#: Seconds for which a text is given out again.
KEPT_S: Final = 1.0
#: Queues or lines looked at in one step.
STEP: Final = 200
#: Clients of this endpoint at a time; more are hung up on.
MAX_CLIENTS: Final = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsListener:
    host: str = "127.0.0.1"
    #: 0 takes a free one.
    port: int = 0
    #: True: `Authorization: Bearer` with a token that may administer the broker is required for /metrics.
    token: bool = False


class MetricsEndpoint:
    def __init__(self, hub: Hub, listener: MetricsListener) -> None:
        self._hub = hub
        self._listener = listener
        self._text = b""
        self._built_s = float("-inf")
        self._building: asyncio.Task[bytes] | None = None
        self.clients: set[MetricsConnection] = set()

    def accept(self) -> MetricsConnection:
        return MetricsConnection(self)

    async def text(self) -> bytes:
        if self._hub.clock.monotonic_s() - self._built_s < KEPT_S:
            return self._text
        if self._building is None:
            self._building = asyncio.ensure_future(self._build())
        return await self._building

    def allows(self, headers: list[bytes]) -> bool:
        if not self._listener.token:
            return True
        for line in headers:
            name, _, value = line.partition(b":")
            kind, _, token = value.strip().partition(b" ")
            if name.strip().lower() == b"authorization" and kind.lower() == b"bearer":
                rights = self._hub.access.rights_of(token.strip().decode("utf-8", "replace"))
                return rights is not None and rights.admin
        return False

    async def _build(self) -> bytes:
        """Queues may come and go between two steps; what is there is counted as it is then."""
        rows = metrics.of_queues(self._hub.engine, lambda _: True)
        queues = [row for row in await _in_steps(rows) if row is not None]
        parts = await _in_steps(metrics.prometheus(self._hub, queues))
        self._text = ("\n".join(parts) + "\n").encode()
        self._built_s = self._hub.clock.monotonic_s()
        self._building = None
        return self._text


class MetricsConnection(asyncio.Protocol):
    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._endpoint.clients) >= MAX_CLIENTS:
            self._transport.abort()
            return
        self._endpoint.clients.add(self)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.clients.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if b"\r\n\r\n" not in self._request and len(self._request) <= MAX_REQUEST_BYTES:
            return
        if self._answering is None and self._transport is not None:
            self._transport.pause_reading()
            self._answering = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        answer = await self._answer_to(self._request[:MAX_REQUEST_BYTES])
        if self._transport is not None:
            self._transport.write(answer)
            self._transport.close()

    async def _answer_to(self, request: bytes) -> bytes:
        line, *headers = request.split(b"\r\n")
        match line.split(b" "):
            case [b"GET", b"/health", *_]:
                return _response(b"200 OK", b"ok\n")
            case [b"GET", b"/metrics", *_]:
                if not self._endpoint.allows(headers):
                    return _response(b"401 Unauthorized", b"Authorization: Bearer TOKEN is required\n")
                return _response(b"200 OK", await self._endpoint.text())
            case _:
                return _response(b"404 Not Found", b"GET /metrics or /health\n")


async def _in_steps(values: Iterator[T]) -> list[T]:
    """All values, with a break for the broker's clients after every few of them."""
    found: list[T] = []
    while page := list(islice(values, STEP)):
        found += page
        await asyncio.sleep(0)
    return found


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
    )
