"""Is the worker connected, and is it consuming? And the small HTTP endpoint that tells so. The HTTP server is
imported when an endpoint is opened."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shinar.clock import Clock
from shinar.observe import Metrics

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

#: A worker that has not asked its queue for this long is not consuming, connected or not.
STALE_S: Final = 60.0


class Health:
    """Written by the worker's loop, read by the endpoint's threads; single assignments only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connected = False
        self._polled_s: float | None = None
        self._received_s: float | None = None

    def connected(self, yes: bool) -> None:
        self._connected = yes

    def polled(self, received: int) -> None:
        self._polled_s = self._clock.monotonic_s()
        if received:
            self._received_s = self._polled_s

    @property
    def ready(self) -> bool:
        return self._connected and self._age(self._polled_s) < STALE_S

    def status(self) -> dict[str, Any]:
        return {
            "connected": self._connected,
            "consuming": self.ready,
            "last_poll_age_s": _rounded(self._age(self._polled_s)),
            "last_message_age_s": _rounded(self._age(self._received_s)),
        }

    def _age(self, since_s: float | None) -> float:
        return float("inf") if since_s is None else self._clock.monotonic_s() - since_s


def _rounded(age_s: float) -> float | None:
    return None if age_s == float("inf") else round(age_s, 3)


class Endpoint:
    """/metrics, /healthz (the process lives) and /readyz (connected and consuming). On loopback unless
    another address is given: there is no authentication."""

    def __init__(self, metrics: Metrics, health: Health, host: str = "127.0.0.1", port: int = 0) -> None:
        import socket
        from http.server import ThreadingHTTPServer

        class HealthServer(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        def answer(path: str) -> tuple[int, str, str]:
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4", metrics.render()
            if path in ("/healthz", "/readyz"):
                code = 200 if path == "/healthz" or health.ready else 503
                return code, "application/json", json.dumps(health.status())
            return 404, "text/plain", "try /metrics, /healthz or /readyz\n"

        self._server = HealthServer((host, port), _handler(answer))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="shinar-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(answer: Callable[[str], tuple[int, str, str]]) -> type[BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class HealthRequests(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            code, kind, text = answer(self.path.partition("?")[0])
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """A scrape every few seconds is not news."""

    return HealthRequests
