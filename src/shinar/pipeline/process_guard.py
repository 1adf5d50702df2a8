"""Ends the JVM of a session, and all processes below it, when the driver is gone, whatever ended the driver.

A small process of its own waits for the end of a pipe that only the driver has. Spark's JVM ends by itself
when its driver does, but may take minutes in its shutdown hooks; it gets a grace period. On Linux only.
Must not know Spark; imports the standard library only, because the guard runs this file alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import Final

#: Time the JVM has to end by itself after the driver.
GRACE_S: Final = 8.0
_POLL_S: Final = 0.1
_PROC: Final = Path("/proc")

#: Guards of this process: their pipes stay open as long as it lives.
_guards: list[subprocess.Popen[bytes]] = []


def guard(pid: int) -> None:
    """From now on, process `pid` and those below it end with this process."""
    if not _PROC.is_dir():
        return
    command = [sys.executable, "-I", "-S", __file__, str(pid)]
    # A session of its own: Ctrl-C in the terminal must not end the guard before the driver.
    _guards.append(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    )


def end_new(before: Container[int]) -> None:
    """SIGKILL for the processes below this one that are not among `before`: a launch was interrupted."""
    for pid, started in below(os.getpid()).items():
        if pid not in before:
            _kill(pid, started)


def below(pid: int) -> dict[int, str]:
    """The processes below `pid`, each with the time it started: a number may be used again."""
    parents = {child: stat for child, stat in ((child, _stat(child)) for child in _numbers()) if stat}
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for child, (above, started) in parents.items():
            if above == parent and child not in found:
                found[child] = started
                waiting.append(child)
    return found


def _numbers() -> list[int]:
    return [int(path.name) for path in _PROC.glob("[0-9]*")]


def _stat(pid: int) -> tuple[int, str] | None:
    """(parent, time of start) of a process that runs."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; a zombie waits for its parent only.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def _kill(pid: int, started: str) -> None:
    stat = _stat(pid)
    if stat is not None and stat[1] == started:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def is_alive(pid: int, started: str) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[1] == started


def _watch(pid: int) -> None:
    stat = _stat(pid)
    while os.read(0, 1):
        pass
    if stat is None:
        return
    family = {**below(pid), pid: stat[1]}
    end_s = time.monotonic() + GRACE_S
    while time.monotonic() < end_s and any(is_alive(*one) for one in family.items()):
        family |= below(pid)
        time.sleep(_POLL_S)
    for one in family.items():
        _kill(*one)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
