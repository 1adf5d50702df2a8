"""Spark SQL's types, as far as `--where` and `--set` use them, and which type two of them meet in. Pure.

These are the coercion rules of ANSI mode, Spark 4's default. Nothing here knows a value or an expression.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

#: Digits of the widest decimal.
MAX_PRECISION: Final = 38
#: Digits after the point that arithmetic keeps when a result would be wider than that.
_MIN_SCALE: Final = 6


class SqlType(NamedTuple):
    name: str
    #: Only for decimals.
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"{self.name}({self.precision},{self.scale})" if self.name == "DECIMAL" else self.name


#: The type of NULL, and of a member that is missing.
VOID: Final = SqlType("VOID")
BOOLEAN: Final = SqlType("BOOLEAN")
INT: Final = SqlType("INT")
BIGINT: Final = SqlType("BIGINT")
DOUBLE: Final = SqlType("DOUBLE")
STRING: Final = SqlType("STRING")
DATE: Final = SqlType("DATE")
TIMESTAMP: Final = SqlType("TIMESTAMP")
OBJECT: Final = SqlType("OBJECT")
ARRAY: Final = SqlType("ARRAY")

INTEGRAL: Final = frozenset({INT, BIGINT})
COMPLEX: Final = frozenset({OBJECT, ARRAY})
#: Smallest and largest value of the integral types.
BOUNDS: Final = {INT: (-(2**31), 2**31 - 1), BIGINT: (-(2**63), 2**63 - 1)}


class TypeMismatch(Exception):
    """Spark's analyzer would refuse the expression for operands of these types."""


def decimal(precision: int, scale: int) -> SqlType:
    return SqlType("DECIMAL", precision, scale)


def is_decimal(one: SqlType) -> bool:
    return one.name == "DECIMAL"


def is_numeric(one: SqlType) -> bool:
    return one in INTEGRAL or one is DOUBLE or one.name == "DECIMAL"


def as_decimal(one: SqlType) -> SqlType:
    """The decimal that holds every value of an integral type."""
    return one if is_decimal(one) else decimal(10 if one == INT else 20, 0)


def common(one: SqlType, other: SqlType) -> SqlType:
    """The type in which two operands are compared, or in which COALESCE and IN see their arguments."""
    if one == other and one not in COMPLEX:
        return one
    if VOID in (one, other):
        return other if one == VOID else one
    if is_numeric(one) and is_numeric(other):
        return _common_number(one, other)
    if STRING in (one, other):
        promoted = _promoted(other if one == STRING else one)
        if promoted is not None:
            return promoted
    if {one, other} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    raise TypeMismatch(f"{one} and {other} cannot be compared or combined")


def common_of(types: Iterable[SqlType]) -> SqlType:
    found = VOID
    for one in types:
        if one in COMPLEX:
            raise TypeMismatch(f"{one} cannot be compared or combined; name one of its members")
        found = common(found, one)
    return found


def wider_decimal(one: SqlType, other: SqlType) -> SqlType:
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    if whole + scale <= MAX_PRECISION:
        return decimal(whole + scale, scale)
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, 0))


def sum_type(one: SqlType, other: SqlType) -> SqlType:
    scale = max(one.scale, other.scale)
    return _adjusted(max(one.precision - one.scale, other.precision - other.scale) + scale + 1, scale)


def product_type(one: SqlType, other: SqlType) -> SqlType:
    return _adjusted(one.precision + other.precision + 1, one.scale + other.scale)


def quotient_type(one: SqlType, other: SqlType) -> SqlType:
    scale = max(_MIN_SCALE, one.scale + other.precision + 1)
    return _adjusted(one.precision - one.scale + other.scale + scale, scale)


def remainder_type(one: SqlType, other: SqlType) -> SqlType:
    scale = max(one.scale, other.scale)
    return _adjusted(min(one.precision - one.scale, other.precision - other.scale) + scale, scale)


def rounded_type(one: SqlType, places: int) -> SqlType:
    """The type of round(DECIMAL, places)."""
    whole = one.precision - one.scale + 1
    if places < 0:
        return decimal(min(max(whole, 1 - places), MAX_PRECISION), 0)
    scale = min(one.scale, places)
    return decimal(min(whole + scale, MAX_PRECISION), scale)


def _common_number(one: SqlType, other: SqlType) -> SqlType:
    if DOUBLE in (one, other):
        return DOUBLE
    if is_decimal(one) or is_decimal(other):
        return wider_decimal(as_decimal(one), as_decimal(other))
    return BIGINT


def _promoted(other: SqlType) -> SqlType | None:
    """What a string becomes beside a value of this type."""
    if other in INTEGRAL:
        return BIGINT
    if is_numeric(other):
        return DOUBLE
    return other if other in (BOOLEAN, DATE, TIMESTAMP) else None


def _adjusted(precision: int, scale: int) -> SqlType:
    """Within 38 digits: those before the point are kept, and at least six after it."""
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _MIN_SCALE)))
