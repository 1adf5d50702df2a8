"""A tree and the types of its leaves become one function of a row: what Spark's analyzer and codegen do.

Implicit casts are put in here, once per combination of types; a combination Spark refuses is a TypeMismatch.
A row is a list of the leaves' values. A member that is missing or null has the type VOID, and where Spark has
no rule for VOID the result is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shinar.redrive.select.numbers import arithmetic, rounded, signed
from shinar.redrive.select.operators import COMPARISONS, DOUBLE_COMPARISONS, like, substring
from shinar.redrive.select.tree import Call, Constant, LetterColumn, Node, PayloadMember
from shinar.redrive.select.typed import FAULTS, Row, Run, Typed, cast, folded, least_decimals, strict
from shinar.redrive.select.types import (
    BOOLEAN,
    COMPLEX,
    DOUBLE,
    INT,
    STRING,
    VOID,
    SqlType,
    TypeMismatch,
    common,
    common_of,
    is_numeric,
)

Leaves = Mapping[LetterColumn | PayloadMember, tuple[int, SqlType]]


def analyze(node: Node, leaves: Leaves) -> Typed:
    """`leaves` says where each leaf is in the row, and its type."""
    if isinstance(node, Constant):
        value = node.value
        return Typed(node.type, lambda _row: value, constant=True, literal=True)
    if isinstance(node, Call):
        if node.name in ("cast", "try_cast"):
            given = analyze(node.arguments[0], leaves)
            return cast(given, node.arguments[1].type, fails=node.name == "cast")
        return _RULES[node.name](node.name, *(analyze(one, leaves) for one in node.arguments))
    at, type_ = leaves[node]
    return Typed(type_, lambda row: row[at])


# -- conditions


def _compare(name: str, one: Typed, other: Typed) -> Typed:
    one, other = least_decimals(one, other)
    _refuse_complex(one, other)
    type_ = common(one.type, other.type)
    left, right = cast(one, type_), cast(other, type_)
    compares = DOUBLE_COMPARISONS if type_ == DOUBLE else COMPARISONS
    if name != "<=>":
        return strict(BOOLEAN, compares[name], left, right)
    equal, run_left, run_right = compares["="], left.run, right.run

    def null_safe(row: Row) -> bool:
        first, second = run_left(row), run_right(row)
        if first is None or second is None:
            return first is second
        return bool(equal(first, second))

    return folded(Typed(BOOLEAN, null_safe), left, right)


def _refuse_complex(*arguments: Typed) -> None:
    for one in arguments:
        if one.type in COMPLEX:
            raise TypeMismatch(f"{one.type} cannot be compared or combined; name one of its members")


def _condition(one: Typed, name: str, *, beside: bool = False) -> Typed:
    """`beside` a boolean a string is cast to one."""
    if one.type in (BOOLEAN, VOID) or (one.type == STRING and beside):
        return cast(one, BOOLEAN)
    raise TypeMismatch(f"{name.upper()} takes conditions, not {one.type}")


def _connective(name: str, *arguments: Typed) -> Typed:
    """Left to right, and no further than needed; NULL is neither true nor false."""
    decides: bool = name == "or"
    found = _condition(arguments[0], name, beside=arguments[1].type == BOOLEAN)
    runs = [found.run]
    for one in arguments[1:]:
        runs.append(_condition(one, name, beside=True).run)

    def connected(row: Row) -> bool | None:
        unknown = False
        for run in runs:
            value: bool | None = run(row)
            if value is decides:
                return decides
            unknown = unknown or value is None
        return None if unknown else not decides

    return Typed(BOOLEAN, connected)


def _not(name: str, one: Typed) -> Typed:
    return strict(BOOLEAN, lambda value: not value, _condition(one, name, beside=True))


def _is_null(_name: str, one: Typed) -> Typed:
    run = one.run
    return Typed(BOOLEAN, lambda row: run(row) is None)


def _in(_name: str, value: Typed, *listed: Typed) -> Typed:
    type_ = common_of(one.type for one in (value, *listed))
    run = cast(value, type_).run
    choices = [cast(one, type_) for one in listed]
    equal = (DOUBLE_COMPARISONS if type_ == DOUBLE else COMPARISONS)["="]
    values = _constants(choices) if type_ != DOUBLE else None
    if values is not None:
        return _in_set(run, frozenset(values) - {None}, None in values)
    runs = [one.run for one in choices]

    def found(row: Row) -> bool | None:
        wanted = run(row)
        if wanted is None:
            return None
        unknown = False
        for one in runs:
            choice = one(row)
            if choice is None:
                unknown = True
            elif equal(wanted, choice):
                return True
        return None if unknown else False

    return Typed(BOOLEAN, found)


def _constants(choices: Sequence[Typed]) -> list[Any] | None:
    """The values, where all are known before the first row and none raises."""
    if not all(one.constant for one in choices):
        return None
    try:
        return [one.run([]) for one in choices]
    except FAULTS:
        return None


def _in_set(run: Run, choices: frozenset[Any], or_null: bool) -> Typed:
    missing = None if or_null else False

    def found(row: Row) -> bool | None:
        wanted = run(row)
        if wanted is None:
            return None
        return True if wanted in choices else missing

    return Typed(BOOLEAN, found)


def _like(_name: str, text: Typed, pattern: Typed, escape: Typed) -> Typed:
    sign: str = escape.run([])
    given, wanted = _text(text), _text(pattern)
    return strict(BOOLEAN, lambda value, one: like(one, sign)(value), given, wanted)


# -- texts and the rest


def _text(one: Typed) -> Typed:
    if one.type in COMPLEX:
        raise TypeMismatch(f"{one.type} is not a text; name one of its members")
    return cast(one, STRING)


def _text_function(type_: SqlType, function: Callable[..., Any]) -> Callable[..., Typed]:
    return lambda _name, *arguments: strict(type_, function, *map(_text, arguments))


def _substring(name: str, text: Typed, *positions: Typed) -> Typed:
    for one in positions:
        if not (is_numeric(one.type) or one.type in (STRING, VOID)):
            raise TypeMismatch(f"{name} takes numbers as positions, not {one.type}")
    return strict(STRING, substring, _text(text), *(cast(one, INT) for one in positions))


def _coalesce(_name: str, *arguments: Typed) -> Typed:
    type_ = common_of(one.type for one in arguments)
    runs = [cast(one, type_).run for one in arguments]

    def first(row: Row) -> Any:
        for run in runs:
            value = run(row)
            if value is not None:
                return value
        return None

    return folded(Typed(type_, first), *arguments)


_RULES: Final[dict[str, Callable[..., Typed]]] = {
    **dict.fromkeys(("=", "!=", "<", "<=", ">", ">=", "<=>"), _compare),
    **dict.fromkeys(("and", "or"), _connective),
    **dict.fromkeys(("+", "-", "*", "/", "%"), arithmetic),
    **dict.fromkeys(("negative", "abs"), signed),
    "not": _not,
    "is null": _is_null,
    "in": _in,
    "like": _like,
    "round": rounded,
    "coalesce": _coalesce,
    "substr": _substring,
    "||": _text_function(STRING, lambda one, other: one + other),
    "lower": _text_function(STRING, str.lower),
    "upper": _text_function(STRING, str.upper),
    "length": _text_function(INT, len),
    "trim": _text_function(STRING, lambda text: text.strip(" ")),
    "contains": _text_function(BOOLEAN, lambda text, part: part in text),
    "startswith": _text_function(BOOLEAN, str.startswith),
    "endswith": _text_function(BOOLEAN, str.endswith),
}
