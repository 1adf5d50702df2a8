"""Shinar's own embedded broker as a process, for tests that stop and start it."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

from servers.process import Plan, ServerMissing, free_port, listens
from servers.tls import Certificates


def plan(home: Path, tls: Certificates | None) -> Plan:
    if tls:
        raise ServerMissing("its own tests have it by TLS")
    port = free_port()
    serve = ["broker", "serve", "--listen", f"127.0.0.1:{port}", "--data", str(home / "data")]
    return Plan(
        argv=[sys.executable, "-m", "shinar.cli.main", *serve],
        url=f"phpmq://127.0.0.1:{port}",
        port=port,
        version=version("shinar"),
        ready=partial(listens, port),
    )
