"""GET /metrics and /health, and nothing else: enough HTTP for Prometheus and a load balancer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from shinar.phpmq.server import figures

if TYPE_CHECKING:
    from shinar.phpmq.server.listen import Hub

#: A request line and headers longer than this are not from Prometheus.
MAX_REQUEST_BYTES: Final = 8192
#: Seconds a client has for its request.
REQUEST_S: Final = 10.0


class MetricsConnection(asyncio.Protocol):
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._request += data
        if b"\r\n\r\n" not in self._request and len(self._request) <= MAX_REQUEST_BYTES:
            return
        if self._transport is not None:
            self._transport.write(self._answer())
            self._transport.close()

    def _answer(self) -> bytes:
        path = self._request.split(b" ")[1:2]
        if not self._request.startswith(b"GET ") or path not in ([b"/metrics"], [b"/health"]):
            return _response(b"404 Not Found", b"GET /metrics or /health\n")
        if path == [b"/health"]:
            return _response(b"200 OK", b"ok\n")
        return _response(b"200 OK", figures.prometheus(self._hub).encode())


def _response(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
    )
