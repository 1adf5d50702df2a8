"""Settings of sockets that asyncio leaves to its users. Must not know a protocol."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

#: Seconds of silence after which the kernel asks whether the other host is still there.
KEEPALIVE_S: Final = 60


def keep_alive(raw: socket.socket) -> None:
    """A host that lost its power does not hang up; what it reserved must come back all the same."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 4)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def remove_stale(path: Path) -> None:
    """A socket file nobody listens on is left over from a crash; one somebody listens on is not ours."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
