"""`dlq summary` over millions of dead letters, in plain Python and on Spark: seconds and peak memory.

    python bench/dead_letters.py [--sizes 500000,1000000] [--url URL] [--engines spark] [--check]

The letters wait in one queue that grows from size to size: of the embedded broker, started here, or of
the broker named with --url. Memory is the high-water mark of each process of the command, as the
operating system keeps it: the driver (Python), the JVM, and the largest of Spark's Python workers.
With --check the exit code is 1 when time grows faster than the size or memory grows with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from redrive_letters import body
from shinar.brokers import Broker, Outgoing, connect

#: Letters per publish.
BATCH = 5_000
#: Time per letter at the largest size over the smallest (a constant start-up only makes it smaller), and
#: memory likewise: a JVM takes what it may before it collects, so its limit (1 GB) is what counts there.
MAX_TIME_GROWTH, MAX_MEMORY_GROWTH, MAX_JVM_MIB = 1.25, 1.3, 1600.0


class Peaks(NamedTuple):
    driver_mib: float
    jvm_mib: float
    worker_mib: float


class Run(NamedTuple):
    size: int
    engine: str
    took_s: float
    peaks: Peaks
    answer: str


class Watch:
    """High-water marks of a process and all it starts."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peaks, self._done = (
            pid,
            {"driver": 0.0, "java": 0.0, "worker": 0.0},
            threading.Event(),
        )
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Peaks:
        self._done.set()
        self._thread.join()
        return Peaks(*self._peaks.values())

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            for pid in self._tree(self._pid):
                self._look(pid)

    def _look(self, pid: int) -> None:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return  # it has ended
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        kind = "driver" if pid == self._pid else "java" if fields["Name"].strip() == "java" else "worker"
        if "VmHWM" in fields:
            self._peaks[kind] = max(self._peaks[kind], int(fields["VmHWM"].split()[0]) / 1024)

    def _tree(self, pid: int) -> Iterator[int]:
        yield pid
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
        except OSError:
            return
        for child in children:
            yield from self._tree(child)


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "shinar.cli.main", "broker", "serve", "--json", "--quiet"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--data", str(folder)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["urls"][0]
    finally:
        process.terminate()
        process.wait()


def plant(broker: Broker, queue: str, start: int, end: int) -> None:
    for first in range(start, end, BATCH):
        bodies = [Outgoing(body(n, "orders")) for n in range(first, min(first + BATCH, end))]
        broker.publish(queue, bodies)


def measured(size: int, engine: str, place: str) -> Run:
    words = ["dlq", "summary", place, "--engine", engine, "--json", "--quiet"]
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "shinar.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SHINAR_LEDGER": os.devnull + ".none"},
    )
    watch = Watch(process.pid)
    out, _ = process.communicate()
    took_s = time.monotonic() - started_s
    peaks = watch.stop()
    rows = [json.loads(line) for line in out.splitlines()]
    if process.returncode or sum(row["count"] for row in rows) != size or len(rows) != 12:
        raise SystemExit(f"{engine}: exit {process.returncode}, {len(rows)} kinds")
    run = Run(size, engine, took_s, peaks, hashlib.sha256(out).hexdigest())
    print(
        f"{size:>10,}  {engine:<7} {took_s:8.1f} s  {took_s / size * 1e6:6.1f} us each   "
        f"driver {peaks.driver_mib:.0f} MiB  JVM {peaks.jvm_mib:.0f} MiB  worker {peaks.worker_mib:.0f} MiB",
        flush=True,
    )
    return run


def verdict(runs: list[Run], engine: str) -> bool:
    mine = [run for run in runs if run.engine == engine]
    if len(mine) < 2:
        return True
    small, large = mine[0], mine[-1]
    sizes = large.size / small.size
    time_ratio = large.took_s / small.took_s
    driver = large.peaks.driver_mib / small.peaks.driver_mib
    print(
        f"{engine}: {sizes:.1f} times the letters took {time_ratio:.2f} times as long, "
        f"driver {driver:.2f} times the memory"
    )
    return (
        time_ratio <= sizes * MAX_TIME_GROWTH
        and driver <= MAX_MEMORY_GROWTH
        and large.peaks.jvm_mib <= MAX_JVM_MIB
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="50000,100000", help="letters, growing (default 50000,100000)")
    parser.add_argument("--engines", default="python,spark")
    parser.add_argument("--url", help="broker URL without a queue (default: an embedded broker)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    sizes = sorted(int(text) for text in options.sizes.split(","))
    engines = options.engines.split(",")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name, embedded(Path(name)) as here:
        url = options.url or here
        queue, have = f"bench-{os.getpid()}.dlq", 0
        runs: list[Run] = []
        for size in sizes:
            with closing(connect(url)) as broker:
                plant(broker, queue, have, size)
            have = size
            runs += [measured(size, engine, f"{url}?queue={queue}") for engine in engines]
    same = all(len({run.answer for run in runs if run.size == size}) == 1 for size in sizes)
    print(f"answers of {' and '.join(engines)}: {'equal, byte for byte' if same else 'DIFFERENT'}")
    kept = [verdict(runs, engine) for engine in engines]
    print(f"load {os.getloadavg()[0]:.1f}")
    return 1 if not same or (options.check and not all(kept)) else 0


if __name__ == "__main__":
    sys.exit(main())
