"""The text of `--where` or `--set` as a small tree: sqlglot parses it, a closed list says what it may hold.

Tokens are checked before the parser sees them, nodes afterwards; what is not on the lists is refused by name
and position. Where sqlglot binds operators differently from Spark, parentheses are required. Nothing is
evaluated here, and the types of columns are not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from shinar.errors import ConfigError
from shinar.redrive.select.tokens import MAX_CHARS, Refused, checked
from shinar.redrive.select.tree import (
    COLUMNS,
    PAYLOAD,
    Call,
    Constant,
    LetterColumn,
    Node,
    Path,
    PayloadMember,
)
from shinar.redrive.select.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    VOID,
    SqlType,
    decimal,
)

#: Levels of the tree: far beyond what a person writes, far below what Python's stack takes.
MAX_DEPTH: Final = 100
#: Largest index of an array: nothing longer fits into a message.
MAX_INDEX: Final = 1_000_000

_BINARY: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.DPipe: "||",
}
#: function node -> (its name, the arguments in order)
_FUNCTIONS: Final[dict[type[exp.Expression], tuple[str, tuple[str, ...]]]] = {
    exp.Lower: ("lower", ("this",)),
    exp.Upper: ("upper", ("this",)),
    exp.Length: ("length", ("this",)),
    exp.Trim: ("trim", ("this",)),
    exp.Abs: ("abs", ("this",)),
    exp.Substring: ("substr", ("this", "start", "length")),
    exp.Round: ("round", ("this", "decimals")),
    exp.Contains: ("contains", ("this", "expression")),
    exp.StartsWith: ("startswith", ("this", "expression")),
    exp.EndsWith: ("endswith", ("this", "expression")),
}
FUNCTION_NAMES: Final = (
    *("abs", "cast", "coalesce", "contains", "endswith", "length", "lower", "round", "startswith", "substr"),
    *("substring", "trim", "try_cast", "upper"),
)
#: Functions that need more arguments than sqlglot insists on.
_FEWEST: Final = {"substr": 2, "contains": 2, "startswith": 2, "endswith": 2, "coalesce": 1}
#: Fields of a node that are read here, or that say nothing new; a node with any other field set is refused,
#: so that a variant of an operator (NOT LIKE was one) is never taken for the plain one.
_FIELDS: Final = frozenset({"this", "expression", "expressions"})
_MORE_FIELDS: Final[dict[type[exp.Expression], frozenset[str]]] = {
    exp.Between: frozenset({"low", "high"}),
    exp.Bracket: frozenset({"offset"}),
    exp.Cast: frozenset({"to"}),
    exp.Coalesce: frozenset({"is_nvl"}),
    exp.Column: frozenset({"table", "db", "catalog"}),
    exp.Div: frozenset({"typed", "safe"}),
    exp.DPipe: frozenset({"safe"}),
    exp.Like: frozenset({"negate"}),
    exp.Literal: frozenset({"is_string"}),
    exp.Round: frozenset({"decimals"}),
    exp.Substring: frozenset({"start", "length"}),
    exp.TryCast: frozenset({"to", "safe", "requires_string"}),
}
#: What may not be an operand of a comparison without parentheses: Spark and sqlglot bind it differently.
_LOOSE: Final = (exp.Not, exp.Connector, exp.Is, exp.In, exp.Between, exp.Like, exp.Escape, exp.Predicate)
_TYPES: Final = {
    "BOOLEAN": BOOLEAN,
    "INT": INT,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "TEXT": STRING,
    "VARCHAR": STRING,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
}


class _Dialect(Spark):
    """Spark's, with CAST and TRY_CAST told apart: in ANSI mode only the second one gives NULL."""

    class Parser(Spark.Parser):  # type: ignore[misc,valid-type]  # sqlglot assigns it in a metaclass
        STRICT_CAST = True


