"""Spark SQL's casts in ANSI mode: a value of one type as another, or a CastFailed that says why. Pure.

TIMESTAMP values are microseconds since 1970 in UTC, DATE values are days, DECIMAL values are Decimals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

from shinar.redrive.select.types import (
    BIGINT,
    BOOLEAN,
    BOUNDS,
    DATE,
    DOUBLE,
    INT,
    INTEGRAL,
    STRING,
    TIMESTAMP,
    SqlType,
    TypeMismatch,
    is_decimal,
    is_numeric,
)

Cast = Callable[[Any], Any]

#: Exact for every operation on 38 digits; rounding happens when a result is given its scale.
EXACT: Final = Context(prec=100, rounding=ROUND_HALF_UP, Emax=999_999, Emin=-999_999)
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: Characters that Spark trims off a text before it reads a number, a boolean or a time from it.
_TRIMMED: Final = "".join(map(chr, range(33))) + "\x7f"
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,40}")
#: Longer texts are not read as numbers: no number needs them, and reading them is not linear.
_MAX_NUMBER_CHARS: Final = 400
_NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,6})?")
_INFINITY: Final = re.compile(r"([-+]?)inf(inity)?", re.IGNORECASE)
_TRUE: Final = frozenset({"t", "true", "y", "yes", "1"})
_FALSE: Final = frozenset({"f", "false", "n", "no", "0"})
_MOMENT: Final = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?"
    r"\s*(Z|UTC|GMT|[-+]\d{1,2}(?::?\d{2})?)?)?)?)?)?",
    re.ASCII,
)


class CastFailed(Exception):
    """Spark would raise CAST_INVALID_INPUT, CAST_OVERFLOW or NUMERIC_VALUE_OUT_OF_RANGE."""

    def __init__(self, value: object, to: SqlType) -> None:
        text = f"{value!r}" if isinstance(value, str) else f"{value}"
        super().__init__(f"{text[:80]} cannot be cast to {to}")


def cast_to(origin: SqlType, to: SqlType) -> Cast | None:
    """How a value that is not NULL changes its type; None if it stays as it is."""
    if origin == to:
        return None
    if is_numeric(origin) and is_numeric(to):
        return _between_numbers(origin, to)
    found = _CASTS.get((_family(origin), _family(to)))
    if found is None:
        raise TypeMismatch(f"{origin} cannot be cast to {to}")
    if to in INTEGRAL or is_decimal(to):
        return lambda value: found(value, to)
    return lambda value: found(value)


def fits(value: int, to: SqlType) -> bool:
    low, high = BOUNDS[to]
    return low <= value <= high


def scaled(value: Decimal, to: SqlType) -> Decimal:
    """Rounded half up to the type's scale; CastFailed if the digits before the point do not fit."""
    if value.as_tuple().exponent != -to.scale:
        value = value.quantize(Decimal((0, (1,), -to.scale)), context=EXACT)
    if not value:
        return value.copy_abs()  # Java's decimals have no -0
    if len(value.as_tuple().digits) > to.precision:
        raise CastFailed(value, to)
    return value


