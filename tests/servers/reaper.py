"""Waits until the test run is gone, then ends the servers it left and removes their data.

Reads lines `+<process group>` and `-<process group>` on stdin; end of file, or another parent, means: gone. A
parent-death signal would not do: it fires when the starting thread ends, and daemons leave their parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time

#: Forked children of the run may hold the pipe open after its death; so look at the parent too.
POLL_S = 1.0
POLITE_S = 8.0


def main(directory: str) -> None:
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    groups = watch(os.getppid())
    for sign in (signal.SIGCONT, signal.SIGTERM):
        send(groups, sign)
    deadline = time.monotonic() + POLITE_S
    while time.monotonic() < deadline and any(map(exists, groups)):
        time.sleep(0.05)
    send(groups, signal.SIGKILL)
    # A dying server may still be writing.
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.1)


def watch(parent: int) -> set[int]:
    groups: set[int] = set()
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], POLL_S)[0]:
            continue
        piece = os.read(0, 4096)
        if not piece:
            break
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    return groups


def send(groups: set[int], sign: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, sign)


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