def parse(text: str, setting: str) -> Node:
    refused = Refused(text, setting)
    if len(text) > MAX_CHARS:
        raise refused.at(None, f"is {len(text):,} characters long; an expression may have {MAX_CHARS:,}")
    try:
        dialect = _Dialect()
        tokens = checked(dialect.tokenize(text), refused)
        trees = dialect.parser().parse(tokens, text)
    except RecursionError:
        raise refused.at(None, "is nested too deeply; use fewer parentheses or NOTs") from None
    except SqlglotError as exc:
        raise refused.at(_position_of(exc), f"cannot be parsed: {_first_line(exc)}") from None
    if len(trees) != 1 or trees[0] is None:
        raise refused.at(None, "must be one expression")
    try:
        return _Builder(refused).build(trees[0], 0)
    except RecursionError:
        raise refused.at(None, "is nested too deeply; use fewer parentheses or NOTs") from None


def _position_of(error: SqlglotError) -> int | None:
    found = getattr(error, "errors", None) or [{}]
    column = found[0].get("col")
    return None if column is None or found[0].get("line") != 1 else max(0, int(column) - 1)


def _first_line(error: SqlglotError) -> str:
    found = getattr(error, "errors", None) or [{}]
    description = found[0].get("description") or str(error)
    return str(description).splitlines()[0].rstrip(".")[:200]


# -- nodes


