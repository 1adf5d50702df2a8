"""Frames to a plain PHPMQ client, so that it never finds part of a message header.

php-mq's client reads a header with one non-blocking read and dies when the kernel has only part of it. One
write of whole frames is not enough: TCP cuts the stream where the receiver's window or a segment ends. So
frames go out in lots that fit one segment and the window that is open now, and the next lot waits until the
last one has left. Only a single frame longer than that is cut, and then inside its content.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

#: Several frames share a write up to this; the kernel's send buffer is several times larger.
LOT_BYTES: Final = 64 * 1024
#: Under TLS a lot is one record, and on a Unix socket one buffer of the kernel's.
SMALL_LOT_BYTES: Final = 16_000
#: What we ask the kernel to buffer for us.
SEND_BUFFER_BYTES: Final = 1024 * 1024
#: Pause before looking again whether a client caught up; it doubles up to the longest.
RETRY_S: Final = 0.002
LONGEST_RETRY_S: Final = 0.05
#: Linux: bytes written and not yet taken by the other side's kernel.
_SIOCOUTQ: Final = 0x5411
#: Linux's struct tcp_info, and where it says segment size, bytes not sent yet, and the open window.
_TCP_INFO: Final = 11
_TCP_INFO_BYTES: Final = 232
_SEGMENT, _NOT_SENT, _WINDOW = 16, 144, 228


@dataclass(frozen=True, slots=True)
class _Room:
    """What the connection can take now."""

    #: Bytes on their way that the other side has not confirmed.
    under_way: int
    not_sent: int
    window: int
    segment: int


class PlainWriter:
    def __init__(self, transport: asyncio.Transport, caught_up: Callable[[], None]) -> None:
        self._transport = transport
        self._caught_up = caught_up
        self._frames: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S
        #: The widest window this client has opened so far.
        self._widest = 0
        self._socket: socket.socket | None = transport.get_extra_info("socket")
        whole = transport.get_extra_info("sslcontext") is None and self._is_tcp()
        self._lot = LOT_BYTES if whole else SMALL_LOT_BYTES
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
            lot = self._next_lot()
            if lot is None:
                self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._pump)
                self._retry_s = min(self._retry_s * 2, LONGEST_RETRY_S)
                return
            self._retry_s = RETRY_S
            self._transport.write(lot)
        if was_behind:
            self._caught_up()

    def _next_lot(self) -> bytes | None:
        """Frames that can leave now without being cut in a bad place; None while none can."""
        if self._transport.get_write_buffer_size():
            return None
        room = self._room()
        if room is None:
            return self._pop(self._lot)
        self._widest = max(self._widest, room.window)
        if room.not_sent:
            return None
        first = len(self._frames[0])
        left = room.window - room.under_way
        if first <= left:
            return self._pop(min(self._lot, left, room.segment))
        # It fits no window: it must be cut, but not before the window is wide enough for its beginning.
        if first > self._widest // 2 and room.under_way == 0 and room.window >= self._widest // 2:
            return self._pop(0)
        return None

    def _pop(self, most: int) -> bytes:
        """At least one frame, and more up to a size."""
        lot = [self._frames.popleft()]
        size = len(lot[0])
        while self._frames and size + len(self._frames[0]) <= most:
            lot.append(self._frames.popleft())
            size += len(lot[-1])
        self.waiting_bytes -= size
        return b"".join(lot)

    def _room(self) -> _Room | None:
        """None where the system does not tell."""
        if self._socket is None or sys.platform != "linux":
            return None
        try:
            (under_way,) = struct.unpack("i", fcntl.ioctl(self._socket.fileno(), _SIOCOUTQ, b"\0\0\0\0"))
            if not self._is_tcp():
                # The other side has taken everything, or nothing more goes in.
                return _Room(under_way, under_way, self._lot, self._lot)
            info = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:
            return _Room(under_way, under_way, self._lot, self._lot)
        segment, not_sent, window = (
            struct.unpack_from("I", info, at)[0] for at in (_SEGMENT, _NOT_SENT, _WINDOW)
        )
        return _Room(under_way, not_sent, window, segment)

    def _is_tcp(self) -> bool:
        return self._socket is not None and self._socket.family != socket.AF_UNIX
