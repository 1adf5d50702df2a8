"""A small SQL over one dead letter: what `--where` and `--set` understand. No broker, no file.

The text is parsed here and rewritten for the standard library's SQLite, with the meaning Spark SQL
gives it: LIKE minds the case, `/` divides as doubles, NULL is neither true nor false, and times are
compared as times. What is outside the subset is refused; nothing is passed on unread.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from shinar.errors import ConfigError
from shinar.redrive.select.grammar import PAYLOAD, Kind, Parser


class Expression:
    """Compiled once; `value` is asked per message. Not for several threads at once."""

    def __init__(self, text: str, setting: str = "--where") -> None:
        self.text = text
        parser = Parser(text, setting)
        try:
            node = parser.whole()
        except RecursionError:
            raise ConfigError(f"{text[:60]!r}… is nested too deeply", setting=setting) from None
        self.kind: Kind = node.kind
        #: The path, when the expression is nothing but a member of the payload.
        self.path = parser.only_path
        self._columns = sorted(parser.columns)
        row = ", ".join(f"? AS {name}" for name in self._columns) or "1 AS unused"
        self._sql = f"SELECT {node.sql} FROM (SELECT {row})"
        self._database = _database()
        try:
            self._database.execute(self._sql, [None] * len(self._columns)).fetchone()
        except sqlite3.Error as exc:
            raise ConfigError(f"{text!r} cannot be evaluated: {exc}", setting=setting) from None

    @property
    def uses_payload(self) -> bool:
        return PAYLOAD in self._columns

    def value(self, row: Mapping[str, Any]) -> Any:
        """The result for one message; None is SQL's NULL."""
        values = [row.get(name) for name in self._columns]
        try:
            found = self._database.execute(self._sql, values).fetchone()[0]
        except (sqlite3.Error, OverflowError, UnicodeError):
            return None  # a payload SQLite cannot read has no members
        return bool(found) if self.kind == "bool" and found is not None else found

    def matches(self, row: Mapping[str, Any]) -> bool:
        """Only true is true: a text or a number that is simply there chooses nothing."""
        found = self.value(row)
        return found is True or (type(found) is int and found == 1)


def parse_path(text: str, setting: str = "--set") -> tuple[str | int, ...]:
    """`data.items[0].sku` as ("items", 0, "sku")."""
    parser = Parser(text, setting)
    parser.whole()
    if parser.only_path is None:
        raise ConfigError(f"{text!r} is no member of the payload; write data.field", setting=setting)
    return parser.only_path


def _database() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA case_sensitive_like = ON")
    functions: dict[str, Callable[[Any], Any]] = {
        "uni_lower": lambda value: None if value is None else str(value).lower(),
        "uni_upper": lambda value: None if value is None else str(value).upper(),
        "as_number": _as_number,
        "as_text": lambda value: None if value is None else str(value),
    }
    for name, function in functions.items():
        database.create_function(name, 1, function, deterministic=True)
    return database


def _as_number(value: Any) -> int | float | None:
    if value is None or isinstance(value, (int, float)):
        return value
    text = str(value).strip()
    if re.fullmatch(r"[-+]?\d{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text) else None
