"""How often a message was delivered before: body, property and broker count (contract rules, chapter 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shinar.settlement.traits import Traits

#: One delivery without an outcome never condemns a message, whatever `max_attempts` is: a worker that is
#: killed loses everything it had prefetched, and most of that was never started.
FEWEST_LOST: Final = 2

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


def counts_deliveries(traits: Traits) -> bool:
    """Whether a message that was lost without an outcome comes back counted."""
    return traits.count_base is not None or traits.lapse_counts


def deliveries_before(traits: Traits, body_attempts: int, native_count: object) -> int:
    """How often the broker itself handed the message out before; 0 where it keeps no count."""
    if traits.count_base is not None:
        native = parse_count(native_count)
        return 0 if native is None else max(0, native - traits.count_base)
    return body_attempts if traits.lapse_counts else 0


def delivered_too_often(deliveries: int, max_attempts: int) -> bool:
    """Every attempt was delivered and none has an outcome: the message ends its workers. It is dead-lettered
    before another handler is called."""
    return deliveries >= max(max_attempts, FEWEST_LOST)


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
