"""A row of a lake's `dead_letters` or `quarantine` table as the delivery it was. No Spark, no file."""

from __future__ import annotations

from typing import Any, Final

from shinar.brokers import Delivery
from shinar.settlement.traits import Traits

#: Columns that make a delivery again.
COLUMNS: Final = ("body", "queue", "received_at", "properties", "position", "headers", "key")
#: How such a row is read: the gate's property under its usual name, and records that stay where they are.
TRAITS: Final = Traits(
    name="lake", gate_property="bq-schema-version", replayable=True, stable_position=True, depth=False
)


def delivery_of(*row: Any) -> Delivery:
    """The values of COLUMNS, in their order."""
    body, queue, received_at, properties, position, headers, key = row
    return Delivery(
        bytes(body or b""),
        queue or "",
        headers=dict(headers or ()),
        properties=dict(properties or ()),
        key=None if key is None else bytes(key),
        received_ms=round(received_at.timestamp() * 1000) if received_at else 0,
        position=position or "",
    )
