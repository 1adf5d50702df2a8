"""Spark SQL's operators and functions on values that are not NULL. Pure; the types are settled before."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any, Final

from shinar.redrive.select.casts import EXACT, CastFailed, scaled
from shinar.redrive.select.types import SqlType

#: Enough for every double written out in full.
_LONG: Final = Context(prec=800, rounding=ROUND_HALF_UP)
#: Digits after the point of a quotient before it is given its scale.
_QUOTIENT: Final = Decimal((0, (1,), -39))
_WIDE: Final = Context(prec=160, rounding=ROUND_HALF_UP)


class Undefined(Exception):
    """Spark would raise DIVIDE_BY_ZERO, ARITHMETIC_OVERFLOW or the like."""


# -- comparisons

Compare = Callable[[Any, Any], bool]


def _nan_last(compare: Callable[[float, float], bool]) -> Compare:
    """NaN equals itself and is larger than every other double."""

    def compared(one: float, other: float) -> bool:
        if one != one or other != other:
            return compare(float(one != one), float(other != other))
        return compare(one, other)

    return compared


COMPARISONS: Final[dict[str, Compare]] = {
    "=": lambda one, other: bool(one == other),
    "!=": lambda one, other: bool(one != other),
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}
DOUBLE_COMPARISONS: Final = {sign: _nan_last(compare) for sign, compare in COMPARISONS.items()}


# -- arithmetic


def add(one: Any, other: Any) -> Any:
    return one + other


def subtract(one: Any, other: Any) -> Any:
    return one - other


def multiply(one: Any, other: Any) -> Any:
    return one * other


def divide_doubles(one: float, other: float) -> float:
    if other == 0:
        raise Undefined("division by zero")
    return one / other


def divide_decimals(one: Decimal, other: Decimal) -> Decimal:
    if not other:
        raise Undefined("division by zero")
    # Two roundings as in Spark: to 39 digits after the point, then to the scale of the result.
    exact = Context(prec=200, rounding=ROUND_DOWN).divide(one, other)
    return exact.quantize(_QUOTIENT, context=_WIDE)


def remainder(one: Any, other: Any) -> Any:
    """With the sign of the dividend, as in Java."""
    if not other:
        raise Undefined("division by zero")
    if isinstance(one, Decimal):
        return EXACT.remainder(one, other)
    if isinstance(one, float):
        return math.nan if math.isinf(one) or one != one or other != other else math.fmod(one, other)
    rest = abs(one) % abs(other)
    return -rest if one < 0 else rest


DECIMAL_ARITHMETIC: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": divide_decimals,
    "%": remainder,
}
ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide_doubles,
    "%": remainder,
}


# -- rounding


def rounded_integer(value: int, places: int) -> int:
    if places >= 0:
        return value
    if -places > 40:
        return 0
    unit = 10**-places
    whole, rest = divmod(abs(value), unit)
    found: int = (whole + (2 * rest >= unit)) * unit
    return -found if value < 0 else found


def rounded_decimal(value: Decimal, places: int, to: SqlType) -> Decimal:
    if places < -MAX_PLACES:
        return scaled(Decimal(0), to)
    exponent = Decimal((0, (1,), -min(places, to.scale) if places >= 0 else -places))
    return scaled(value.quantize(exponent, context=EXACT), to)


def rounded_double(value: float, places: int) -> float:
    if not math.isfinite(value) or places > MAX_PLACES:
        return value
    if places < -MAX_PLACES:
        return 0.0 if value >= 0 else -0.0
    exact = Decimal(repr(value))
    if -(exact.as_tuple().exponent) <= places:  # type: ignore[operator]  # a finite number has one
        return value
    return float(exact.quantize(Decimal((0, (1,), -places)), context=_LONG))


#: Places beyond which rounding a double changes nothing, or leaves nothing.
MAX_PLACES: Final = 350


# -- texts


def substring(text: str, start: int, length: int | None = None) -> str:
    """Positions begin at 1, and 0 means the same; a negative one counts from the end."""
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)] if end > begin else ""


TextTest = Callable[[str], bool]


@lru_cache(maxsize=256)
def like(pattern: str, escape: str) -> TextTest:
    """LIKE in time linear in the text and the pattern, whatever the pattern is."""
    segments = _segments(pattern, escape)
    first, last = segments[0], segments[-1]
    if len(segments) == 1:
        whole = _compiled(first)
        return lambda text: whole.fullmatch(text) is not None
    begins, ends = _compiled(first), _compiled(last)
    between = [_compiled(one) for one in segments[1:-1] if one]
    needs, tail = sum(map(len, segments)), len(last)

    def matches(text: str) -> bool:
        if len(text) < needs or begins.match(text) is None or ends.match(text, len(text) - tail) is None:
            return False
        at, end = len(first), len(text) - tail
        for one in between:
            found = one.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return at <= end

    return matches


#: A character of a pattern; None stands for any one.
_Segment = tuple[str | None, ...]


def _segments(pattern: str, escape: str) -> list[_Segment]:
    """What is between the %s."""
    segments: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for one in characters:
        if one == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise Undefined(f"LIKE {pattern[:80]!r}: {escape} must be followed by %, _ or {escape}")
            segments[-1].append(escaped)
        elif one == "%":
            segments.append([])
        else:
            segments[-1].append(None if one == "_" else one)
    return [tuple(one) for one in segments]


def _compiled(segment: _Segment) -> re.Pattern[str]:
    # Without repetition: every match has the segment's own length, so nothing backtracks.
    return re.compile("".join("." if one is None else re.escape(one) for one in segment), re.DOTALL)


__all__ = [
    "ARITHMETIC",
    "COMPARISONS",
    "DECIMAL_ARITHMETIC",
    "DOUBLE_COMPARISONS",
    "CastFailed",
    "Undefined",
    "like",
    "rounded_decimal",
    "rounded_double",
    "rounded_integer",
    "substring",
]
