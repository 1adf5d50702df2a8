"""One expression of `--where` or `--set`, compiled once and asked per dead letter. No broker, no file.

Its meaning is Spark SQL's in ANSI mode over a table that holds this one dead letter, with `data` as a
VARIANT: the members have the types their JSON has, so the function for a combination of types is made when
the combination is first met. docs/dead-letters.md says it for users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shinar.errors import ConfigError, ExpressionError
from shinar.redrive.select.analyze import analyze
from shinar.redrive.select.payload import member, typed
from shinar.redrive.select.tree import COLUMNS, PAYLOAD, Call, LetterColumn, Node, Path, PayloadMember
from shinar.redrive.select.typed import FAULTS, Run
from shinar.redrive.select.types import BOOLEAN, TIMESTAMP, VOID, SqlType, TypeMismatch

#: Combinations of types whose functions are kept.
_MOST_KEPT: Final = 1_000


class Expression:
    def __init__(self, text: str, setting: str = "--where") -> None:
        # sqlglot takes a quarter of a second to import; only those who write an expression wait for it.
        from shinar.redrive.select.parse import parse

        self.text, self.setting = text, setting
        self._tree = parse(text, setting)
        leaves = list(dict.fromkeys(_leaves(self._tree)))
        self._columns = [leaf.name for leaf in leaves if isinstance(leaf, LetterColumn)]
        self._paths = [leaf.path for leaf in leaves if isinstance(leaf, PayloadMember)]
        self._factors = [1000 if COLUMNS[name] == TIMESTAMP else 0 for name in self._columns]
        #: The path, when the expression is nothing but a member of the payload.
        self.path: Path | None = self._tree.path if isinstance(self._tree, PayloadMember) else None
        #: Columns a row must have; "data" among them if the payload is looked at.
        self.columns = (*self._columns, *([PAYLOAD] if self._paths else []))
        self._functions: dict[tuple[SqlType, ...], tuple[SqlType, Run]] = {}
        # What no payload could make right is told now, and not at the first dead letter.
        unknown = (VOID,) * len(self._paths)
        try:
            self.type, _ = self._functions[unknown] = self._analyzed(unknown)
        except TypeMismatch as exc:
            raise ConfigError(f"{text!r}: {exc}", setting=setting) from None

    def typed_value(self, row: Mapping[str, Any]) -> tuple[SqlType, Any]:
        """(type, value) for one dead letter; None is SQL's NULL. ExpressionError where Spark would raise."""
        values: list[Any] = []
        for name, factor in zip(self._columns, self._factors, strict=True):
            value = row[name]
            values.append(value * factor if factor and value is not None else value)
        types: tuple[SqlType, ...] = ()
        if self._paths:
            data = row[PAYLOAD]
            found = [typed(member(data, path)) for path in self._paths]
            types = tuple([type_ for type_, _ in found])
            values += [value for _, value in found]
        try:
            type_, run = self._functions.get(types) or self._function(types)
            return type_, run(values)
        except (TypeMismatch, *FAULTS) as exc:
            raise ExpressionError(str(exc), setting=self.setting) from None

    def value(self, row: Mapping[str, Any]) -> Any:
        return self.typed_value(row)[1]

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Only true is true: neither false nor NULL chooses a dead letter."""
        type_, value = self.typed_value(row)
        if value is not None and type_ != BOOLEAN:
            raise ExpressionError(f"the result is {type_}, not a condition", setting=self.setting)
        return value is True

    def _function(self, types: tuple[SqlType, ...]) -> tuple[SqlType, Run]:
        if len(self._functions) >= _MOST_KEPT:
            self._functions.clear()
        found = self._functions[types] = self._analyzed(types)
        return found

    def _analyzed(self, types: tuple[SqlType, ...]) -> tuple[SqlType, Run]:
        leaves: dict[LetterColumn | PayloadMember, tuple[int, SqlType]] = {}
        for name in self._columns:
            leaves[LetterColumn(name)] = (len(leaves), COLUMNS[name])
        for path, type_ in zip(self._paths, types, strict=True):
            leaves[PayloadMember(path)] = (len(leaves), type_)
        found = analyze(self._tree, leaves)
        return found.type, found.run


def parse_path(text: str, setting: str = "--set") -> Path:
    """`data.items[0].sku` as ("items", 0, "sku")."""
    found = Expression(text, setting).path
    if found is None:
        raise ConfigError(
            f"{text!r} does not name a member of the payload; write data.field", setting=setting
        )
    return found


def _leaves(node: Node) -> Iterator[LetterColumn | PayloadMember]:
    if isinstance(node, LetterColumn | PayloadMember):
        yield node
    elif isinstance(node, Call):
        for one in node.arguments:
            yield from _leaves(one)
