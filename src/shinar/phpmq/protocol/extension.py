"""The extension's payloads as values: one MessagePack array each, fields in the order given here.

Trailing fields may be left out and then have their defaults; a reader ignores fields it does not know.
docs/phpmq.md describes each with bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from shinar.errors import ProtocolViolation
from shinar.phpmq.protocol.encode import extended
from shinar.phpmq.protocol.wire import Type

#: Version of the extension, said in hello and welcome.
EXTENSION: Final = 1
#: Feature of a server, said in its welcome: a release may leave the delivery uncounted.
UNCOUNTED_RELEASE: Final = "uncounted-release"
#: Numbers a peer may send: none that a sum with the time of day could push over 63 bits.
Tag = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=2**43)]
Key = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    version: int
    #: Shared secret of a listener that asks for one; "" otherwise.
    token: str = ""
    #: Shown in the server's log and status.
    client: str = ""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    version: int
    server: str
    #: First half of every message id of this store; the second half is the key in hex.
    store: str
    max_body_bytes: int
    max_payload_bytes: int
    #: Lease of a reserve that asks for none.
    lease_ms: Millis
    #: What the server can do beyond version 1.
    features: list[str] = msgspec.field(default_factory=list)


class Extra(msgspec.Struct, frozen=True, array_like=True):
    """What travels beside a body; nil on the wire when there is nothing."""

    headers: dict[str, str]
    key: bytes | None = None


class Item(msgspec.Struct, frozen=True, array_like=True):
    body: bytes
    extra: Extra | None = None
    delay_ms: Millis = 0
    #: 0 is never.
    ttl_ms: Millis = 0


class Publish(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str
    items: list[Item]
    #: False: an error `no-queue` instead of a new queue.
    create: bool = True


class Reserve(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str
    limit: Tag
    wait_ms: Millis = 0
    #: 0 takes the server's default.
    lease_ms: Millis = 0
    #: True: the lease outlives the connection, until it runs out or somebody settles it.
    detached: bool = False
    create: bool = True


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """One reserved message. Its receipt is the batch's token and its key."""

    key: int
    body: bytes
    extra: Extra | None
    published_ms: int
    #: 0 is never.
    expires_ms: int
    #: Deliveries before this one.
    count: int = 0


class Batch(msgspec.Struct, frozen=True, array_like=True):
    #: 0 when `items` is empty.
    token: int
    lease_ms: Millis
    items: list[Delivered]


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Receipts of one reserved batch, or of part of it."""

    token: int
    keys: list[int]


class Ack(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    held: list[Held]


class Release(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    held: list[Held]
    delay_ms: Millis = 0
    #: False: as if the messages had not been handed out this time. Needs the feature `uncounted-release`.
    counted: bool = True


class Extend(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    held: list[Held]
    lease_ms: Millis


class Copy(msgspec.Struct, frozen=True, array_like=True):
    token: int
    key: int
    item: Item


class Move(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str
    copies: list[Copy]
    create: bool = True


class Depth(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str


class DepthReply(msgspec.Struct, frozen=True, array_like=True):
    ready: int
    reserved: int
    delayed: int
    #: Publish time of the first message in the queue; 0 when it is empty.
    oldest_ms: int


class Browse(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str
    #: Keys greater than this one; 0 begins at the oldest.
    after: Key = 0
    limit: Tag = 100


class Queues(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag


class QueueMetrics(msgspec.Struct, frozen=True, array_like=True):
    name: str
    ready: int
    reserved: int
    delayed: int
    consumers: int
    published: int
    acked: int
    expired: int
    dead: int
    oldest_ms: int


class Flush(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    queue: str


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """Move ready messages, oldest first, to the end of another queue."""

    tag: Tag
    source: str
    target: str
    #: 0 is all of them.
    limit: Tag = 0


class Status(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag


class Reply(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    result: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, array_like=True):
    tag: Tag
    #: One of full, denied, too-large, no-queue, bad-request, stopping, failed.
    code: str
    text: str
    #: Numbers that belong to the code; too-large: size and limit.
    detail: list[int] = msgspec.field(default_factory=list)


_TYPES: Final[dict[type, Type]] = {
    Hello: Type.HELLO, Welcome: Type.WELCOME, Failure: Type.ERROR, Publish: Type.PUBLISH,
    Reserve: Type.RESERVE, Ack: Type.ACK, Release: Type.RELEASE, Extend: Type.EXTEND, Move: Type.MOVE,
    Depth: Type.DEPTH, Browse: Type.BROWSE, Queues: Type.QUEUES, Flush: Type.FLUSH,
    Transfer: Type.TRANSFER, Status: Type.STATUS,
}  # fmt: skip
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODERS: Final = {
    **{number: msgspec.msgpack.Decoder(kind) for kind, number in _TYPES.items()},
    Type.REPLY: msgspec.msgpack.Decoder(Reply),
}
T = TypeVar("T")


def pack(value: msgspec.Struct) -> bytes:
    """The whole frame of an extension message."""
    return extended(_TYPES[type(value)], _ENCODER.encode(value))


def pack_reply(tag: int, result: Any) -> bytes:
    return extended(Type.REPLY, _ENCODER.encode((tag, result)))


def unpack(number: Type, payload: bytes) -> Any:
    """The value of an extension message's payload, checked field by field."""
    try:
        return _DECODERS[number].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as exc:
        raise ProtocolViolation(f"payload of message type {number:03d} is malformed: {exc}") from None


def unpack_result(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise ProtocolViolation(f"reply is malformed: {exc}") from None


def pack_extra(extra: Extra | None) -> bytes | None:
    """How an Extra is kept in the store."""
    return None if extra is None else _ENCODER.encode(extra)


def unpack_extra(raw: bytes | None) -> Extra | None:
    return None if raw is None else msgspec.msgpack.decode(raw, type=Extra)
