"""Arithmetic, - and abs and round: the types Spark gives their results, and the checks it makes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from shinar.redrive.select.casts import EXACT, fits, scaled
from shinar.redrive.select.operators import (
    ARITHMETIC,
    DECIMAL_ARITHMETIC,
    Undefined,
    rounded_decimal,
    rounded_double,
    rounded_integer,
)
from shinar.redrive.select.typed import Typed, cast, least_decimals, strict
from shinar.redrive.select.types import (
    BOOLEAN,
    COMPLEX,
    DOUBLE,
    INTEGRAL,
    STRING,
    VOID,
    SqlType,
    TypeMismatch,
    as_decimal,
    common,
    is_decimal,
    is_numeric,
    product_type,
    quotient_type,
    remainder_type,
    rounded_type,
    sum_type,
)


def arithmetic(name: str, one: Typed, other: Typed) -> Typed:
    one, other = least_decimals(one, other)
    types = (one.type, other.type)
    if STRING in types:
        return _with_text(name, one, other)
    if VOID in types:
        one, other = _beside_void(name, one, other)
        types = (one.type, other.type)
    if not (is_numeric(one.type) and is_numeric(other.type)):
        if VOID in types and not set(types) & {BOOLEAN, *COMPLEX}:
            return Typed(VOID, lambda _row: None)
        raise TypeMismatch(f"{name} takes numbers, not {one.type} and {other.type}")
    if DOUBLE in types or (name == "/" and not any(is_decimal(type_) for type_ in types)):
        return _computed(name, DOUBLE, ARITHMETIC[name], cast(one, DOUBLE), cast(other, DOUBLE))
    if any(is_decimal(type_) for type_ in types):
        return _decimal_arithmetic(name, one, other)
    return _integer_arithmetic(name, common(*types), one, other)


def _computed(
    name: str, type_: SqlType, operation: Callable[[Any, Any], Any], left: Typed, right: Typed
) -> Typed:
    """NULL if an operand is NULL. Spark evaluates a divisor first, the dividend only if it is not NULL."""
    if name in "/%":
        return strict(type_, lambda second, first: operation(first, second), right, left)
    return strict(type_, operation, left, right)


def _with_text(name: str, one: Typed, other: Typed) -> Typed:
    type_ = common(one.type, other.type)
    if VOID in (one.type, other.type):
        return Typed(VOID, lambda _row: None)
    if not is_numeric(type_):
        raise TypeMismatch(f"{name} takes numbers, not {one.type} and {other.type}; cast the text")
    return arithmetic(name, cast(one, type_), cast(other, type_))


def _beside_void(name: str, one: Typed, other: Typed) -> tuple[Typed, Typed]:
    """A NULL without a type takes the other's; two of them are doubles."""
    if one.type == other.type or (name == "/" and one.type == VOID and is_numeric(other.type)):
        return cast(one, DOUBLE), cast(other, DOUBLE)
    type_ = common(one.type, other.type)
    return (cast(one, type_), cast(other, type_)) if is_numeric(type_) else (one, other)


def _integer_arithmetic(name: str, type_: SqlType, one: Typed, other: Typed) -> Typed:
    operation = ARITHMETIC[name]

    def checked(first: int, second: int) -> int:
        value: int = operation(first, second)
        if not fits(value, type_):
            raise Undefined(f"{first} {name} {second} does not fit into {type_}")
        return value

    return _computed(name, type_, checked, cast(one, type_), cast(other, type_))


def _decimal_arithmetic(name: str, one: Typed, other: Typed) -> Typed:
    left, right = cast(one, as_decimal(one.type)), cast(other, as_decimal(other.type))
    types = {"+": sum_type, "-": sum_type, "*": product_type, "/": quotient_type, "%": remainder_type}
    type_, operation = types[name](left.type, right.type), DECIMAL_ARITHMETIC[name]

    def computed(first: Decimal, second: Decimal) -> Decimal:
        return scaled(operation(first, second), type_)

    return _computed(name, type_, computed, left, right)


def signed(name: str, one: Typed) -> Typed:
    """- and abs."""
    if one.type in (STRING, VOID):
        one = cast(one, DOUBLE)
    if not is_numeric(one.type):
        raise TypeMismatch(f"{name} takes a number, not {one.type}")
    type_ = one.type
    if is_decimal(type_):
        return strict(type_, EXACT.minus if name == "negative" else EXACT.abs, one)
    if type_ == DOUBLE:
        return strict(type_, float.__neg__ if name == "negative" else float.__abs__, one)

    def checked(value: int) -> int:
        found = -value if name == "negative" else abs(value)
        if not fits(found, type_):
            raise Undefined(f"{found} does not fit into {type_}")
        return found

    return strict(type_, checked, one)


def rounded(name: str, one: Typed, places: Typed | None = None) -> Typed:
    count = 0
    if places is not None:
        if not places.constant or places.type not in INTEGRAL:
            raise TypeMismatch("the second argument of round is a whole number, not an expression")
        count = places.run([])
    if one.type in (STRING, VOID):
        one = cast(one, DOUBLE)
    type_ = one.type
    if is_decimal(type_):
        to = rounded_type(type_, count)
        return strict(to, lambda value: rounded_decimal(value, count, to), one)
    if type_ == DOUBLE:
        return strict(type_, lambda value: rounded_double(value, count), one)
    if type_ not in INTEGRAL:
        raise TypeMismatch(f"{name} takes a number, not {type_}")

    def checked(value: int) -> int:
        found = rounded_integer(value, count)
        if not fits(found, type_):
            raise Undefined(f"round({value}, {count}) does not fit into {type_}")
        return found

    return strict(type_, checked, one)
