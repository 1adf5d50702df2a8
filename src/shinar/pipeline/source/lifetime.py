"""Spark's Python processes end with the process that started them, also when that is killed. Linux and macOS.

A planner that waits for a lease, or a reader that waits for a broker, reads nothing that a dead JVM or daemon
would close. The kernel's own signal (PR_SET_PDEATHSIG) follows the *thread* that started the process, and a
JVM ends its threads while it lives, so the parent's process is watched instead.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from shinar.clock import SYSTEM

#: How long an orphan may live on.
WATCH_S: Final = 0.5

_watched_pid = 0


def end_with_parent() -> None:
    """From now on this process is killed when its parent dies. Calling it again changes nothing."""
    global _watched_pid
    if _watched_pid == os.getpid() or not _belongs_to_spark():
        return
    _watched_pid = os.getpid()
    threading.Thread(target=_watch, args=(os.getppid(),), name="shinar-parent", daemon=True).start()


def _belongs_to_spark() -> bool:
    """Only a worker that Spark started: a driver that reads in its own process may outlive its shell."""
    return any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        SYSTEM.sleep(WATCH_S)
    # Not an exception, nor a shutdown that could block: the job is dead, and nothing here is worth saving.
    os.kill(os.getpid(), signal.SIGKILL)
