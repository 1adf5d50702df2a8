"""A message of ours as AMQP properties, and the properties of a delivery as they go into a copy.
Knows pika's properties and the contract's projection; no connection and no queue."""

from __future__ import annotations

import re
from typing import Any, Final

import pika

from shinar.brokers.contract import Outgoing
from shinar.brokers.projection import project
from shinar.brokers.rabbitmq.frames import without
from shinar.brokers.rabbitmq.projection import PROJECTION
from shinar.brokers.rabbitmq.publisher import Piece
from shinar.errors import Unsupported

#: The protocol's limit for a short string, such as a property.
SHORT_STRING_BYTES: Final = 255
#: Properties and headers travel in one frame, 128 KiB unless the server is set up otherwise.
MAX_HEADERS_BYTES: Final = 128 * 1024 - 1024
#: Headers the broker adds, and those that tell it where else a copy should go: a copy made for a
#: retry must not go there again. They are neither the user's nor the contract's.
BROKER_HEADERS: Final = re.compile(
    r"(x-(death|first-death-.*|last-death-.*|delivery-count|acquired-count)|CC|BCC)$"
)
#: UTF-8 writes a character in this many bytes at most.
_WIDEST: Final = 4


def piece(message: Outgoing, queue: str) -> Piece:
    projected = project(PROJECTION, message)
    headers = dict(projected.headers)
    longest = sum(len(name) + len(value) for name, value in headers.items() if isinstance(value, str))
    if longest * _WIDEST > MAX_HEADERS_BYTES:
        size = sum(len(f"{name}{value}".encode("utf-8", "replace")) for name, value in headers.items())
        if size > MAX_HEADERS_BYTES:
            raise Unsupported(
                "rabbitmq",
                f"carry {size} bytes of headers to the queue {queue}",
                f"the limit is {MAX_HEADERS_BYTES}; put it into the data",
            )
    properties = pika.BasicProperties(
        **{name: value for name, value in projected.properties.items() if _fits(value)},
        content_encoding="utf-8",
        delivery_mode=pika.DeliveryMode.Persistent.value,
        headers=headers,
    )
    return message.body, properties


def _fits(value: str) -> bool:
    """A property that does not fit is left out: the body has it, and a record must always be writable."""
    try:
        return len(value.encode("utf-8")) <= SHORT_STRING_BYTES
    except UnicodeEncodeError:
        return False


class _AsItCame(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Bytes in place of values: pika cannot write all that others can."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> list[Any]:
        return [self._encoded]


def as_it_came(encoded: bytes) -> pika.BasicProperties:
    """For a copy: everything but what is between a sender and the broker. The broker lets nobody
    write another's user id."""
    return _AsItCame(without(encoded, "user_id", lambda name: not BROKER_HEADERS.match(name)))
