"""Many payloads of one typed table at once, as columns: what fits, what is rejected, which fields are new.

The rules for one value are in `types`. Pure values and Arrow, no Spark, no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from shinar.pipeline.typed.types import (
    ELEMENT,
    MAX_COLUMNS,
    MAX_DEPTH,
    MAX_KEY_CHARS,
    TYPES,
    KeyPath,
    PayloadColumn,
    PayloadColumns,
    Seen,
    as_text,
    coerce,
    decode,
    fraction,
    is_utf8,
    kind_of,
)
from shinar.printable import printable

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

#: Reasons of a rejection, before the colon.
TYPE_CLASH: Final = "type_clash"
NOT_SHAPED: Final = "not_shaped"
TABLE_LIMIT: Final = "table_limit"
#: Characters of a rejected value that are kept beside the reason; `messages` has all of it.
MAX_VALUE_CHARS: Final = 1000
_REASON_CHARS: Final = 300
#: New fields of a table that a task reports; of more it reports the most frequent.
MAX_SEEN: Final = 4 * MAX_COLUMNS
#: Characters the name of a struct's field must not have.
_UNFIT: Final = frozenset('"\\')


class Rejection(msgspec.Struct, frozen=True):
    """Why a message has no row in its typed table."""

    reason: str
    #: RFC 6901 pointer of the field, and the column it does not fit; "" where it is not one field's fault.
    pointer: str = ""
    column: str = ""
    #: The value, as JSON text.
    value: str | None = None


def pointer(path: Sequence[str]) -> str:
    return "/data" + "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)


class PayloadBlock:
    """Some payloads of one table turned into columns under known `PayloadColumns`.

    After the call: `arrays` by column name, `rejections` by row, `seen` for fields that have no column yet.
    With `final` no column follows any more, and such fields are in `extra`. The work is linear in the number
    of values: a payload with ids as keys shows new keys in every row.
    """

    def __init__(
        self, payloads: Sequence[Mapping[str, Any]], known: PayloadColumns | None, *, final: bool = False
    ) -> None:
        self._columns = {column.path: column for column in (known or PayloadColumns()).columns}
        self._objects = (known or PayloadColumns()).objects()
        self._full = final or len(self._columns) >= MAX_COLUMNS
        self._rows = len(payloads)
        self.arrays: dict[str, pa.Array] = {}
        self.rejections: dict[int, Rejection] = {}
        self.seen: Seen = {}
        self.extra: dict[int, dict[str, Any]] = {}
        self._level((), range(len(payloads)), payloads)

    def _level(self, prefix: KeyPath, rows: Sequence[int], objects: Sequence[Mapping[str, Any]]) -> None:
        fields: dict[str, tuple[list[int], list[Any]]] = {}
        for row, members in zip(rows, objects, strict=True):
            for key, value in members.items():
                if value is not None:
                    found = fields.get(key)
                    if found is None:
                        found = fields[key] = ([], [])
                    found[0].append(row)
                    found[1].append(value)
        for key in sorted(fields):
            path = (*prefix, key)
            column = self._columns.get(path)
            if column is not None:
                self._fill_some(column, *fields[key])
            elif path in self._objects:
                self._enter(path, *fields[key])
            elif self._full or len(key) > MAX_KEY_CHARS or not is_utf8(key):
                # A key with half a surrogate pair can neither name a column nor be reported to the driver.
                self._overflow(path, *fields[key])
            else:
                self._observe(path, *fields[key])

    def _enter(self, path: KeyPath, rows: Sequence[int], values: Sequence[Any]) -> None:
        inner: tuple[list[int], list[Any]] = ([], [])
        for row, value in zip(rows, values, strict=True):
            if isinstance(value, dict):
                inner[0].append(row)
                inner[1].append(value)
            elif value != []:  # PHP cannot tell an empty map from an empty list: [] stands for {} here.
                self._reject(row, path, "", "object", value)
        self._level(path, *inner)

    def _observe(self, path: KeyPath, rows: Sequence[int], values: Sequence[Any]) -> None:
        kinds = Counter(filter(None, map(kind_of, values)))
        if len(path) >= MAX_DEPTH and "object" in kinds:
            kinds["json"] += kinds.pop("object")
        if kinds.get("object"):
            before = len(self.seen)
            inner = [(row, value) for row, value in zip(rows, values, strict=True) if isinstance(value, dict)]
            self._level(path, [row for row, _ in inner], [value for _, value in inner])
            if len(self.seen) == before:
                # Nothing but nulls inside: it says nothing yet.
                del kinds["object"]
        if kinds:
            self.seen[path] = kinds

    def _overflow(self, path: KeyPath, rows: Sequence[int], values: Sequence[Any]) -> None:
        name = pointer(path).removeprefix("/data")
        for row, value in zip(rows, values, strict=True):
            if kind_of(value):
                self.extra.setdefault(row, {})[name] = value

    def _fill_some(self, column: PayloadColumn, rows: Sequence[int], values: Sequence[Any]) -> None:
        if len(values) < self._rows:
            every: list[Any] = [None] * self._rows
            for row, value in zip(rows, values, strict=True):
                every[row] = value
            values = every
        self.fill(column, values)

    def fill(self, column: PayloadColumn, values: Sequence[Any]) -> None:
        """A column from the values of all rows, None where a row has none."""
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
                self._reject(row, column.path, column.name, column.kind, value)
        return pa.array(stored, TYPES[column.kind])

    def _reject(self, row: int, path: KeyPath, column: str, kind: str, value: Any) -> None:
        if row not in self.rejections:
            reason = f"{TYPE_CLASH}: {kind} in the table, {kind_of(value) or 'empty'} here"
            self.rejections[row] = Rejection(reason, pointer(path), column, as_text(value)[:MAX_VALUE_CHARS])


T = TypeVar("T")


def isolated(
    texts: Sequence[str | None], shape: Callable[[int, Sequence[str | None]], T], start: int = 0
) -> Iterator[tuple[int, T | Rejection]]:
    """`shape` over all texts; where it raises, over halves of them, down to the single text it cannot shape.

    It is given the number of its first row and the texts. Gives that number, and the result or why there is
    none. One message must never stop a batch,
    whatever fault of ours or of a library it finds."""
    if not texts:
        return
    try:
        done = shape(start, texts)
    except Exception as exc:  # the boundary around one message: what it raises becomes its rejection
        if len(texts) == 1:
            reason = f"{NOT_SHAPED}: {type(exc).__name__}: {exc}"
            yield start, Rejection(printable(reason, _REASON_CHARS))
            return
    else:
        yield start, done
        return
    middle = len(texts) // 2
    yield from isolated(texts[:middle], shape, start)
    yield from isolated(texts[middle:], shape, start + middle)


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

    def __init__(self, columns: PayloadColumns, *, final: bool = False) -> None:
        self._columns = columns
        self._final = final
        self._fields: _Fields | None = None
        # A key with a quote, a backslash or a control character cannot name a field of a struct.
        if all(key.isprintable() and not _UNFIT & set(key) for c in columns.columns for key in c.path):
            self._fields = _Fields((), columns.columns)
            self._decode = msgspec.json.Decoder(self._fields.struct, float_hook=fraction).decode

    def block(self, texts: Sequence[str | None]) -> PayloadBlock:
        if self._fields is not None:
            try:
                rows = list(map(self._decode, [text or "{}" for text in texts]))
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                pass  # One of them is not as expected: look at each.
            else:
                block = PayloadBlock((), self._columns)
                self._fields.fill(block, rows)
                return block
        return PayloadBlock(
            [decode(text) if text else {} for text in texts], self._columns, final=self._final
        )


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
    """What several blocks saw, together; of too many fields the most frequent."""
    merged: Seen = {}
    for part in parts:
        for path, counts in part.items():
            if path in merged:
                merged[path] = merged[path] + counts
            else:
                merged[path] = counts
    if len(merged) <= MAX_SEEN:
        return merged
    # An object is seen at least as often as any of its members: it stays where one of them does.
    ranked = sorted(merged, key=lambda path: (-sum(merged[path].values()), len(path), path))
    return {path: merged[path] for path in ranked[:MAX_SEEN]}


#: `Seen` as JSON has it.
PackedSeen = list[tuple[KeyPath, dict[str, int]]]


def pack_seen(seen: Seen) -> PackedSeen:
    return [(path, dict(counts)) for path, counts in seen.items()]


def unpack_seen(packed: PackedSeen) -> Seen:
    return {path: Counter(counts) for path, counts in packed}
