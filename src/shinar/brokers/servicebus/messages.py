"""Between Shinar's values and the SDK's messages. No connection, no clock."""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from shinar.brokers.contract import Delivery, Outgoing
from shinar.brokers.projection import (
    checked_delay_s,
    contract_properties,
    plain_text,
    project,
    user_headers,
)
from shinar.brokers.servicebus.projection import PROJECTION
from shinar.errors import ContractError

BROKER: Final = "servicebus"
#: Deliveries a message had before it was sent again by a delayed release (which resets the broker's count).
DELIVERIES: Final = "x-shinar-deliveries"
#: What the service adds to a message in a dead-letter sub-queue; a copy that leaves it is dead no more.
DEAD_LETTER_NOTES: Final = frozenset({"DeadLetterReason", "DeadLetterErrorDescription"})
#: Service Bus takes no longer message or session id.
MAX_ID: Final = 128
_INT32: Final = range(-(2**31), 2**31)
#: What an application property may be besides text. Not bytes: as such the SDK delivers text, too.
_TYPES: Final = (int, float, uuid.UUID)


def message_of(outgoing: Outgoing, now_s: float, *, origin: Delivery | None = None) -> ServiceBusMessage:
    """`origin` is given for a copy of a delivery."""
    projected = project(PROJECTION, outgoing)
    native = dict(projected.properties)
    headers = dict(projected.headers)
    place = outgoing.origin if origin is None else f"{origin.queue}\0{origin.position}"
    if place:
        native["message_id"] = _copy_id(native.get("message_id", ""), outgoing.body, place)
    if origin is not None:
        typed = _typed_headers(origin)
        headers = {
            name: typed[name] if name in typed and plain_text(typed[name]) == value else value
            for name, value in headers.items()
            if name not in DEAD_LETTER_NOTES
        }
    for name in ("message_id", "correlation_id"):
        if len(native.get(name, "")) > MAX_ID:
            # A redundant view; the body keeps the whole.
            native[name] = hashlib.sha256(native[name].encode()).hexdigest()
    message = ServiceBusMessage(
        outgoing.body,
        application_properties={name: _typed(value) for name, value in headers.items()},
        session_id=session_of(outgoing.key),
        **native,
    )
    if checked_delay_s(BROKER, outgoing.delay_s) > 0:
        due = datetime.datetime.fromtimestamp(now_s + outgoing.delay_s, datetime.UTC)
        message.scheduled_enqueue_time_utc = due
    return message


def released_copy(delivery: Delivery, now_s: float, delay_s: float) -> ServiceBusMessage:
    """The same message again, due later, that remembers how often it was delivered."""
    same = Outgoing(delivery.body, delivery.headers, delivery.key, delay_s)
    message = message_of(same, now_s, origin=delivery)
    count = (delivery.native_count or 0) + 1
    # The contract's properties as they came, not as the body would have them: a gated message stays gated.
    properties: dict[str | bytes, Any] = dict(message.application_properties or {})
    properties.update({name: _typed(value) for name, value in delivery.properties.items()})
    message.application_properties = {**properties, DELIVERIES: count}
    return message


def session_of(key: bytes | None) -> str | None:
    if not key:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not 0 < len(text) <= MAX_ID:
        raise ContractError(f"a key becomes a session id: UTF-8 text of up to {MAX_ID} characters")
    return text


def delivery_of(queue: str, message: ServiceBusReceivedMessage, now_ms: int, lease_ms: int) -> Delivery:
    """`lease_ms` is for messages that tell no end of their lock: those of a session."""
    locked = None if message.locked_until_utc is None else int(message.locked_until_utc.timestamp() * 1000)
    made = peeked(queue, message, now_ms)
    found = {_text(name): value for name, value in (message.application_properties or {}).items()}
    # Headers are text to Shinar; a copy of the message gets them back as what they were.
    typed = tuple((name, found[name]) for name in made.headers if isinstance(found[name], _TYPES))
    return msgspec.structs.replace(
        made,
        receipt=(str(message.lock_token), message.session_id or "", typed),
        lease_until_ms=locked or now_ms + lease_ms,
    )


def peeked(queue: str, message: ServiceBusReceivedMessage, now_ms: int) -> Delivery:
    found = {_text(name): value for name, value in (message.application_properties or {}).items()}
    earlier = found.pop(DELIVERIES, 0)
    session = message.session_id
    return Delivery(
        body=body_of(message),
        queue=queue,
        headers=user_headers(found),
        properties=contract_properties(found),
        key=session.encode() if session else None,
        native_count=(message.delivery_count or 0) + (earlier if isinstance(earlier, int) else 0),
        received_ms=now_ms,
        position=str(message.sequence_number or ""),
    )


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    if message.body_type is AmqpMessageBodyType.DATA:
        return b"".join(message.body)
    # Other clients may send one AMQP value; text is taken as the body it stands for.
    value: Any = message.body
    if message.body_type is AmqpMessageBodyType.SEQUENCE:
        # Text or bytes in pieces are joined; anything else can only be shown as it is.
        pieces = [piece for part in value for piece in (part if isinstance(part, list) else [part])]
        joined = all(isinstance(piece, str | bytes) for piece in pieces)
        return b"".join(map(_bytes_of, pieces)) if joined else str(pieces).encode()
    return _bytes_of(value)


def _bytes_of(value: Any) -> bytes:
    if value is None or isinstance(value, bytes):
        return value or b""
    return str(value).encode("utf-8", "surrogatepass")


def _copy_id(own: str, body: bytes, place: str) -> str:
    """Duplicate detection swallows, and confirms, a second message under the same id. A copy keeps meta.id
    in its body, so it travels under an id made of the message it replaces (`place`): only the very same
    copy, repeated because the first one's settlement was lost, is a duplicate."""
    digest = hashlib.sha256(f"{place}\0".encode() + body).hexdigest()
    return f"{own[:90]}:{digest[:32]}"


def _typed_headers(origin: Delivery) -> dict[str, Any]:
    """The headers of the original that were no text; `delivery_of` put them into its receipt."""
    return dict(origin.receipt[2]) if origin.receipt and len(origin.receipt) > 2 else {}


def _typed(value: Any) -> Any:
    # The SDK encodes an int as a 32-bit one and fails on more; this is its way to ask for a long.
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INT32:
        return {"TYPE": "LONG", "VALUE": value}
    return value


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def dead_letter_reason(headers: Mapping[str, str]) -> tuple[str, str]:
    return headers.get("DeadLetterReason", "moved by a worker"), headers.get("DeadLetterErrorDescription", "")
