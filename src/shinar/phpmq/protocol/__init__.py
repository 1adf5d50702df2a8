"""PHPMQ as values: wire tables, messages, encode, incremental decode. Pure, no sockets, no clock."""

from __future__ import annotations

from shinar.phpmq.protocol.decode import Decoder
from shinar.phpmq.protocol.encode import encode
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
from shinar.phpmq.protocol.wire import Limits, Packet, Type

__all__ = [
    "Acknowledge",
    "Consume",
    "DeadLetter",
    "Decoder",
    "Dispatch",
    "Extended",
    "Limits",
    "Message",
    "Packet",
    "Requeue",
    "Send",
    "Type",
    "encode",
]
