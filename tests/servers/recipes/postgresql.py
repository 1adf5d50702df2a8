"""PostgreSQL with its default durability (fsync on), small memory, password authentication over TCP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from servers.process import Plan, ServerBroken, ServerMissing, clean_env, find_program, free_port, give_to
from servers.tls import Certificates

USER = "shinar"
PASSWORD = "secret"
#: The server refuses to run as root; the package makes this user.
SYSTEM_USER = "postgres"


def plan(home: Path, tls: Certificates | None) -> Plan:
    programs = find_programs()
    if programs is None:
        raise ServerMissing("PostgreSQL is not installed; run python tests/servers/install.py postgresql")
    port = free_port()
    give_to(SYSTEM_USER, home)
    data = home / "data"
    initialise(programs, home, data)
    argv = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(home)]
    for setting in settings(home, tls):
        argv += ["-c", setting]
    return Plan(
        argv=argv,
        user=SYSTEM_USER,
        url=f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/{USER}",
        port=port,
        version=version(programs),
        # SIGINT is PostgreSQL's "fast" shutdown; SIGTERM would wait for clients to leave.
        stop_signal=signal.SIGINT,
        ready=lambda: accepts(programs, port),
        after_start=lambda: create_database(programs, home, port),
    )


def find_programs() -> Path | None:
    """The directory of `initdb` and `postgres`; Debian keeps it off the path."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parent.parent.name)
    )
    if found:
        return found[-1].parent
    initdb = find_program("initdb")
    return Path(initdb).resolve().parent if initdb else None


def initialise(programs: Path, home: Path, data: Path) -> None:
    password = home / "password"
    password.write_text(PASSWORD)
    give_to(SYSTEM_USER, password)
    command = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-E", "UTF8", "--no-sync"]
    command += ["--auth=scram-sha-256", f"--pwfile={password}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **run_as(home))


def settings(home: Path, tls: Certificates | None) -> list[str]:
    chosen = ["listen_addresses=127.0.0.1", "shared_buffers=32MB", "max_connections=60", "max_wal_size=256MB"]
    if tls:
        # The server wants a key that only its own user can read.
        key = home / "server.key"
        key.write_bytes(tls.key.read_bytes())
        key.chmod(0o600)
        give_to(SYSTEM_USER, key)
        chosen += ["ssl=on", f"ssl_cert_file={tls.certificate}", f"ssl_key_file={key}"]
        chosen += [f"ssl_ca_file={tls.ca}"]
    return chosen


def accepts(programs: Path, port: int) -> bool:
    command = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command, check=False).returncode == 0


def create_database(programs: Path, home: Path, port: int) -> None:
    command = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, USER]
    done = subprocess.run(command, check=False, capture_output=True, text=True, **run_as(home))
    if done.returncode and "already exists" not in done.stderr:
        raise ServerBroken(f"createdb: {done.stderr}")


def run_as(home: Path) -> dict:
    as_user = {"user": SYSTEM_USER, "group": SYSTEM_USER} if os.geteuid() == 0 else {}
    return {"env": {**clean_env(home), "PGPASSWORD": PASSWORD}, "cwd": home, **as_user}


def version(programs: Path) -> str:
    text = subprocess.run([programs / "postgres", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+", text)
    return found[0] if found else text.strip()
