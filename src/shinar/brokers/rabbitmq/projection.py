"""What an AMQP 0-9-1 message repeats of its envelope. No client."""

from __future__ import annotations

from typing import Final

from shinar.brokers.projection import Table

PROJECTION: Final[Table] = {
    "type": ("property", "urn", str),
    "correlation_id": ("property", "trace_id", str),
    "message_id": ("property", "id", str),
    "app_id": ("property", "app_id", str),
    "content_type": ("property", "content_type", str),
    "x-schema-version": ("header", "schema_version", int),
    "x-source-lang": ("header", "lang", str),
    "x-attempts": ("header", "attempts", int),
}
