"""How often a message was delivered before: body, property and broker count (contract rules, chapter 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shinar.settlement.traits import Traits

_INT32_MAX: Final = 2**31 - 1


def reconcile(traits: Traits, body_attempts: int, native_count: object, properties: Mapping[str, Any]) -> int:
    """The count before this delivery. Odd counts are ignored, never an error."""
    rule = traits.attempts
    if rule == "body" or (rule == "max" and native_count == traits.count_base and body_attempts >= 0):
        return body_attempts  # the first delivery, nearly always
    count = body_attempts
    if traits.attempts in ("property", "property_max", "body_or_property"):
        stated = parse_count(properties.get(traits.attempts_property))
        if stated is not None:
            count = max(count, stated) if rule == "body_or_property" else stated
    if traits.attempts in ("max", "property_max") and traits.count_base is not None:
        native = parse_count(native_count)
        if native is not None:
            count = max(count, native - traits.count_base)
    return count


def parse_count(value: object) -> int | None:
    """A count as brokers write it: an int, or ASCII digits. Anything else is not a count."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= 10):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _INT32_MAX else None
