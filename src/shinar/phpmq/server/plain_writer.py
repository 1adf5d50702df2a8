"""Frames to a plain PHPMQ client, so that no frame's header is ever cut in two.

php-mq's client reads a header with one non-blocking read and dies when the kernel has only part of it.
So frames go out whole and in small lots, and the next lot waits while the client is behind: a lot then
always fits what the kernel still takes, and only a single long frame may be cut, inside its content.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

#: Several frames share a write up to this; the kernel's send buffer is several times larger.
LOT_BYTES: Final = 64 * 1024
#: Under TLS a lot is one record.
TLS_LOT_BYTES: Final = 16_000
#: What we ask the kernel to buffer for us.
SEND_BUFFER_BYTES: Final = 1024 * 1024
#: Pause before looking again whether a client caught up.
RETRY_S: Final = 0.002
#: Linux: bytes written and not yet taken by the other side.
_SIOCOUTQ: Final = 0x5411


class PlainWriter:
    def __init__(self, transport: asyncio.Transport, caught_up: Callable[[], None]) -> None:
        self._transport = transport
        self._caught_up = caught_up
        self._frames: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._lot = TLS_LOT_BYTES if transport.get_extra_info("sslcontext") else LOT_BYTES
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.waiting_bytes = 0

    def write(self, frames: list[bytes]) -> None:
        self._frames.extend(frames)
        self.waiting_bytes += sum(map(len, frames))
        if self._timer is None:
            self._pump()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._frames.clear()

    def _pump(self) -> None:
        was_behind, self._timer = self._timer is not None, None
        while self._frames:
            if self._transport.is_closing():
                return
            if self._behind():
                self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._pump)
                return
            self._transport.write(self._next_lot())
        if was_behind:
            self._caught_up()

    def _next_lot(self) -> bytes:
        lot = [self._frames.popleft()]
        size = len(lot[0])
        while self._frames and size + len(self._frames[0]) <= self._lot:
            lot.append(self._frames.popleft())
            size += len(lot[-1])
        self.waiting_bytes -= size
        return b"".join(lot)

    def _behind(self) -> bool:
        if self._transport.get_write_buffer_size():
            return True
        if self._socket is None or sys.platform != "linux":
            return False
        try:
            answer = fcntl.ioctl(self._socket.fileno(), _SIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return False
        unsent: int = struct.unpack("i", answer)[0]
        long_frame = len(self._frames[0]) > self._lot
        return unsent > (0 if long_frame else LOT_BYTES)
