"""What a deep queue costs the embedded broker: memory, restart, and throughput beside an empty store.

    python bench/phpmq_depth.py [--messages 1000000] [--check]

Fills one queue, restarts the server, and then publishes and consumes: first in a second queue of the full
store, then at the head of the deep queue itself, and the same in an empty store. `--messages 10000000`
is the figure issue 3 speaks of (about 4 GB on disk and a few minutes).
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from shinar.brokers import Outgoing, connect

BODY = b"x" * 350
#: What issue 3 asks for at ten million.
MAX_RSS_MB, MAX_RESTART_S, MIN_RATIO = 300.0, 30.0, 0.8


class Running:
    def __init__(self, folder: Path) -> None:
        started = time.perf_counter()
        command = [sys.executable, "-m", "shinar.cli.main", "broker", "serve", "--json", "--quiet"]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--data", str(folder)], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["urls"][0]
        self.start_s = time.perf_counter() - started

    def memory_mb(self, field: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(field))
        return int(line.split()[1]) / 1024

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def work(running: Running, queue: str, count: int, *, publish: bool = True) -> tuple[float, float]:
    """(messages a second, microseconds of the server's own time for one), there and back."""
    batch = 1000
    before_s, started = cpu_s(running.process.pid), time.perf_counter()
    with closing(connect(running.url)) as broker:
        for _ in range(0, count, batch):
            if publish:
                broker.publish(queue, [Outgoing(BODY) for _ in range(batch)])
        seen = 0
        while seen < count:
            found = broker.reserve(queue, batch, 5.0)
            broker.ack(found)
            seen += len(found)
    spent_s = time.perf_counter() - started
    return count / spent_s, (cpu_s(running.process.pid) - before_s) / count * 1e6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=100_000)
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return measure(Path(name), options.messages, options.sample, options.check)


def measure(base: Path, count: int, sample: int, check: bool) -> int:
    deep = base / "deep"
    running = Running(deep)
    started = time.perf_counter()
    with closing(connect(running.url)) as broker:
        chunk = [Outgoing(BODY) for _ in range(20_000)]
        for _ in range(0, count, len(chunk)):
            broker.publish("deep", chunk)
    filled_s = time.perf_counter() - started
    filling_mb = running.memory_mb("VmHWM")
    running.stop(signal.SIGKILL)
    running = Running(deep)
    with closing(connect(running.url)) as broker:
        broker.reserve("deep", 1, 5.0)
        assert broker.depth("deep").ready == count - 1
    restart_s = running.start_s
    pairs = []
    for number in range(3):
        empty = Running(base / f"empty{number}")
        pairs.append((work(empty, "beside", sample), work(running, "beside", sample)))
        empty.stop()
    head = work(running, "deep", min(sample, count // 2), publish=False)
    peak_mb = running.memory_mb("VmHWM")
    disk_mb = sum(path.stat().st_size for path in deep.iterdir()) / 2**20
    running.stop()
    shutil.rmtree(deep)
    without, beside = (max(pair[side] for pair in pairs) for side in (0, 1))
    ratio = beside[0] / without[0]
    cpu = min(pair[0][1] for pair in pairs) / min(pair[1][1] for pair in pairs)
    print(f"{count:,} queued messages of {len(BODY)} bytes, {disk_mb:,.0f} MB on disk")
    print(f"filled at {count / filled_s:,.0f} messages a second, peak memory {filling_mb:.0f} MB")
    print(f"restart after SIGKILL {restart_s:.2f} s (process and all)")
    print(f"peak memory while working {peak_mb:.0f} MB")
    print("publish, consume and ack, and the server's own time for one:")
    print(f"   in an empty store {without[0]:,.0f}/s ({without[1]:.1f} us)")
    print(f"   in another queue of the deep store {beside[0]:,.0f}/s ({beside[1]:.1f} us): {ratio:.0%}")
    print(f"   by the server's own time: {cpu:.0%}")
    print(f"   consume and ack at the head of the deep queue {head[0]:,.0f}/s ({head[1]:.1f} us)")
    kept = (
        max(filling_mb, peak_mb) <= MAX_RSS_MB and restart_s <= MAX_RESTART_S and max(ratio, cpu) >= MIN_RATIO
    )
    targets = f"memory {MAX_RSS_MB:g} MB, restart {MAX_RESTART_S:g} s, {MIN_RATIO:.0%}"
    print(f"targets ({targets}): {'kept' if kept else 'MISSED'}")
    return 1 if check and not kept else 0


if __name__ == "__main__":
    sys.exit(main())
