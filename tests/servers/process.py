"""A server process: start, wait until it answers, stop, kill, start again. Knows no particular server.

Nothing outlives the test run: a small reaper process (reaper.py) ends every process group when this process
is gone, however it went.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.tls import Certificates

#: Below the kernel's range for outgoing connections (32768 up on Linux): while a server is stopped
#: nobody else is given its port.
PORTS = range(20_000, 32_000)
#: Time for a server to answer after its start; wide, because the machine may be busy.
READY_S = 150.0
#: Time for a polite stop before SIGKILL.
STOP_S = 30.0
#: The same at the end of the run, when nobody wants the data any more.
EXIT_S = 5.0
POLL_S = 0.05
LOG_TAIL = 3_000


class ServerMissing(RuntimeError):
    """The server is not installed here (never: installed but broken, that is a failure)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ServerBroken(RuntimeError):
    """The server is installed, but does not start; the text ends with what it said."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run one server. `ready` raises OSError or returns False until the server answers."""

    argv: Sequence[str]
    #: A Shinar URL without a queue.
    url: str
    port: int
    version: str
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    #: System user to run as when we are root (some servers refuse root).
    user: str | None = None
    #: Non-empty for a stand-in: what it is, and what it cannot show.
    note: str = ""
    #: Whether its data outlive a restart.
    durable: bool = True
    #: For a server that chooses its own port: where it writes its URL, at each start anew.
    url_file: Path | None = None
    #: Ends the server politely.
    stop_signal: signal.Signals = signal.SIGTERM
    #: A second program the server needs while it runs (Erlang's port mapper).
    companion: Sequence[str] = ()
    #: Runs after each start (creates users, databases); must be idempotent.
    after_start: Callable[[], None] = lambda: None


