"""Who runs a redrive: the user, this process, and whether another process is still there. No ledger here."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path
from typing import Final

from shinar.clock import SYSTEM

#: Clocks are set now and then.
SLACK_S: Final = 60.0


def whoami() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def lives(runner: str, seen_ms: int) -> bool | None:
    """Whether the process that was last seen then is there; None when it is another machine's, which nobody
    here can see."""
    host, _, number = runner.rpartition(":")
    if host != socket.gethostname() or not number.isdigit():
        return None
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's, and there
    try:
        state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        up_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError):
        return True  # no such files on this system
    # After a restart of the machine the number may be another program's.
    age_s = up_s - int(fields[18]) / os.sysconf("SC_CLK_TCK")
    return state != "Z" and SYSTEM.epoch_s() - age_s < seen_ms / 1000 + SLACK_S