class _Builder:
    def __init__(self, refused: Refused) -> None:
        self._refused = refused

    def build(self, node: Any, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._refused.at(None, f"is nested too deeply: more than {MAX_DEPTH} levels")
        kind = type(node)
        known = _FIELDS | _MORE_FIELDS.get(kind, frozenset())
        if any(value and name not in known for name, value in node.args.items()):
            raise self._refusal(node)
        if kind in _BINARY:
            return self._binary(node, _BINARY[kind], depth)
        if kind in _FUNCTIONS:
            return self._function(node, *_FUNCTIONS[kind], depth)
        maker: Callable[[Any, int], Node] | None = getattr(self, f"_{kind.__name__.lower()}", None)
        if maker is None:
            raise self._refusal(node)
        return maker(node, depth)

    def _refusal(self, node: Any) -> ConfigError:
        at = _place(node)
        if isinstance(node, exp.Func):
            name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
            if isinstance(node, (exp.Cast, *_FUNCTIONS)):
                return self._refused.at(at, f"this form of {name.lower()} is not supported")
            names = ", ".join(FUNCTION_NAMES)
            return self._refused.at(at, f"the function {name.lower()} is not supported; supported: {names}")
        return self._refused.at(at, f"{kind_name(node)} is not supported")

    def _paren(self, node: Any, depth: int) -> Node:
        return self.build(node.this, depth + 1)

    def _binary(self, node: Any, sign: str, depth: int) -> Node:
        if isinstance(node, exp.Predicate):
            self._require_tight(node.this, node.expression)
        elif sign == "||" and isinstance(node.expression, exp.Add | exp.Sub):
            raise self._refused.at(_place(node.expression), "|| beside + or - needs parentheses")
        return Call(
            sign, (self.build(node.this, depth + 1), self.build(node.expression, depth + 1)), _place(node)
        )

    def _require_tight(self, *operands: Any) -> None:
        for operand in operands:
            if isinstance(operand, _LOOSE):
                why = "a condition that is compared or tested needs parentheses"
                raise self._refused.at(_place(operand), why)

    def _and(self, node: Any, depth: int) -> Node:
        return self._chain(node, exp.And, "and", depth)

    def _or(self, node: Any, depth: int) -> Node:
        return self._chain(node, exp.Or, "or", depth)

    def _chain(self, node: Any, kind: type[exp.Expression], name: str, depth: int) -> Node:
        """`a or b or c …` is one call, however long it is."""
        operands: list[Any] = []
        while isinstance(node, kind):
            operands.append(node.expression)
            node = node.this
        operands.append(node)
        return Call(name, tuple(self.build(one, depth + 1) for one in reversed(operands)), None)

    def _not(self, node: Any, depth: int) -> Node:
        return Call("not", (self.build(node.this, depth + 1),), _place(node))

    def _neg(self, node: Any, depth: int) -> Node:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self._number(node.this, f"-{node.this.this}")
        return Call("negative", (self.build(node.this, depth + 1),), _place(node))

    def _is(self, node: Any, depth: int) -> Node:
        self._require_tight(node.this)
        if isinstance(node.expression, exp.Null):
            return Call("is null", (self.build(node.this, depth + 1),), _place(node))
        if isinstance(node.expression, exp.Boolean):
            truth = Constant(BOOLEAN, bool(node.expression.this))
            return Call("<=>", (self.build(node.this, depth + 1), truth), _place(node))
        raise self._refused.at(_place(node), "IS is followed by NULL, TRUE or FALSE")

    def _nullsafeneq(self, node: Any, depth: int) -> Node:
        return Call("not", (self._binary(node, "<=>", depth + 1),), _place(node))

    def _escape(self, node: Any, depth: int) -> Node:
        sign = node.expression
        if not isinstance(node.this, exp.Like) or not isinstance(sign, exp.Literal) or len(sign.this) != 1:
            raise self._refused.at(_place(sign), "ESCAPE follows a LIKE and is one character")
        return self._liked(node.this, sign.this, depth)

    def _like(self, node: Any, depth: int) -> Node:
        return self._liked(node, "\\", depth)

    def _liked(self, node: Any, escape: str, depth: int) -> Node:
        self._require_tight(node.this, node.expression)
        given = (self.build(node.this, depth + 1), self.build(node.expression, depth + 1))
        found = Call("like", (*given, Constant(STRING, escape)), _place(node))
        return Call("not", (found,), _place(node)) if node.args.get("negate") else found

    def _in(self, node: Any, depth: int) -> Node:
        self._require_tight(node.this)
        if not node.expressions:
            raise self._refused.at(_place(node), "IN is followed by a list of values")
        return Call(
            "in", tuple(self.build(one, depth + 1) for one in (node.this, *node.expressions)), _place(node)
        )

    def _between(self, node: Any, depth: int) -> Node:
        given = (node.this, node.args["low"], node.args["high"])
        self._require_tight(*given)
        value, low, high = (self.build(one, depth + 1) for one in given)
        bounds = (Call(">=", (value, low), _place(node)), Call("<=", (value, high), _place(node)))
        return Call("and", bounds, _place(node))

    def _coalesce(self, node: Any, depth: int) -> Node:
        return Call(
            "coalesce",
            tuple(self.build(one, depth + 1) for one in (node.this, *node.expressions)),
            _place(node),
        )

    def _cast(self, node: Any, depth: int) -> Node:
        return self._cast_as("cast", node, depth)

    def _trycast(self, node: Any, depth: int) -> Node:
        return self._cast_as("try_cast", node, depth)

    def _cast_as(self, name: str, node: Any, depth: int) -> Node:
        target = Constant(self._type(node), None)
        return Call(name, (self.build(node.this, depth + 1), target), _place(node.this))

    def _type(self, node: Any) -> SqlType:
        to = node.to
        name = to.this.name if isinstance(to, exp.DataType) and not isinstance(to.this, str) else str(to)
        if name == "DECIMAL":
            numbers = [int(one.name) for one in to.expressions if one.name.isdigit() and len(one.name) < 3]
            precision, scale = (*numbers, 10, 0)[:2] if len(numbers) != 1 else (numbers[0], 0)
            if len(numbers) == len(to.expressions) and 1 <= precision <= MAX_PRECISION and scale <= precision:
                return decimal(precision, scale)
        elif name in _TYPES and not to.expressions:
            return _TYPES[name]
        names = "STRING, BOOLEAN, INT, BIGINT, DECIMAL(p,s), DOUBLE, DATE, TIMESTAMP"
        raise self._refused.at(_place(node.this), f"cannot cast to {to.sql('spark')}; supported: {names}")

    def _function(self, node: Any, name: str, arguments: tuple[str, ...], depth: int) -> Node:
        given = [node.args[key] for key in arguments if node.args.get(key) is not None]
        if len(given) < _FEWEST.get(name, 1):
            raise self._refused.at(_place(node), f"{name} was given the wrong arguments")
        return Call(name, tuple(self.build(one, depth + 1) for one in given), _place(node))

    # -- leaves

    def _null(self, _node: Any, _depth: int) -> Node:
        return Constant(VOID, None)

    def _boolean(self, node: Any, _depth: int) -> Node:
        return Constant(BOOLEAN, bool(node.this))

    def _literal(self, node: Any, _depth: int) -> Node:
        return Constant(STRING, node.this) if node.is_string else self._number(node, node.this)

    def _number(self, node: Any, text: str) -> Node:
        if "e" in text.lower():
            return Constant(DOUBLE, float(text))
        digits = text.lstrip("-")
        if "." not in digits and len(digits) <= MAX_PRECISION:
            value = int(text)
            for kind, limit in ((INT, 2**31), (BIGINT, 2**63)):
                if -limit <= value < limit:
                    return Constant(kind, value)
        number = Decimal(text) if len(digits) <= 2 * MAX_PRECISION else Decimal(0)
        scale = len(digits.partition(".")[2])
        precision = max(len(number.as_tuple().digits), scale)
        if len(digits) > 2 * MAX_PRECISION or precision > MAX_PRECISION:
            raise self._refused.at(_place(node), f"the number has more than {MAX_PRECISION} digits")
        return Constant(decimal(precision, scale), number)

    def _column(self, node: Any, _depth: int) -> Node:
        if any(not isinstance(part, exp.Identifier) for part in node.parts):
            raise self._refused.at(_place(node), "* is not supported; name a column")
        return self._named([part.name for part in node.parts], node)

    def _dot(self, node: Any, depth: int) -> Node:
        base = self.build(node.this, depth + 1)
        if isinstance(base, PayloadMember) and isinstance(node.expression, exp.Identifier):
            return PayloadMember((*base.path, node.expression.name))
        raise self._refused.at(_place(node), "only data has members: data.field")

    def _bracket(self, node: Any, depth: int) -> Node:
        base, (index,) = node.this, (node.expressions if len(node.expressions) == 1 else [None])
        path = self._path_of(base, depth)
        if not isinstance(index, exp.Literal):
            raise self._refused.at(_place(node), "an index is a number or a name: data.items[0], data['a-b']")
        if index.is_string:
            return PayloadMember((*path, index.this))
        if not index.this.isdigit() or len(index.this) > 9 or int(index.this) > MAX_INDEX:
            raise self._refused.at(_place(index), f"an index is a whole number up to {MAX_INDEX:,}")
        return PayloadMember((*path, int(index.this)))

    def _path_of(self, node: Any, depth: int) -> Path:
        if isinstance(node, exp.Column) and [part.name.lower() for part in node.parts] == [PAYLOAD]:
            return ()
        base = self.build(node, depth + 1)
        if isinstance(base, PayloadMember):
            return base.path
        raise self._refused.at(_place(node), "only data has members: data.items[0]")

    def _named(self, names: list[str], node: Any) -> Node:
        first = names[0].lower()
        if first == PAYLOAD:
            if len(names) == 1:
                raise self._refused.at(_place(node), "name a member of the payload: data.field")
            return PayloadMember(tuple(names[1:]))
        if len(names) > 1:
            raise self._refused.at(_place(node), f"{names[0]!r} has no members; only data has: data.field")
        if first not in COLUMNS:
            known = ", ".join([*COLUMNS, "data.field"])
            raise self._refused.at(_place(node), f"there is no column {names[0]!r}; the columns are {known}")
        return LetterColumn(first)


def _place(node: Any) -> int | None:
    """Where in the text a node begins, as far as sqlglot says."""
    for one in node.walk() if node is not None else ():
        if "start" in one.meta:
            return int(one.meta["start"])
    return None


def kind_name(node: Any) -> str:
    """`exp.RegexpLike` as people write it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()