class Server:
    """One server. `stop` and `start` keep its port and data; `kill` is a crash (SIGKILL)."""

    def __init__(self, name: str, home: Path, plan: Plan, tls: Certificates | None = None) -> None:
        self.name = name
        self.home = home
        self.tls = tls
        self._plan = plan
        self._processes: list[subprocess.Popen[bytes]] = []

    def __repr__(self) -> str:
        return f"<{self.name} {self.version} on port {self.port}, {'up' if self.alive else 'down'}>"

    @property
    def version(self) -> str:
        return self._plan.version

    @property
    def note(self) -> str:
        return self._plan.note

    @property
    def durable(self) -> bool:
        """Whether its data outlive a restart; False for some stand-ins."""
        return self._plan.durable

    @property
    def url(self) -> str:
        """A Shinar URL without a queue; see `with_queue`."""
        return self._plan.url_file.read_text() if self._plan.url_file else self._plan.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2]) if self._plan.url_file else self._plan.port

    @property
    def pid(self) -> int:
        if not self._processes:
            raise RuntimeError(f"{self.name} is not running")
        return self._processes[0].pid

    @property
    def alive(self) -> bool:
        return bool(self._processes) and self._processes[0].poll() is None

    @property
    def log(self) -> str:
        """What the server printed, all starts together."""
        path = self.home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start (again) and return when it answers. Does nothing when it is up."""
        if self.alive:
            return
        self._end(signal.SIGKILL)
        if self._plan.url_file:
            self._plan.url_file.unlink(missing_ok=True)
        if self._plan.companion:
            self._launch(self._plan.companion)
        # The main process stands first in the list, the companion behind it.
        self._launch(self._plan.argv)
        self._await_ready()
        self._plan.after_start()

    def stop(self) -> None:
        """A polite end: the server writes down what it must."""
        self._end(self._plan.stop_signal)

    #: For contextlib.closing.
    close = stop

    def kill(self) -> None:
        """A crash: SIGKILL to the whole process group, no chance to flush."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def _launch(self, argv: Sequence[str]) -> None:
        as_user: dict[str, str | int] = {}
        if self._plan.user and os.geteuid() == 0:
            entry = pwd.getpwnam(self._plan.user)
            as_user = {"user": entry.pw_uid, "group": entry.pw_gid}
        with (self.home / "server.log").open("ab") as log:
            process = subprocess.Popen(
                argv,
                cwd=self.home,
                env={**clean_env(self.home), **self._plan.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **as_user,  # type: ignore[call-overload]  # two keywords or none
            )
        self._processes.insert(0, process)
        _run.register(process)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._processes[0].poll() is not None:
                raise ServerBroken(
                    f"{self.name} ended with status {self._processes[0].returncode}:\n{self._tail()}"
                )
            with contextlib.suppress(OSError):
                if self._plan.ready():
                    return
            time.sleep(POLL_S)
        self.kill()
        raise ServerBroken(f"{self.name} does not answer after {READY_S:g} s:\n{self._tail()}")

    def _tail(self) -> str:
        return self.log[-LOG_TAIL:]

    def _end(self, sign: signal.Signals) -> None:
        for process in self._processes:
            end_group(process, sign)
            _run.forget(process)
        self._processes.clear()


def end_group(process: subprocess.Popen[bytes], sign: signal.Signals) -> None:
    """Signal the leader, give it time, then make sure that nothing of its group is left."""
    if process.poll() is None:
        if sign is signal.SIGKILL:
            _signal_group(process.pid, sign)
        else:
            # A frozen process could not react.
            _signal_group(process.pid, signal.SIGCONT)
            process.send_signal(sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(pgid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, sign)


def clean_env(home: Path) -> dict[str, str]:
    """What a server may see of our environment: no proxy, no credentials, nothing of the developer's."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "TZ") if name in os.environ}
    # Debian keeps servers in sbin, which is not on every user's path.
    kept["PATH"] = f"{kept.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    return {**kept, "HOME": str(home), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def find_program(*names: str) -> str | None:
    path = clean_env(Path("/"))["PATH"]
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def free_port() -> int:
    """A port nobody listens on, and not given twice in this run."""
    for _ in range(1_000):
        port = random.SystemRandom().choice(PORTS)
        if port in _run.ports:
            continue
        with socket.socket() as probe:
            # As servers bind: a port in TIME_WAIT is fine.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                _run.ports.add(port)
                return port
    raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")


def talk(port: int, say: bytes, expect: bytes) -> bool:
    """Readiness probe: does the server on that port answer `say` with something beginning with `expect`?"""
    with socket.create_connection(("127.0.0.1", port), timeout=2.0) as link:
        link.sendall(say)
        return link.recv(len(expect)).startswith(expect)


def listens(port: int) -> bool:
    """Readiness probe for a server that is ready when it listens."""
    with socket.create_connection(("127.0.0.1", port), timeout=2.0):
        return True


def new_home(name: str) -> Path:
    """A fresh data directory, gone at the end of the run."""
    home = _run.directory() / name
    number = 1
    while home.exists():
        number += 1
        home = _run.directory() / f"{name}-{number}"
    home.mkdir(mode=0o755)
    return home


def give_to(user: str, path: Path) -> None:
    """Let a server's own system user write there (only root needs this)."""
    if os.geteuid() == 0:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


class _Run:
    """What this process started, and the reaper that outlives it by a moment."""

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self._leaders: set[subprocess.Popen[bytes]] = set()
        self._directory: Path | None = None
        self._owner = os.getpid()
        self._reaper: subprocess.Popen[bytes] | None = None

    def directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="shinar-servers-"))
            # Servers that run as their own user must reach their directories.
            self._directory.chmod(0o755)
            self._reaper = subprocess.Popen(
                [sys.executable, "-S", str(Path(__file__).with_name("reaper.py")), str(self._directory)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            atexit.register(self.close)
        return self._directory

    def register(self, leader: subprocess.Popen[bytes]) -> None:
        self._leaders.add(leader)
        self._tell(f"+{leader.pid}\n")

    def forget(self, leader: subprocess.Popen[bytes]) -> None:
        self._leaders.discard(leader)
        self._tell(f"-{leader.pid}\n")

    def close(self) -> None:
        """End everything. A forked child inherits the atexit hook but owns nothing."""
        if os.getpid() != self._owner or self._reaper is None:
            return
        assert self._reaper.stdin is not None
        # All at once: their ends overlap. Politely: a killed PostgreSQL leaves shared memory behind.
        for leader in self._leaders:
            _signal_group(leader.pid, signal.SIGCONT)
            leader.terminate()
        deadline = time.monotonic() + EXIT_S
        for leader in self._leaders:
            with contextlib.suppress(subprocess.TimeoutExpired):
                leader.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(leader.pid, signal.SIGKILL)
            leader.wait()
        self._reaper.stdin.close()
        self._reaper.wait()
        self._reaper = None

    def _tell(self, line: str) -> None:
        assert self._reaper is not None
        assert self._reaper.stdin is not None
        self._reaper.stdin.write(line.encode())
        self._reaper.stdin.flush()


_run = _Run()
