"""Our stand-in for Azure Service Bus, which only its vendor runs; servicebus_standin.py says its limits."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

from servers.process import Plan, ServerMissing, free_port, listens
from servers.tls import Certificates

#: The program itself; it knows nothing of this package.
PROGRAM = Path(__file__).resolve().parent.parent / "servicebus_standin.py"
#: Short, so that tests of lost locks need not wait a minute.
LOCK_S = 8


def plan(home: Path, tls: Certificates | None, *options: str) -> Plan:
    if tls:
        raise ServerMissing("the stand-in has no TLS")
    port = free_port()
    return Plan(
        argv=[sys.executable, str(PROGRAM), "--port", str(port), "--lock", str(LOCK_S), *options],
        url=f"servicebus://127.0.0.1:{port}?emulator=1",
        port=port,
        version=f"stand-in on qpid-proton {version('python-qpid-proton')}, SDK {version('azure-servicebus')}",
        durable=False,
        note="stands in for Azure Service Bus",
        ready=partial(listens, port),
    )
