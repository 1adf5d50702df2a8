"""Many payloads of one typed table at once, as columns: what fits, what clashes, and which fields are new.

The rules for one value are in `typed`. Pure values and Arrow, no Spark, no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from shinar.pipeline.typed import (
    MAX_COLUMNS,
    MAX_DEPTH,
    TYPES,
    Column,
    Columns,
    KeyPath,
    Seen,
    coerce,
    kind_of,
)

#: Python types whose values go into a column without a look at each one.
_PLAIN: Final[dict[str, frozenset[type]]] = {
    "boolean": frozenset({bool}),
    "long": frozenset({int}),
    "bigint": frozenset({int}),
    "decimal": frozenset({int, Decimal}),
    "string": frozenset({str}),
}


class Clash(msgspec.Struct, frozen=True):
    pointer: str
    reason: str


def pointer(path: Sequence[str]) -> str:
    return "/data" + "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)


class Block:
    """Some payloads of one table turned into columns under known `Columns`.

    After the call: `arrays` by column name, `clashes` by row, `seen` for fields that have no column yet.
    """

    def __init__(self, payloads: Sequence[Mapping[str, Any]], known: Columns | None) -> None:
        self._known = known is not None
        self._columns = {column.path: column for column in (known or Columns()).columns}
        self._objects = (known or Columns()).objects()
        self._full = len(self._columns) >= MAX_COLUMNS
        self._rows = len(payloads)
        self.arrays: dict[str, pa.Array] = {}
        self.clashes: dict[int, Clash] = {}
        self.seen: Seen = {}
        self.extra: dict[int, dict[str, Any]] = {}
        self._level((), payloads)

    def _level(self, prefix: KeyPath, rows: Sequence[Mapping[str, Any] | None]) -> None:
        keys = set(chain.from_iterable(row for row in rows if row))
        for key in sorted(keys):
            path = (*prefix, key)
            values = [row.get(key) if row else None for row in rows]
            column = self._columns.get(path)
            if column is not None:
                self.arrays[column.name] = self._convert(column, values)
            elif path in self._objects:
                self._enter(path, values)
            elif self._full:
                self._overflow(path, values)
            else:
                self._observe(path, values)

    def _enter(self, path: KeyPath, values: Sequence[Any]) -> None:
        if not set(map(type, values)) <= {dict, type(None)}:
            for row, value in enumerate(values):
                if value is not None and not isinstance(value, dict):
                    self._clash(row, path, f"object in the table, {kind_of(value)} here")
        self._level(path, [value if isinstance(value, dict) else None for value in values])

    def _observe(self, path: KeyPath, values: Sequence[Any]) -> None:
        deep = len(path) >= MAX_DEPTH
        kinds = Counter(kind for kind in map(kind_of, values) if kind)
        if deep and "object" in kinds:
            kinds["json"] += kinds.pop("object")
        if kinds.get("object"):
            before = len(self.seen)
            self._level(path, [value if isinstance(value, dict) else None for value in values])
            if len(self.seen) == before:
                # Nothing but nulls inside: it says nothing yet.
                del kinds["object"]
        if kinds:
            self.seen[path] = kinds

    def _overflow(self, path: KeyPath, values: Sequence[Any]) -> None:
        for row, value in enumerate(values):
            if value is not None:
                self.extra.setdefault(row, {})[pointer(path).removeprefix("/data")] = value

    def _convert(self, column: Column, values: list[Any]) -> pa.Array:
        kinds = set(map(type, values)) - {type(None)}
        if kinds <= _PLAIN.get(column.kind, frozenset()):
            try:
                return pa.array(values, TYPES[column.kind])
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
                pass  # One of them does not fit: look at each.
        stored = [None if value is None else coerce(value, column.kind) for value in values]
        for row, (value, new) in enumerate(zip(values, stored, strict=True)):
            if value is not None and new is None:
                self._clash(row, column.path, f"{column.kind} in the table, {kind_of(value)} here")
        return pa.array(stored, TYPES[column.kind])

    def _clash(self, row: int, path: KeyPath, text: str) -> None:
        self.clashes.setdefault(row, Clash(pointer(path), f"type_clash: {text}"))


def merge_seen(parts: Iterable[Seen]) -> Seen:
    merged: Seen = {}
    for part in parts:
        for path, counts in part.items():
            merged.setdefault(path, Counter()).update(counts)
    return merged


#: `Seen` as JSON has it.
PackedSeen = list[tuple[KeyPath, dict[str, int]]]


def pack_seen(seen: Seen) -> PackedSeen:
    return [(path, dict(counts)) for path, counts in seen.items()]


def unpack_seen(packed: PackedSeen) -> Seen:
    return {path: Counter(counts) for path, counts in packed}