def double_text(value: float) -> str:
    """As Java writes a double: 1.0, 1.0E10, 1.5E-5, NaN, -Infinity."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + exponent
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"


def to_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _between_numbers(origin: SqlType, to: SqlType) -> Cast | None:
    if to == DOUBLE:
        return to_double
    if to == BIGINT and origin == INT:
        return None
    if to in INTEGRAL:
        return lambda value: _truncated(value, to)
    if is_decimal(origin) and to.scale == origin.scale and to.precision >= origin.precision:
        return None
    if origin == DOUBLE:
        return lambda value: _double_to_decimal(value, to)
    return lambda value: scaled(Decimal(value), to)


def _truncated(value: Any, to: SqlType) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        raise CastFailed(double_text(value), to)
    whole = int(value)
    if not fits(whole, to):
        raise CastFailed(double_text(value) if isinstance(value, float) else value, to)
    return whole


def _double_to_decimal(value: float, to: SqlType) -> Decimal:
    if not math.isfinite(value) or abs(value) >= 1e39:
        raise CastFailed(double_text(value), to)
    return scaled(Decimal(repr(value)), to)


def _text_to_integer(value: str, to: SqlType) -> int:
    text = value.strip(_TRIMMED)
    if _INTEGER.fullmatch(text) and fits(number := int(text), to):
        return number
    raise CastFailed(value, to)


def _text_to_double(value: str) -> float:
    text = value.strip(_TRIMMED)
    if len(text) <= _MAX_NUMBER_CHARS:
        plain = text[:-1] if text[-1:] in ("d", "D", "f", "F") else text
        if _NUMBER.fullmatch(plain):
            return float(plain)
        if match := _INFINITY.fullmatch(text):
            return -math.inf if match[1] == "-" else math.inf
        if text.lower() == "nan":
            return math.nan
    raise CastFailed(value, DOUBLE)


def _text_to_decimal(value: str, to: SqlType) -> Decimal:
    text = value.strip(_TRIMMED)
    if len(text) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(text):
        number = Decimal(text)
        if not number:
            return scaled(Decimal(0), to)
        if number.adjusted() < MAX_ADJUSTED:
            return scaled(number, to) if number.adjusted() >= -MAX_ADJUSTED else scaled(Decimal(0), to)
    raise CastFailed(value, to)


#: Powers of ten beyond which no decimal of 38 digits has anything but zeros.
MAX_ADJUSTED: Final = 39


def _text_to_boolean(value: str) -> bool:
    text = value.strip(_TRIMMED).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise CastFailed(value, BOOLEAN)


def _text_to_timestamp(value: str) -> int:
    match = _MOMENT.fullmatch(value.strip(_TRIMMED))
    if match is not None:
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        try:
            at = datetime(
                *(int(year), int(month or 1), int(day or 1)),
                *(int(hour or 0), int(minute or 0), int(second or 0)),
                int(f"{fraction or '':0<6}"[:6]),
                tzinfo=_zone(zone),
            )
            return (at - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            pass  # no such day, hour or zone
    raise CastFailed(value, TIMESTAMP)


def _zone(text: str | None) -> timezone:
    if text is None or text[0] not in "+-":
        return UTC
    digits = text[1:].replace(":", "")
    hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
    if hours > 18 or minutes > 59:
        raise ValueError(text)
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if text[0] == "-" else offset)


def _text_to_date(value: str) -> int:
    text = value.strip(_TRIMMED)
    day, _, _ = text.replace("T", " ", 1).partition(" ")
    match = _MOMENT.fullmatch(day)
    if match is None:
        raise CastFailed(value, DATE)
    return _text_to_timestamp(day) // _DAY_US


def _timestamp_text(value: int) -> str:
    at = _moment(value)
    text = f"{at.year:04d}-{at:%m-%d %H:%M:%S}"
    return f"{text}.{at.microsecond:06d}".rstrip("0") if at.microsecond else text


def _moment(value: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError:
        raise CastFailed(f"a time {value} microseconds from 1970", STRING) from None


def _date_text(value: int) -> str:
    found: date = _moment(value * _DAY_US).date()
    return found.isoformat()


def _family(one: SqlType) -> str:
    if one in INTEGRAL:
        return "integer"
    return one.name


def _timestamp_to_integer(value: int, to: SqlType) -> int:
    return _truncated(value // 1_000_000, to)


_CASTS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("STRING", "integer"): _text_to_integer,
    ("STRING", "DECIMAL"): _text_to_decimal,
    ("STRING", "DOUBLE"): _text_to_double,
    ("STRING", "BOOLEAN"): _text_to_boolean,
    ("STRING", "TIMESTAMP"): _text_to_timestamp,
    ("STRING", "DATE"): _text_to_date,
    ("integer", "STRING"): str,
    ("DECIMAL", "STRING"): lambda value: format(value, "f"),
    ("DOUBLE", "STRING"): double_text,
    ("BOOLEAN", "STRING"): lambda value: "true" if value else "false",
    ("TIMESTAMP", "STRING"): _timestamp_text,
    ("DATE", "STRING"): _date_text,
    ("integer", "BOOLEAN"): bool,
    ("DECIMAL", "BOOLEAN"): bool,
    ("DOUBLE", "BOOLEAN"): bool,
    ("BOOLEAN", "integer"): lambda value, _to: int(value),
    ("BOOLEAN", "DOUBLE"): float,
    ("BOOLEAN", "DECIMAL"): lambda value, to: scaled(Decimal(int(value)), to),
    ("DATE", "TIMESTAMP"): lambda value: value * _DAY_US,
    ("TIMESTAMP", "DATE"): lambda value: value // _DAY_US,
    ("TIMESTAMP", "integer"): _timestamp_to_integer,
}
