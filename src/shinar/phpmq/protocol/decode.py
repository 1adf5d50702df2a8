"""Bytes in pieces to messages, incrementally. Reads no socket and no clock.

Every length is checked against the limits as soon as its digits are there, so a frame that would be
refused is never collected. A stream of equal frames (sends to one queue, acknowledgements) takes a
short path that compares one remembered prefix instead of parsing each header.
"""

from __future__ import annotations

import re
from typing import Final

from shinar.errors import ProtocolViolation
from shinar.phpmq.protocol.messages import (
    Acknowledge,
    Consume,
    DeadLetter,
    Dispatch,
    Extended,
    Message,
    Requeue,
    Send,
)
from shinar.phpmq.protocol.wire import (
    ID_LENGTH,
    MESSAGE_HEADER,
    OPTIONAL,
    PACKET_HEADER,
    REQUIRED,
    Limits,
    Packet,
    Type,
)

#: A TTL may come negative (the PHP library lets it through); it means "never", as 0 does.
_TTL: Final = re.compile(rb"-?[0-9]{1,11}\Z")
_NO_PACKETS: Final[frozenset[int]] = frozenset()
#: Digits of a content length; a packet header is the flag, two digits of type and these.
_LENGTH_DIGITS: Final = 29


class Decoder:
    def __init__(self, limits: Limits) -> None:
        #: May be widened while decoding, once a peer is known.
        self.limits = limits
        self._pending = bytearray()
        #: Bytes there must be before another look at `_pending` can get any further.
        self._need = MESSAGE_HEADER
        #: Set once the peer broke the protocol; what it sent before that was returned as messages.
        self.violation: ProtocolViolation | None = None
        self._send = _Repeat()
        self._ack = _Repeat()

    @property
    def pending_bytes(self) -> int:
        """Size of the unfinished frame kept so far; 0 between frames."""
        return len(self._pending)

    @property
    def needed_bytes(self) -> int:
        """How long the unfinished frame is at least."""
        return self._need

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages completed by `chunk`. Look at `violation` afterwards."""
        if self.violation is not None:
            return []
        data = chunk
        if self._pending:
            self._pending += chunk
            if len(self._pending) < self._need:
                return []
            data = bytes(self._pending)
            self._pending = bytearray()
        found: list[Message] = []
        position = 0
        try:
            position = self._all(data, found)
        except ProtocolViolation as exc:
            # Without its traceback, which would keep the offending bytes alive.
            self.violation = exc.with_traceback(None)
            return found
        if position < len(data):
            self._pending += memoryview(data)[position:]
        return found

    def _all(self, data: bytes, found: list[Message]) -> int:
        position, end = 0, len(data)
        append = found.append
        while position < end:
            if data.startswith(self._send.prefix, position):
                after = self._repeated_send(data, position, found)
            elif data.startswith(self._ack.prefix, position):
                after = self._repeated_ack(data, position, found)
            else:
                after = 0
            if not after:
                message, after = self._one(data, position)
                if message is None:
                    self._need = after
                    return position
                append(message)
            position = after
        self._need = MESSAGE_HEADER
        return position

    def _repeated_send(self, data: bytes, position: int, found: list[Message]) -> int:
        """End of a send shaped like the one before it, or 0 to have it parsed in full."""
        repeat = self._send
        start = position + repeat.length
        digits = data[start : start + _LENGTH_DIGITS]
        if not digits.isdigit():
            return 0
        start += _LENGTH_DIGITS
        end = start + int(digits)
        if len(digits) < _LENGTH_DIGITS or end > len(data) or end - start > self.limits.max_body_bytes:
            return 0
        if not repeat.ttl:
            found.append(Send(repeat.queue, data[start:end]))
            return end
        # The TTL packet is nearly always the same "0": compare it whole.
        after = end + PACKET_HEADER + 1
        if data[end:after] != _TTL_ZERO:
            return 0
        found.append(Send(repeat.queue, data[start:end], 0))
        return after

    def _repeated_ack(self, data: bytes, position: int, found: list[Message]) -> int:
        start = position + self._ack.length
        end = start + ID_LENGTH
        id_ = data[start:end]
        if len(id_) < ID_LENGTH or not id_.isalnum():
            return 0
        found.append(Acknowledge(self._ack.queue, id_.decode("ascii")))
        return end

    def _one(self, data: bytes, start: int) -> tuple[Message | None, int]:
        """One message and where it ended; or None and how long the rest must become to get further."""
        end = len(data)
        header = data[start : start + MESSAGE_HEADER]
        _check_flag(header, b"H01", "a message begins with H01")
        if len(header) < MESSAGE_HEADER:
            return None, MESSAGE_HEADER
        if not header[3:].isdigit():
            raise ProtocolViolation(
                f"message header {_shown(header)} has no digits for type and packet count"
            )
        kind, count = int(header[3:6]), int(header[6:])
        required = REQUIRED.get(kind)
        if required is None:
            raise ProtocolViolation(f"message type {kind:03d} is unknown")
        allowed = required | OPTIONAL.get(kind, _NO_PACKETS)
        if not len(required) <= count <= len(allowed):
            raise ProtocolViolation(f"message type {kind:03d} with {count} packets; it has {len(allowed)}")
        packets: dict[int, bytes] = {}
        order: list[int] = []
        position = start + MESSAGE_HEADER
        for _ in range(count):
            got, length = self._packet_header(data, position, allowed, packets)
            if got == 0:
                return None, position - start + PACKET_HEADER
            position += PACKET_HEADER
            if position + length > end:
                return None, position - start + length
            packets[got] = data[position : position + length]
            order.append(got)
            position += length
        if not required <= packets.keys():
            missing = ", ".join(f"{number:02d}" for number in sorted(required - packets.keys()))
            raise ProtocolViolation(f"message type {kind:03d} lacks packet {missing}")
        message = self._message(kind, packets)
        self._remember(message, order)
        return message, position

    def _packet_header(
        self, data: bytes, position: int, allowed: frozenset[int], seen: dict[int, bytes]
    ) -> tuple[int, int]:
        """Type and content length of the packet at `position`; type 0 when its header is not all there."""
        header = data[position : position + PACKET_HEADER]
        _check_flag(header, b"P", "a packet begins with P")
        if len(header) < PACKET_HEADER:
            if not (header[1:].isdigit() or len(header) <= 1):
                raise ProtocolViolation(f"packet header {_shown(header)} is not P and 31 digits")
            return 0, 0
        if not header[1:].isdigit():
            raise ProtocolViolation(f"packet header {_shown(header)} is not P and 31 digits")
        number, length = int(header[1:3]), int(header[3:])
        if number not in allowed:
            raise ProtocolViolation(f"packet type {number:02d} does not belong in this message")
        if number in seen:
            raise ProtocolViolation(f"packet type {number:02d} comes twice")
        limit = self.limits.of(number)
        if length > limit:
            raise ProtocolViolation(
                f"packet type {number:02d} announces {length} bytes; the limit is {limit}"
            )
        return number, length

    def _message(self, kind: int, packets: dict[int, bytes]) -> Message:
        if kind >= Type.HELLO:
            return Extended(Type(kind), packets[Packet.PAYLOAD])
        queue = _queue_name(packets[Packet.QUEUE])
        match kind:
            case Type.SEND:
                return Send(queue, packets[Packet.CONTENT], _ttl(packets))
            case Type.CONSUME:
                return Consume(queue, _count(packets[Packet.COUNT]))
            case Type.DISPATCH:
                return Dispatch(queue, packets[Packet.CONTENT], _id(packets), _ttl(packets))
            case Type.ACKNOWLEDGE:
                return Acknowledge(queue, _id(packets))
            case Type.REQUEUE:
                return Requeue(queue, _id(packets), _ttl(packets))
            case _:
                return DeadLetter(queue, _id(packets))

    def _remember(self, message: Message, order: list[int]) -> None:
        if isinstance(message, Send) and order in (_SEND_LEGACY, _SEND_TTL):
            name = message.queue.encode()
            prefix = b"H01001%02dP01%029d%bP02" % (len(order), len(name), name)
            self._send = _Repeat(prefix, message.queue, len(order) == len(_SEND_TTL))
        elif isinstance(message, Acknowledge) and order == _ACK and len(message.id) == ID_LENGTH:
            name = message.queue.encode()
            prefix = b"H0100402P01%029d%bP03%029d" % (len(name), name, ID_LENGTH)
            self._ack = _Repeat(prefix, message.queue)


class _Repeat:
    """What the last frame of a kind began with, so that the next one like it needs no parsing."""

    __slots__ = ("length", "prefix", "queue", "ttl")

    def __init__(self, prefix: bytes = b"\0", queue: str = "", ttl: bool = False) -> None:
        self.prefix = prefix
        self.length = len(prefix)
        self.queue = queue
        self.ttl = ttl


_SEND_LEGACY: Final = [Packet.QUEUE, Packet.CONTENT]
_SEND_TTL: Final = [Packet.QUEUE, Packet.CONTENT, Packet.TTL]
_ACK: Final = [Packet.QUEUE, Packet.ID]
_TTL_ZERO: Final = b"P05%029d0" % 1


def _check_flag(header: bytes, flag: bytes, rule: str) -> None:
    if not header.startswith(flag[: len(header)]):
        raise ProtocolViolation(f"{rule}, not with {_shown(header)}")


def _queue_name(raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProtocolViolation(f"queue name {_shown(raw)} is not UTF-8") from None
    if not name or not name.isprintable():
        raise ProtocolViolation(f"queue name {_shown(raw)} is empty or holds control characters")
    return name


def _id(packets: dict[int, bytes]) -> str:
    raw = packets[Packet.ID]
    if not raw.isalnum():
        raise ProtocolViolation(f"message id {_shown(raw)} is not made of letters and digits")
    return raw.decode("ascii")


def _count(raw: bytes) -> int:
    if not raw.isdigit():
        raise ProtocolViolation(f"count {_shown(raw)} is not a number")
    return int(raw)


def _ttl(packets: dict[int, bytes]) -> int | None:
    raw = packets.get(Packet.TTL)
    if raw is None:
        return None
    if not _TTL.match(raw):
        raise ProtocolViolation(f"TTL {_shown(raw)} is not a number of seconds")
    return max(0, int(raw))


def _shown(raw: bytes) -> str:
    """At most 40 bytes of what a peer sent, safe for a log line."""
    return repr(raw[:40])[1:]
