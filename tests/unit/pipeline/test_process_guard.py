"""What a driver started ends with it, whatever ends the driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from shinar.pipeline import process_guard
from shinar.pipeline.session import retrying

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard reads /proc")

#: A driver with a child that has a child of its own; the first ignores signals, as a JVM in its hooks does.
DRIVER = """
import subprocess, sys, time
from shinar.pipeline import process_guard
process_guard.GRACE_S = 0.5
inner = "import signal,subprocess,sys,time;signal.signal(signal.SIGTERM,signal.SIG_IGN);" \\
    "subprocess.Popen([sys.executable,'-c','import time;time.sleep(600)']);time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", inner])
process_guard.guard(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(family: dict[int, str], within_s: float) -> bool:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if not any(process_guard.is_alive(pid, started) for pid, started in family.items()):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_children_end_with_their_driver(how: signal.Signals) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert driver.stdout is not None
    int(driver.stdout.readline())
    family: dict[int, str] = {}
    end_s = time.monotonic() + 60
    while len(family) < 3:  # the child, its child, and the guard
        assert time.monotonic() < end_s, "the guard did not start"
        family = process_guard.below(driver.pid)
        time.sleep(0.1)
    driver.send_signal(how)
    driver.communicate(timeout=60)
    assert gone(family, process_guard.GRACE_S + 20)


def test_an_interrupted_launch_leaves_nothing_new() -> None:
    old = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    before = process_guard.below(os.getpid())
    new = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process_guard.end_new(before)
    assert new.wait(10) == -signal.SIGKILL
    assert old.poll() is None
    old.kill()
    old.wait(10)


def test_a_local_master_retries_tasks_as_a_cluster_does() -> None:
    assert [retrying(master) for master in ("local", "local[2]", "local[*]", "local[2,1]", "yarn")] == [
        "local[1,4]",
        "local[2,4]",
        "local[*,4]",
        "local[2,1]",
        "yarn",
    ]
