"""An analyzed expression as a value, and how one is made of others: casts, constants, NULL. No operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from shinar.redrive.select.casts import CastFailed, cast_to
from shinar.redrive.select.operators import Undefined
from shinar.redrive.select.types import COMPLEX, INTEGRAL, VOID, SqlType, TypeMismatch, decimal, is_decimal

Row = list[Any]
Run = Callable[[Row], Any]
#: Errors that Spark raises while it evaluates a row.
FAULTS: Final = (CastFailed, Undefined)


class Typed(NamedTuple):
    type: SqlType
    run: Run
    #: Whether the value is the same for every row.
    constant: bool = False
    #: Whether it is a literal, whose own digits count, and not an expression.
    literal: bool = False


def folded(found: Typed, *arguments: Typed) -> Typed:
    """Evaluated once if nothing in it depends on the row; an error waits for the row that needs the value."""
    if not all(one.constant for one in arguments):
        return found
    try:
        value = found.run([])
    except FAULTS:
        return found._replace(constant=True)
    return Typed(found.type, lambda _row: value, constant=True)


def cast(given: Typed, to: SqlType, *, fails: bool = True) -> Typed:
    if given.type in (to, VOID):
        return given._replace(type=to)
    if given.type in COMPLEX:
        raise TypeMismatch(f"{given.type} cannot be cast to {to}; name one of its members")
    change, run = cast_to(given.type, to), given.run
    if change is None:
        return given._replace(type=to)

    def changed(row: Row) -> Any:
        value = run(row)
        return None if value is None else change(value)

    def tried(row: Row) -> Any:
        value = run(row)
        try:
            return None if value is None else change(value)
        except CastFailed:
            return None

    return folded(Typed(to, changed if fails else tried), given)


def strict(type_: SqlType, function: Callable[..., Any], *arguments: Typed) -> Typed:
    """NULL if an argument is NULL; the arguments are evaluated from left to right until one is."""
    if len(arguments) == 1:
        run = arguments[0].run

        def one_argument(row: Row) -> Any:
            value = run(row)
            return None if value is None else function(value)

        return folded(Typed(type_, one_argument), *arguments)
    if len(arguments) == 2:
        left, right = arguments[0].run, arguments[1].run

        def two_arguments(row: Row) -> Any:
            one = left(row)
            if one is None:
                return None
            other = right(row)
            return None if other is None else function(one, other)

        return folded(Typed(type_, two_arguments), *arguments)
    runs = [one.run for one in arguments]

    def several_arguments(row: Row) -> Any:
        values = []
        for run in runs:
            value = run(row)
            if value is None:
                return None
            values.append(value)
        return function(*values)

    return folded(Typed(type_, several_arguments), *arguments)


def least_decimals(one: Typed, other: Typed) -> tuple[Typed, Typed]:
    """An integer literal beside a decimal is a decimal of its own digits only."""

    def least(literal: Typed, beside: Typed) -> Typed:
        if not (literal.literal and literal.type in INTEGRAL and is_decimal(beside.type)):
            return literal
        return cast(literal, decimal(len(str(abs(literal.run([])))), 0))

    return least(one, other), least(other, one)
