"""A process that Spark started does not outlive the one that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import sys, time
from pathlib import Path
from shinar.pipeline.source.lifetime import end_with_parent
end_with_parent()
end_with_parent()
Path(sys.argv[1]).write_text("ready")
time.sleep(300)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(child.pid, flush=True)
time.sleep(300)
"""


def orphan(tmp_path: Path, **environment: str) -> int:
    """A child whose parent was killed after it began its work."""
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", PARENT, CHILD, str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment}) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(ready.exists, 60)
        parent.kill()
    return child


def until(condition, seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.05)
    return bool(condition())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_worker_ends_with_its_parent(tmp_path: Path):
    child = orphan(tmp_path, PYTHON_WORKER_FACTORY_SECRET="s")
    try:
        assert until(lambda: gone(child), 20)
    finally:
        if not gone(child):
            os.kill(child, signal.SIGKILL)


def test_a_process_of_the_users_own_is_left_alone(tmp_path: Path):
    child = orphan(tmp_path)
    try:
        assert not until(lambda: gone(child), 2)
    finally:
        os.kill(child, signal.SIGKILL)
