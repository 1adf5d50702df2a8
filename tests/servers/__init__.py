"""Real brokers for the tests: started once per run on loopback, stopped at exit. Knows nothing of Shinar.

Import it as `servers` (pytest puts `tests/` on the path), never as `tests.servers`: the registry below must
exist once.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from urllib.parse import quote

from servers.process import Server, ServerBroken, ServerMissing, new_home

__all__ = [
    "NAMES",
    "Server",
    "ServerBroken",
    "ServerMissing",
    "acquire",
    "start_private",
    "start_with_login",
    "summary",
    "with_queue",
]

#: Every broker the tests can ask for; each has a module of that name under `servers.recipes`.
NAMES = (
    "redis",
    "rabbitmq",
    "postgresql",
    "mariadb",
    "elasticmq",
    "kafka",
    "artemis",
    "pulsar",
    "servicebus",
)


@dataclass(frozen=True, slots=True)
class Line:
    """What one server was in this run: for the summary at the end."""

    name: str
    version: str = ""
    note: str = ""
    missing: str = ""


_lock = threading.Lock()
_running: dict[tuple[str, bool], Server] = {}
#: Not asked for twice: a server that does not start would cost its time limit in every test.
_failed: dict[tuple[str, bool], ServerMissing | ServerBroken] = {}


def acquire(name: str, *, tls: bool = False) -> Server:
    """The run's shared server of that name, started now if this is the first call.

    A test that stopped, killed or froze it may leave it so: here it comes up again.
    """
    if name not in NAMES:
        raise LookupError(f"no server {name!r}; there are {', '.join(NAMES)}")
    key = (name, tls)
    with _lock:
        if failure := _failed.get(key):
            raise type(failure)(failure.reason)
        server = _running.get(key)
        if server is None:
            try:
                server = start_private(name, tls=tls)
            except (ServerMissing, ServerBroken) as exc:
                _failed[key] = exc
                raise
            _running[key] = server
        if server.alive:
            server.resume()
        else:
            server.start()
        return server


def start_private(name: str, *, tls: bool = False) -> Server:
    """A server of one's own, for a test that would disturb the others. The caller may `stop()` it."""
    recipe = importlib.import_module(f"servers.recipes.{name}")
    home = new_home(f"{name}-tls" if tls else name)
    certificates = None
    if tls:
        # Late: the package behind it is a test dependency that plain servers do not need.
        from servers.tls import make_certificates

        certificates = make_certificates(home / "tls")
    plan = recipe.plan(home, certificates)
    server = Server(name=name, home=home, plan=plan, tls=certificates)
    server.start()
    return server


def start_with_login(name: str) -> Server:
    """A server of one's own that asks for credentials, where the shared one does not: kafka, pulsar."""
    home = new_home(f"{name}-login")
    plan = importlib.import_module(f"servers.recipes.{name}").plan_with_login(home)
    server = Server(name=name, home=home, plan=plan)
    server.start()
    return server


def with_queue(url: str, queue: str) -> str:
    """The URL of one queue on a server."""
    base, mark, query = url.partition("?")
    return f"{base.rstrip('/')}/{quote(queue, safe='')}{mark}{query}"


def summary() -> list[Line]:
    """One line per server asked for in this run."""
    lines = [
        Line(f"{name} (TLS)" if tls else name, server.version, server.note)
        for (name, tls), server in _running.items()
    ]
    lines += [
        Line(f"{name} (TLS)" if tls else name, missing=exc.reason) for (name, tls), exc in _failed.items()
    ]
    return sorted(lines, key=lambda line: line.name)
