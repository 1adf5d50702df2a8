"""`shinar pipeline run` as a process to be killed, alone or on a standalone cluster from the pip package."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from servers.process import free_port

HOME = Path(pyspark.__file__).parent
PACKAGE = "org.apache.spark.deploy"
#: Processes that are about to be shot have no time for the optimising compiler to pay back.
SHORT_LIVES = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
#: Generous: a loaded machine needs minutes for what takes seconds.
DEADLINE_S = 300.0


def until(what: str, condition, deadline_s: float = DEADLINE_S, pause_s: float = 0.1):
    """The first true answer of `condition`."""
    end_s = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"{what}: not within {deadline_s:g} s"
        time.sleep(pause_s)
    return found


def in_session(leaders: set[int], *needles: bytes) -> list[int]:
    """Processes of these sessions whose command line holds one of the texts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(folder.name)) in leaders:
                command = (folder / "cmdline").read_bytes()
                if any(needle in command for needle in needles):
                    found.append(int(folder.name))
    return found


def parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@dataclass
class Run:
    """One life of a driver. Its log is read all the time, so that it never blocks."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _reader: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def batches(self) -> int:
        return sum(line.startswith("batch ") for line in self.lines)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def pids(self, *needles: bytes) -> list[int]:
        return in_session({self.process.pid}, *needles)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Only now end what outlived a killed JVM: until here its Python workers were free to do harm."""
        self.kill()
        assert self._reader is not None
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@dataclass(frozen=True)
class Job:
    file: Path
    lake: Path

    @classmethod
    def write(
        cls,
        folder: Path,
        url: str,
        queue: str,
        max_records: int,
        master: str = "local[2,4]",
        spark: dict[str, str] | None = None,
    ) -> Job:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "url").write_text(url)
        settings = {
            "spark.driver.memory": "600m",
            "spark.executor.memory": "600m",
            "spark.executor.cores": "1",
            # An executor that is shot takes its task with it; four such shots must not end the query.
            "spark.task.maxFailures": "20",
            "spark.sql.shuffle.partitions": "2",
            **(spark or {}),
        }
        lines = [f'from_file = "{folder}/url"', f'queue = "{queue}"', f'lake = "{folder}/lake"']
        lines += [f"max_records = {max_records}", f'master = "{master}"', "[options]", "minPartitions = 2"]
        lines += ["[spark]", *(f'"{name}" = "{value}"' for name, value in settings.items())]
        (folder / "job.toml").write_text("\n".join(lines) + "\n")
        return cls(folder / "job.toml", folder / "lake")

    def start(self, *flags: str) -> Run:
        command = [sys.executable, "-m", "shinar.cli.main", "pipeline", "run", str(self.file), "--json"]
        process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **SHORT_LIVES, "PYTHONFAULTHANDLER": "1"},
        )
        return Run(process)


@dataclass(frozen=True)
class Cluster:
    master: str
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def _leaders(self) -> set[int]:
        return {worker.pid for worker in self.workers}

    def executors(self) -> list[int]:
        return in_session(self._leaders, b"CoarseGrainedExecutorBackend")

    def readers(self) -> list[int]:
        """The Python processes of the executors that do the work, without the daemons that fork them."""
        found = in_session(self._leaders, b"pyspark.daemon", b"pyspark/daemon")
        return [pid for pid in found if parent(pid) in found]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers on addresses of their own: apart, as Spark sees it."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(_java(folder, "master", f"{PACKAGE}.master.Master", *place))
        _until_line(folder / "master.log", "I have been elected leader")
        workers = []
        for host in ("127.0.0.2", "127.0.0.3"):
            place = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0")
            place += ("--work-dir", f"{folder}/{host}", f"spark://127.0.0.1:{port}")
            name = f"worker-{host}"
            workers.append(stack.enter_context(_java(folder, name, f"{PACKAGE}.worker.Worker", *place)))
            _until_line(folder / f"{name}.log", "Successfully registered")
        yield Cluster(f"spark://127.0.0.1:{port}", tuple(workers))


@contextlib.contextmanager
def _java(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        **os.environ,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **SHORT_LIVES,
    }
    with open(folder / f"{name}.log", "w") as log:
        command = [str(HOME / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_line(path: Path, text: str) -> None:
    until(f"{path.name} says {text!r}", lambda: text in path.read_text())
