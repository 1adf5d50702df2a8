"""The payload of a dead letter as Spark's VARIANT sees it: exact numbers, and a type for every member. Pure.

This is the one definition of how JSON becomes a Spark type: what `schema_of_variant(parse_json(data))` says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import msgspec

from shinar.redrive.letters.letter import whole
from shinar.redrive.select.tree import Path
from shinar.redrive.select.types import (
    ARRAY,
    BIGINT,
    BOOLEAN,
    DOUBLE,
    MAX_PRECISION,
    OBJECT,
    STRING,
    VOID,
    SqlType,
    decimal,
)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
#: More digits than this are a double without being counted.
_MANY_DIGITS: Final = 2 * MAX_PRECISION


def fraction(text: str) -> Decimal | float:
    """A JSON number with a point or an exponent: a decimal, unless it has an exponent or too many digits."""
    if "e" in text or "E" in text or len(text) > _MANY_DIGITS:
        return float(text)
    found = Decimal(text)
    _, digits, exponent = found.as_tuple()
    if len(digits) > MAX_PRECISION or -int(exponent) > MAX_PRECISION:
        return float(text)
    return found


class _Envelope(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"null")


_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_exact: Final = msgspec.json.Decoder(float_hook=fraction).decode


def decode(body: bytes) -> Any:
    """The `data` of a body that was accepted, with the digits as they were written."""
    try:
        return _exact(_envelope(body).data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Half a surrogate pair, which msgspec refuses and JSON carries.
        return json.loads(body, parse_float=fraction).get("data")


def member(data: Any, path: Path) -> Any:
    """The value at the path; None where there is none."""
    for step in path:
        if isinstance(step, str):
            data = data.get(step) if isinstance(data, dict) else None
        elif isinstance(data, list) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def typed(value: Any) -> tuple[SqlType, Any]:
    """(its type, the value as expressions see it)."""
    return _TYPED[type(value)](value)


def _integer(value: int) -> tuple[SqlType, Any]:
    if _INT64_MIN <= value <= _INT64_MAX:
        return BIGINT, value
    if abs(value) < 10**MAX_PRECISION:
        return decimal(len(str(abs(value))), 0), Decimal(value)
    return DOUBLE, float(value)


def _fraction(value: Decimal) -> tuple[SqlType, Any]:
    """Zeros at the end do not count: 1.50 is a DECIMAL(2,1)."""
    if not value:
        return decimal(1, 0), Decimal(0)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    while exponent < 0 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    return decimal(max(len(digits), -exponent), -exponent), Decimal((sign, digits, exponent))


_TYPED: Final[dict[type, Callable[[Any], tuple[SqlType, Any]]]] = {
    NoneType: lambda value: (VOID, value),
    bool: lambda value: (BOOLEAN, value),
    str: lambda value: (STRING, whole(value)),
    int: _integer,
    float: lambda value: (DOUBLE, value),
    Decimal: _fraction,
    dict: lambda value: (OBJECT, value),
    list: lambda value: (ARRAY, value),
}
