"""Many payloads of one typed table at once, as columns: what fits, what clashes, and which fields are new.

The rules for one value are in `typed`. Pure values and Arrow, no Spark, no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec
import pyarrow as pa

from shinar.pipeline.typed.types import (
    ELEMENT,
    MAX_COLUMNS,
    MAX_DEPTH,
    TYPES,
    KeyPath,
    PayloadColumn,
    PayloadColumns,
    Seen,
    coerce,
    decode,
    is_utf8,
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
#: Kind of column -> what its values are decoded as; anything for the rest, whose values are looked at.
_LEAVES: Final[dict[str, Any]] = {
    "boolean": bool | None,
    "long": int | None,
    "bigint": int | None,
    "string": str | None,
    "booleans": list[bool | None] | None,
    "longs": list[int | None] | None,
    "strings": list[str | None] | None,
}


class Clash(msgspec.Struct, frozen=True):
    pointer: str
    reason: str


def pointer(path: Sequence[str]) -> str:
    return "/data" + "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)


class PayloadBlock:
    """Some payloads of one table turned into columns under known `PayloadColumns`.

    After the call: `arrays` by column name, `clashes` by row, `seen` for fields that have no column yet.
    """

    def __init__(self, payloads: Sequence[Mapping[str, Any]], known: PayloadColumns | None) -> None:
        self._known = known is not None
        self._columns = {column.path: column for column in (known or PayloadColumns()).columns}
        self._objects = (known or PayloadColumns()).objects()
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
                self.fill(column, values)
            elif path in self._objects:
                self._enter(path, values)
            elif self._full or not is_utf8(key):
                # A key with half a surrogate pair is no text: it can neither name a column nor be reported.
                self._overflow(path, values)
            else:
                self._observe(path, values)

    def _enter(self, path: KeyPath, values: Sequence[Any]) -> None:
        if not set(map(type, values)) <= {dict, type(None)}:
            for row, value in enumerate(values):
                # PHP cannot tell an empty map from an empty list: [] stands for {} here.
                if value is not None and value != [] and not isinstance(value, dict):
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

    def fill(self, column: PayloadColumn, values: Sequence[Any]) -> None:
        self.arrays[column.name] = self._convert(column, values)

    def _convert(self, column: PayloadColumn, values: Sequence[Any]) -> pa.Array:
        if _plain(column.kind, values):
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


def _plain(kind: str, values: Sequence[Any]) -> bool:
    """Do the values go into a column as they are?"""
    element = ELEMENT.get(kind)
    if element is not None:
        if not set(map(type, values)) <= {list, NoneType}:
            return False
        kind, values = element, list(chain.from_iterable(filter(None, values)))
    return set(map(type, values)) - {NoneType} <= _PLAIN.get(kind, frozenset())


class PayloadReader:
    """Payload texts of one table as columns. Texts that are as the table expects are decoded straight into
    its fields; if one of them is not, all of them are looked at value by value."""

    def __init__(self, columns: PayloadColumns) -> None:
        self._columns = columns
        self._root = _Fields((), columns.columns)
        self._decode = msgspec.json.Decoder(self._root.struct, float_hook=Decimal).decode

    def block(self, texts: Sequence[str | None]) -> PayloadBlock:
        try:
            rows = list(map(self._decode, [text or "{}" for text in texts]))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return PayloadBlock([decode(text) if text else {} for text in texts], self._columns)
        block = PayloadBlock((), self._columns)
        self._root.fill(block, rows)
        return block


class _Fields:
    """The fields of the payload, or of an object in it, as a struct. It refuses what has no column."""

    def __init__(self, prefix: KeyPath, columns: Sequence[PayloadColumn]) -> None:
        depth = len(prefix)
        self._leaves = {c.path[depth]: c for c in columns if len(c.path) == depth + 1}
        inner = {c.path[depth] for c in columns if len(c.path) > depth + 1} - self._leaves.keys()
        self._objects = {
            key: _Fields((*prefix, key), [c for c in columns if c.path[: depth + 1] == (*prefix, key)])
            for key in sorted(inner)
        }
        keys = [*self._leaves, *self._objects]
        types: list[Any] = [_LEAVES.get(leaf.kind, Any) for leaf in self._leaves.values()]
        types += [fields.struct | None for fields in self._objects.values()]
        # A key may be any text: the fields are numbered.
        self._names = {key: f"f{number}" for number, key in enumerate(keys)}
        self.struct: Any = msgspec.defstruct(
            "Payload",
            [(self._names[key], kind, None) for key, kind in zip(keys, types, strict=True)],
            rename={name: key for key, name in self._names.items()},
            forbid_unknown_fields=True,
            gc=False,
        )

    def fill(self, block: PayloadBlock, rows: Sequence[msgspec.Struct]) -> None:
        for key, column in self._leaves.items():
            block.fill(column, list(map(attrgetter(self._names[key]), rows)))
        for key, fields in self._objects.items():
            found = map(attrgetter(self._names[key]), rows)
            empty = fields.struct()
            fields.fill(block, [empty if one is None else one for one in found])


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
