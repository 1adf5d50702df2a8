"""The schema-version gate: may a delivery be decoded at all? Decided on the property alone (contract rules,
chapter 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shinar.envelope.model import SCHEMA_VERSION, blank
from shinar.settlement.traits import Traits


def gated(traits: Traits, properties: Mapping[str, Any]) -> bool:
    """True when the property names a version we do not speak; the body must not be looked at."""
    if traits.gate_property is None:
        return False
    return not speaks(properties.get(traits.gate_property))


def speaks(value: object) -> bool:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or (isinstance(value, str) and blank(value)):
        return True
    if isinstance(value, str):
        return value == str(SCHEMA_VERSION)
    return isinstance(value, int) and not isinstance(value, bool) and value == SCHEMA_VERSION
