"""Redis (or Valkey), with the append-only file so that a restart keeps its data."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

from servers.process import Plan, ServerMissing, find_program, free_port, talk
from servers.tls import Certificates, talk_tls


def plan(home: Path, tls: Certificates | None) -> Plan:
    program = find_program("redis-server", "valkey-server")
    if program is None:
        raise ServerMissing("redis-server is not installed; run python tests/servers/install.py redis")
    port = free_port()
    probe = partial(talk, port, b"PING\r\n", b"+PONG")
    listen = ["--port", str(port)]
    if tls:
        probe = partial(talk_tls, port, tls, b"PING\r\n", b"+PONG")
        listen = ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "optional"]
        listen += ["--tls-cert-file", str(tls.certificate), "--tls-key-file", str(tls.key)]
        listen += ["--tls-ca-cert-file", str(tls.ca)]
    return Plan(
        argv=[
            program,
            *listen,
            *("--bind", "127.0.0.1"),
            *("--dir", str(home)),
            *("--save", ""),
            *("--appendonly", "yes"),
            *("--appendfsync", "everysec"),
            *("--daemonize", "no"),
        ],
        url=f"redis{'s' if tls else ''}://127.0.0.1:{port}/0",
        port=port,
        version=version(program),
        ready=probe,
    )


def version(program: str) -> str:
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", text)
    return found[1] if found else text.strip()
