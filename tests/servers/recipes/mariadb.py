"""MariaDB with its default durability, small memory, one user with a password."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from functools import partial
from pathlib import Path

from servers.process import Plan, ServerBroken, ServerMissing, clean_env, find_program, free_port, give_to
from servers.tls import Certificates

USER = "shinar"
PASSWORD = "secret"
SYSTEM_USER = "mysql"


def plan(home: Path, tls: Certificates | None) -> Plan:
    program, install = find_program("mariadbd"), find_program("mariadb-install-db")
    if program is None or install is None:
        raise ServerMissing("mariadbd is not installed; run python tests/servers/install.py mariadb")
    port = free_port()
    give_to(SYSTEM_USER, home)
    data = home / "data"
    initialise(install, home, data)
    argv = [
        program,
        "--no-defaults",
        f"--datadir={data}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--socket={home / 'sock'}",
        f"--pid-file={home / 'pid'}",
        f"--init-file={home / 'init.sql'}",
        "--character-set-server=utf8mb4",
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=32M",
        "--max-connections=60",
        "--skip-name-resolve",
    ]
    if tls:
        argv += [f"--ssl-ca={tls.ca}", f"--ssl-cert={tls.certificate}", f"--ssl-key={copy_key(home, tls)}"]
    return Plan(
        argv=argv,
        user=SYSTEM_USER,
        url=f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{USER}",
        port=port,
        version=version(program),
        ready=partial(greets, port),
    )


def initialise(install: str, home: Path, data: Path) -> None:
    (home / "init.sql").write_text(
        f"CREATE DATABASE IF NOT EXISTS {USER};\n"
        f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
        f"GRANT ALL ON *.* TO '{USER}'@'%';\n"
    )
    command = [install, "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=socket"]
    command += ["--skip-test-db", "--skip-name-resolve"]
    as_user = {"user": SYSTEM_USER, "group": SYSTEM_USER} if os.geteuid() == 0 else {}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=clean_env(home), cwd=home, **as_user
    )
    if done.returncode:
        raise ServerBroken(f"mariadb-install-db: {done.stdout}\n{done.stderr}")


def copy_key(home: Path, tls: Certificates) -> Path:
    key = home / "server.key"
    key.write_bytes(tls.key.read_bytes())
    key.chmod(0o600)
    give_to(SYSTEM_USER, key)
    return key


def greets(port: int) -> bool:
    # Behind the packet's 4-byte header stands the protocol version, 10 since ever.
    with socket.create_connection(("127.0.0.1", port), timeout=2.0) as link:
        greeting = link.recv(5)
    return len(greeting) == 5 and greeting[4] == 10


def version(program: str) -> str:
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", text)
    return found[0] if found else text.strip()
