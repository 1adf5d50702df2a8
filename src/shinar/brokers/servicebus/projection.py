"""What a Service Bus message repeats of its envelope. No client."""

from __future__ import annotations

from typing import Final

from shinar.brokers.projection import Table

PROJECTION: Final[Table] = {
    "subject": ("property", "urn", str),
    "correlation_id": ("property", "trace_id", str),
    "message_id": ("property", "id", str),
    "content_type": ("property", "content_type", str),
    "bq-schema-version": ("header", "schema_version", int),
    "bq-source-lang": ("header", "lang", str),
    "bq-created-at": ("header", "created_at", int),
}
