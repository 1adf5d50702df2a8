"""Messages of the Service Bus stand-in as AMQP sections: what is sent on is byte for byte what came."""

from __future__ import annotations

from collections.abc import Iterator

from proton import Message, symbol, timestamp
from servicebus_queue import Stored

#: Descriptor codes of the sections of a message.
HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x72, 0x73, 0x74, 0x75


def sections(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Descriptor code and bytes of each section, the descriptor included."""
    at = 0
    while at < len(payload):
        start, code, kind = at, payload[at + 2], payload[at + 3]
        if kind in (0xA0, 0xA1, 0xC0, 0xC1):
            at += 5 + payload[at + 4]
        elif kind in (0xB0, 0xB1, 0xD0, 0xD1):
            at += 8 + int.from_bytes(payload[at + 4 : at + 8], "big")
        elif kind in (0x40, 0x45):
            at += 4
        else:  # some other scalar as an amqp-value: always the last section
            at = len(payload)
        yield code, payload[start:at]


def content(section: bytes) -> bytes:
    """The bytes inside a data section."""
    return section[5:] if section[3] == 0xA0 else section[8:]


def unpack(payload: bytes) -> list[bytes]:
    """The messages of a transfer: a batch is a message whose data sections are messages."""
    inner = [content(section) for code, section in sections(payload) if code == DATA]
    is_batch = bool(inner) and all(data[:2] == b"\x00\x53" and HEADER <= data[2] <= 0x78 for data in inner)
    return inner if is_batch else [payload]


def stored(payload: bytes, at_ms: int) -> Stored:
    message = Message()
    message.decode(payload)
    kept: dict[int, bytes] = {}
    body = b""
    for code, section in sections(payload):
        if code in (PROPERTIES, APPLICATION):
            kept[code] = section
        elif code > APPLICATION:
            body += section
    annotations = dict(message.annotations or {})
    due = annotations.pop("x-opt-scheduled-enqueue-time", 0)
    return Stored(
        kept.get(PROPERTIES, b""),
        kept.get(APPLICATION, b""),
        body,
        message_id=str(message.id or ""),
        session=message.group_id or "",
        annotations={
            str(name): value for name, value in annotations.items() if not name.startswith("x-opt-")
        },
        expires_ms=at_ms + int(message.ttl * 1000) if message.ttl else None,
        due_ms=int(due),
    )


def wire(message: Stored) -> bytes:
    """What a receiver gets: a fresh header and annotations around the sections as they came."""
    notes = {
        **message.annotations,
        "x-opt-sequence-number": message.sequence,
        "x-opt-enqueued-time": timestamp(message.enqueued_ms),
        "x-opt-message-state": message.state,
    }
    if message.token:
        notes["x-opt-locked-until"] = timestamp(message.locked_until_ms)
    if message.source:
        notes["x-opt-deadletter-source"] = message.source
    top = Message()
    top.annotations = {symbol(name): value for name, value in notes.items()}
    marked = next(section for code, section in sections(top.encode()) if code == ANNOTATIONS)
    application = _with_reason(message) if message.dead else message.application
    return header(message.count) + marked + message.properties + application + message.body


def header(count: int) -> bytes:
    """Durable, and a delivery-count that is written even when it is 0: proton would leave it out."""
    fields = b"\x41\x40\x40\x40\x70" + count.to_bytes(4, "big")
    return b"\x00\x53\x70\xc0" + bytes([len(fields) + 1, 5]) + fields


def _with_reason(message: Stored) -> bytes:
    found = Message()
    if message.application:
        found.decode(message.application + b"\x00\x53\x77\x40")
    found.properties = {**(found.properties or {}), **message.dead}
    return next(section for code, section in sections(found.encode()) if code == APPLICATION)
