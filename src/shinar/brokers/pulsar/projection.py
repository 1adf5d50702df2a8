"""What the properties of a Pulsar message repeat of its envelope. No client."""

from __future__ import annotations

from typing import Final

from shinar.brokers.projection import BQ_HEADERS, Table

PROJECTION: Final[Table] = {**BQ_HEADERS, "bq-attempts": ("header", "attempts", str)}
