"""Reading deliveries out of an AMQP 0-9-1 byte stream, at a third of what pika's objects cost.

Pure: bytes in, values out. Only complete deliveries to tapped channels are taken out of the
stream; every other frame is passed on untouched for pika to read.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from shinar.brokers.rabbitmq.headers import read_table, thinned

_FRAME: Final = struct.Struct(">BHI")
_METHOD_ID: Final = struct.Struct(">I")
_CONTENT: Final = struct.Struct(">HHQ")
_NUMBER: Final = struct.Struct(">Q")
_FLAGS: Final = struct.Struct(">H")
#: Bytes around a frame's payload: header and end mark.
_HEAD: Final = 7
_TAIL: Final = 1
_METHOD, _HEADER = 1, 2
#: Class 60 (basic), method 60 (deliver).
_DELIVER: Final = (60 << 16) | 60

#: Property names in wire order, from the highest flag down; the letter says how they are written:
#: s short string, t table, b one byte, q eight bytes.
_LAYOUT: Final = (
    (1 << 15, "content_type", "s"), (1 << 14, "content_encoding", "s"), (1 << 13, "headers", "t"),
    (1 << 12, "delivery_mode", "b"), (1 << 11, "priority", "b"), (1 << 10, "correlation_id", "s"),
    (1 << 9, "reply_to", "s"), (1 << 8, "expiration", "s"), (1 << 7, "message_id", "s"),
    (1 << 6, "timestamp", "q"), (1 << 5, "type", "s"), (1 << 4, "user_id", "s"), (1 << 3, "app_id", "s"),
)  # fmt: skip
_FLAG_OF: Final = {name: flag for flag, name, _ in _LAYOUT}


class Content(NamedTuple):
    tag: int
    consumer: bytes
    #: Flags and values, as on the wire; see `properties_of`.
    properties: bytes
    body: bytes
    redelivered: bool = False


class Tap:
    """Puts the deliveries of one channel together, and hands each to `deliver`."""

    def __init__(self, deliver: Callable[[Content], None]) -> None:
        self._deliver = deliver
        self._head: tuple[int, bytes, bool] | None = None
        self._properties = b""
        self._left = 0
        self._parts: list[bytes] = []

    def wants(self, kind: int, data: bytes, at: int) -> bool:
        """Whether the frame whose payload starts at `at` belongs to a delivery."""
        if self._head is not None:
            return True
        return kind == _METHOD and _METHOD_ID.unpack_from(data, at)[0] == _DELIVER

    def take(self, kind: int, payload: bytes) -> None:
        if self._head is None:
            after = 5 + payload[4]
            # Behind the tag, eight bytes, the mark stands in the lowest bit.
            second = bool(payload[after + _NUMBER.size] & 1)
            self._head = (_NUMBER.unpack_from(payload, after)[0], payload[5:after], second)
            return
        if kind == _HEADER:
            self._left = _CONTENT.unpack_from(payload)[2]
            self._properties = payload[_CONTENT.size :]
        else:
            self._parts.append(payload)
            self._left -= len(payload)
        if self._left == 0:
            (tag, consumer, second), self._head = self._head, None
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._deliver(Content(tag, consumer, self._properties, body, second))


class FrameStream:
    """Splits what a socket gave into frames for taps and the rest, keeping their order: a delivery
    must not overtake the answer that was sent before it."""

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self.taps: dict[int, Tap] = {}
        self._pass_on = pass_on
        self._rest = b""

    def feed(self, data: bytes) -> None:
        if not self.taps and not self._rest:
            self._pass_on(data)
            return
        data = self._rest + data if self._rest else data
        start = at = 0
        size = len(data)
        while size - at >= _HEAD:
            kind, channel, length = _FRAME.unpack_from(data, at)
            end = at + _HEAD + length + _TAIL
            if end > size:
                break
            tap = self.taps.get(channel)
            if tap is not None and tap.wants(kind, data, at + _HEAD):
                if start < at:
                    self._pass_on(data[start:at])
                tap.take(kind, data[at + _HEAD : end - _TAIL])
                start = end
            at = end
        if start < at:
            self._pass_on(data[start:at])
        self._rest = data[at:]


def properties_of(encoded: bytes) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The properties that are present, and the header table."""
    found: dict[str, Any] = {}
    table: Mapping[str, Any] = {}
    for name, form, start, end in _spans(encoded):
        if form == "s":
            found[name] = encoded[start + 1 : end].decode("utf-8", "replace")
        elif form == "t":
            table = _table(encoded[start + _METHOD_ID.size : end])
        elif form == "b":
            found[name] = encoded[start]
        else:
            found[name] = _NUMBER.unpack_from(encoded, start)[0]
    return found, table


def without(encoded: bytes, property_: str, keep: Callable[[str], bool]) -> bytes:
    """The same properties without one of them, and with those headers only that are kept."""
    flags = 0
    parts: list[bytes] = []
    for name, form, start, end in _spans(encoded):
        if name == property_:
            continue
        flags |= _FLAG_OF[name]
        if form == "t":
            table = thinned(encoded[start + _METHOD_ID.size : end], keep)
            parts.append(_METHOD_ID.pack(len(table)) + table)
        else:
            parts.append(encoded[start:end])
    return _FLAGS.pack(flags) + b"".join(parts)


def _spans(encoded: bytes) -> Iterator[tuple[str, str, int, int]]:
    """Name, form, start and end of each property that is present, up to the first damaged one."""
    flags = _FLAGS.unpack_from(encoded)[0] if len(encoded) >= _FLAGS.size else 0
    at = _FLAGS.size
    for flag, name, form in _LAYOUT:
        if not flags & flag:
            continue
        start = at
        try:
            if form == "s":
                at += 1 + encoded[at]
            elif form == "t":
                at += _METHOD_ID.size + _METHOD_ID.unpack_from(encoded, at)[0]
            else:
                at += 1 if form == "b" else _NUMBER.size
        except (IndexError, struct.error):
            return
        if at > len(encoded):
            return
        yield name, form, start, at


@functools.lru_cache(maxsize=512)
def _table(encoded: bytes) -> Mapping[str, Any]:
    """The contract's headers hardly differ from message to message. Read-only by agreement."""
    return read_table(encoded)
