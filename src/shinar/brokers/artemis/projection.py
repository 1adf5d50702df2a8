"""What a message on Artemis repeats of its envelope, under names that JMS can read. No client."""

from __future__ import annotations

from typing import Final

from shinar.brokers.projection import Table

PROJECTION: Final[Table] = {
    "x-opt-jms-type": ("annotation", "urn", str),
    "correlation_id": ("property", "trace_id", str),
    "creation_time": ("property", "created_at", int),
    "bq_schema_version": ("header", "schema_version", str),
    "bq_source_lang": ("header", "lang", str),
    "bq_attempts": ("header", "attempts", str),
    "bq_app_id": ("header", "app_id", str),
}
