"""An Outgoing as an AMQP 1.0 message that JMS reads as a TextMessage, and the way back."""

from __future__ import annotations

from typing import Any, Final

from proton import Message, symbol

from shinar.brokers.artemis.projection import PROJECTION
from shinar.brokers.artemis.transport import BROKER
from shinar.brokers.contract import NOTHING, Delivery, Outgoing
from shinar.brokers.projection import (
    checked_delay_s,
    contract_properties,
    plain_text,
    project,
    user_headers,
)

#: Epoch milliseconds at which Artemis hands the message out; it reads an AMQP long only.
_DUE: Final = symbol("x-opt-delivery-time")
#: Seconds with half a millisecond on top: proton cuts the fraction off, and would lose one otherwise.
_HALF_MS: Final = 0.5
#: Codes with which a section of a message may begin.
_SECTIONS: Final = frozenset(bytes([code]) for code in range(0x70, 0x79))
_TYPE: Final = symbol("x-opt-jms-type")
#: The last creation time that survives proton's seconds. A later one, legal in a body, is left out.
_LAST_MS: Final = 2**53


def encode(message: Outgoing, now_ms: int) -> bytes:
    shown = project(PROJECTION, message)
    amqp: Any = Message()
    amqp.durable = True
    try:
        amqp.body = message.body.decode("utf-8")
    except UnicodeDecodeError:
        amqp.inferred = True
        amqp.body = message.body
    amqp.properties = dict(shown.headers)
    if "correlation_id" in shown.properties:
        amqp.correlation_id = shown.properties["correlation_id"]
    created_ms = shown.properties.get("creation_time")
    if created_ms is not None and 0 <= created_ms <= _LAST_MS:
        amqp.creation_time = (created_ms + _HALF_MS) / 1000
    annotations = {symbol(name): value for name, value in shown.annotations.items()}
    if checked_delay_s(BROKER, message.delay_s) > 0:
        annotations[_DUE] = now_ms + round(message.delay_s * 1000)
    if annotations:
        amqp.annotations = annotations
    packed: bytes = amqp.encode()
    return packed


def delayed_copy(packed: bytes, due_ms: int) -> bytes:
    """The same message, to be handed out later: everything of it is kept but its delivery count."""
    amqp: Any = Message()
    amqp.decode(packed)
    amqp.annotations = {**(amqp.annotations or {}), _DUE: due_ms}
    amqp.delivery_count = 0
    amqp.durable = True
    again: bytes = amqp.encode()
    return again


def decode(packed: bytes, queue: str, receipt: Any, received_ms: int) -> Delivery:
    amqp: Any = Message()
    amqp.decode(packed)
    headers = amqp.properties or NOTHING
    properties: dict[str, Any] = contract_properties(headers)
    if amqp.annotations and _TYPE in amqp.annotations:
        properties["x-opt-jms-type"] = str(amqp.annotations[_TYPE])
    if amqp.correlation_id is not None:
        properties["correlation_id"] = amqp.correlation_id
    if amqp.creation_time:
        properties["creation_time"] = round(amqp.creation_time * 1000)
    return Delivery(
        _bytes_of(amqp.body) if amqp.body is not None else _without_body(packed),
        queue,
        receipt,
        user_headers(headers) or NOTHING,
        properties or NOTHING,
        None,
        amqp.delivery_count,
        received_ms,
        None,
        plain_text(amqp.id) if amqp.id is not None else "",
    )


def _bytes_of(body: Any) -> bytes:
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return str(body).encode()


def _without_body(packed: bytes) -> bytes:
    """A message may lack a body. Bytes that are no message at all are kept, to be dead-lettered:
    proton reads them as one without anything."""
    section = packed[:3]
    return b"" if section[:2] == b"\x00\x53" and section[2:] in _SECTIONS else packed
