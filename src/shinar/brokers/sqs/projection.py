"""What the attributes of an SQS message repeat of its envelope. No client."""

from __future__ import annotations

from typing import Final

from shinar.brokers.projection import BQ_HEADERS, Table

PROJECTION: Final[Table] = {**BQ_HEADERS, "bq-created-at": ("header", "created_at", str)}
