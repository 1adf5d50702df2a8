"""The PHPMQ wire as tables: type numbers, packet numbers, lengths and limits. No bytes are parsed here.

A message is `H` version(2) type(3) packets(2), then its packets; a packet is `P` type(2) length(29) and
that many bytes of content. Nothing separates them. Types from 100 on are Shinar's extension, which only
a connection that said hello ever sees; docs/phpmq.md is the specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

#: The only protocol version there is.
VERSION: Final = b"01"
#: Bytes of a message header: flag, version, type, packet count.
MESSAGE_HEADER: Final = 8
#: Bytes of a packet header: flag, type, and 29 digits of content length.
PACKET_HEADER: Final = 32
#: Hex characters of a message id.
ID_LENGTH: Final = 32


class Type(IntEnum):
    SEND = 1
    CONSUME = 2
    DISPATCH = 3
    ACKNOWLEDGE = 4
    REQUEUE = 5
    DEAD_LETTER = 6

    HELLO = 100
    WELCOME = 101
    REPLY = 102
    ERROR = 103
    PUBLISH = 110
    RESERVE = 111
    ACK = 112
    RELEASE = 113
    EXTEND = 114
    MOVE = 115
    DEPTH = 120
    BROWSE = 121
    QUEUES = 122
    FLUSH = 123
    TRANSFER = 124
    STATUS = 125


class Packet(IntEnum):
    QUEUE = 1
    CONTENT = 2
    ID = 3
    COUNT = 4
    TTL = 5
    #: One MessagePack array: the only packet of an extension message.
    PAYLOAD = 10


#: What a message must carry, and what it may carry besides.
REQUIRED: Final[dict[int, frozenset[int]]] = {
    Type.SEND: frozenset({Packet.QUEUE, Packet.CONTENT}),
    Type.CONSUME: frozenset({Packet.QUEUE, Packet.COUNT}),
    Type.DISPATCH: frozenset({Packet.QUEUE, Packet.CONTENT, Packet.ID}),
    Type.ACKNOWLEDGE: frozenset({Packet.QUEUE, Packet.ID}),
    Type.REQUEUE: frozenset({Packet.QUEUE, Packet.ID}),
    Type.DEAD_LETTER: frozenset({Packet.QUEUE, Packet.ID}),
    **{number: frozenset({Packet.PAYLOAD}) for number in Type if number >= 100},
}
OPTIONAL: Final[dict[int, frozenset[int]]] = {
    Type.SEND: frozenset({Packet.TTL}),
    Type.DISPATCH: frozenset({Packet.TTL}),
    Type.REQUEUE: frozenset({Packet.TTL}),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Checked at a packet's header, before a byte of its content is stored."""

    #: Longest body of one message.
    max_body_bytes: int = 16 * 1024 * 1024
    #: Longest payload of one extension message (a whole batch).
    max_payload_bytes: int = 64 * 1024 * 1024
    #: Longest queue name, in bytes of UTF-8.
    max_queue_bytes: int = 255

    def of(self, packet: int) -> int:
        return _FIXED.get(packet) or (
            self.max_body_bytes
            if packet == Packet.CONTENT
            else self.max_payload_bytes
            if packet == Packet.PAYLOAD
            else self.max_queue_bytes
        )


#: Longest content of the packets whose content is a number or an id.
_FIXED: Final[dict[int, int]] = {Packet.ID: ID_LENGTH, Packet.COUNT: 10, Packet.TTL: 12}
