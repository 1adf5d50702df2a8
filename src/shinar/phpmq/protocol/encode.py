"""Values to bytes: every function returns one whole frame, ready for one write."""

from __future__ import annotations

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
from shinar.phpmq.protocol.wire import ID_LENGTH, Packet, Type


def encode(message: Message) -> bytes:
    """The bytes of any message. A None TTL leaves the packet out: the legacy form."""
    match message:
        case Send(queue, content, ttl_s):
            return _frame(Type.SEND, _queue(queue), _packet(Packet.CONTENT, content), *_ttl(ttl_s))
        case Consume(queue, count):
            return _frame(Type.CONSUME, _queue(queue), _packet(Packet.COUNT, b"%d" % count))
        case Dispatch(queue, content, id_, ttl_s):
            parts = (_queue(queue), _packet(Packet.CONTENT, content), _id(id_), *_ttl(ttl_s))
            return _frame(Type.DISPATCH, *parts)
        case Acknowledge(queue, id_):
            return _frame(Type.ACKNOWLEDGE, _queue(queue), _id(id_))
        case Requeue(queue, id_, ttl_s):
            return _frame(Type.REQUEUE, _queue(queue), _id(id_), *_ttl(ttl_s))
        case DeadLetter(queue, id_):
            return _frame(Type.DEAD_LETTER, _queue(queue), _id(id_))
        case Extended(type_, payload):
            return extended(type_, payload)


def extended(type_: int, payload: bytes) -> bytes:
    return b"H01%03d01P10%029d%b" % (type_, len(payload), payload)


def dispatch_prefix(queue: str, *, ttl: bool) -> bytes:
    """What every dispatch from one queue begins with, up to the content's length."""
    name = queue.encode()
    return b"H01003%bP01%029d%bP02" % (b"04" if ttl else b"03", len(name), name)


def dispatch_frame(prefix: bytes, content: bytes, id_: bytes, ttl_s: int | None) -> bytes:
    """A dispatch on the fast path; `prefix` decides the form, and a TTL form needs `ttl_s`."""
    if ttl_s is None:
        return b"%b%029d%bP03%029d%b" % (prefix, len(content), content, ID_LENGTH, id_)
    ttl = b"%d" % ttl_s
    return b"%b%029d%bP03%029d%bP05%029d%b" % (
        prefix, len(content), content, ID_LENGTH, id_, len(ttl), ttl,
    )  # fmt: skip


def _frame(type_: int, *packets: bytes) -> bytes:
    return b"H01%03d%02d%b" % (type_, len(packets), b"".join(packets))


def _packet(type_: int, content: bytes) -> bytes:
    return b"P%02d%029d%b" % (type_, len(content), content)


def _queue(name: str) -> bytes:
    return _packet(Packet.QUEUE, name.encode())


def _id(id_: str) -> bytes:
    return _packet(Packet.ID, id_.encode())


def _ttl(ttl_s: int | None) -> tuple[bytes, ...]:
    return () if ttl_s is None else (_packet(Packet.TTL, b"%d" % ttl_s),)
