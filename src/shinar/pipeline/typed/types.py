"""Payloads as typed columns: what a value is, which column it gets, and when it does not fit.

Nested objects become columns `parent__child`; an array of one scalar type stays an array; any other array,
and what lies too deep, is kept as JSON text. Integers are int64 or decimal, fractions decimal, and a double
only where no digit is lost. Pure values and Arrow, no Spark, no files.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, Final

import msgspec
import pyarrow as pa

#: Objects nested deeper than this are kept as JSON text.
MAX_DEPTH: Final = 4
#: Columns a typed table may grow to; fields beyond go into `_extra` (a payload with ids as keys has no end).
MAX_COLUMNS: Final = 300
#: A longer key gets no column: it is data, and every later batch would carry it in the table's schema.
MAX_KEY_CHARS: Final = 200
#: Decimal places of a column of fractions: enough for money, rates and coordinates.
SCALE: Final = 18
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

#: Kind of column -> its Arrow type.
TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "bigint": pa.decimal128(38, 0),
    "decimal": pa.decimal128(38, SCALE),
    "double": pa.float64(),
    "string": pa.string(),
    "json": pa.string(),
    "booleans": pa.list_(pa.bool_()),
    "longs": pa.list_(pa.int64()),
    "decimals": pa.list_(pa.decimal128(38, SCALE)),
    "strings": pa.list_(pa.string()),
}

#: What the row itself carries before the payload; the underscore keeps a payload's own `id` free.
ENVELOPE: Final = pa.schema(
    [
        pa.field("_id", pa.string()),
        pa.field("_urn", pa.string()),
        pa.field("_trace_id", pa.string()),
        pa.field("_queue", pa.string()),
        pa.field("_lang", pa.string()),
        pa.field("_created_at", pa.timestamp("us", tz="UTC")),
        pa.field("_received_at", pa.timestamp("us", tz="UTC")),
        pa.field("_attempts", pa.int64()),
        pa.field("_batch", pa.string()),
        pa.field("_extra", pa.string()),
    ]
)

#: Kinds an array's element may have, and the kind the array then has.
ARRAYS: Final = {"boolean": "booleans", "long": "longs", "decimal": "decimals", "string": "strings"}
ELEMENT: Final = {array: element for element, array in ARRAYS.items()}
#: When a batch shows several kinds for one new field the most frequent wins, then the first of these.
_FAMILIES: Final = ("string", "number", "boolean", "object", "array")

#: Frames a decoder may use beyond the usual limit: a payload is nested up to the contract's 900 levels.
_DEEP_FRAMES: Final = 3000

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

KeyPath = tuple[str, ...]


class PayloadColumn(msgspec.Struct, frozen=True):
    path: KeyPath
    name: str
    kind: str


class PayloadColumns(msgspec.Struct, frozen=True):
    """The payload columns of one typed table, in the order they came."""

    columns: tuple[PayloadColumn, ...] = ()

    def arrow(self) -> pa.Schema:
        return pa.schema([*ENVELOPE, *(pa.field(c.name, TYPES[c.kind]) for c in self.columns)])

    def objects(self) -> set[KeyPath]:
        return {column.path[:depth] for column in self.columns for depth in range(1, len(column.path))}

    def with_new(self, kinds: Mapping[KeyPath, str]) -> PayloadColumns:
        taken = {name.lower() for name in ENVELOPE.names} | {c.name.lower() for c in self.columns}
        grown = list(self.columns)
        # `decide_all` ranks the fields; those of one batch that get a column are in alphabetical order.
        for path in sorted(list(kinds)[: max(0, MAX_COLUMNS - len(grown))]):
            name = _column_name(path, taken)
            taken.add(name.lower())
            grown.append(PayloadColumn(path, name, kinds[path]))
        return PayloadColumns(tuple(grown))


#: Path -> how often each kind of value was seen there.
Seen = dict[KeyPath, Counter[str]]


def _column_name(path: KeyPath, taken: set[str]) -> str:
    plain = "__".join(re.sub(r"\W", "_", key, flags=re.ASCII) or "_" for key in path)[:120]
    # Spark compares names without case; a leading underscore belongs to the envelope.
    plain = f"f{plain}" if plain.startswith("_") else plain
    name, number = plain, 0
    while name.lower() in taken:
        # A payload may well have a key that looks like the first such name.
        number += 1
        name = f"{plain}_{sha256(json.dumps([path, number]).encode()).hexdigest()[:6]}"
    return name


def fraction(text: str) -> Any:
    """A JSON number with a fraction or an exponent; one beyond Decimal's exponents keeps its text."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return msgspec.Raw(text.encode())


_DECODER: Final = msgspec.json.Decoder(float_hook=fraction)


def decode(text: str) -> dict[str, Any]:
    """The payload of an accepted message; fractions stay decimal."""
    try:
        value = _decoded(text)
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(usual + _DEEP_FRAMES)
        try:
            value = _decoded(text)
        finally:
            sys.setrecursionlimit(usual)
    return value if isinstance(value, dict) else {}


def _decoded(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        # Lone surrogate escapes are legal in the contract and unknown to msgspec.
        return json.loads(text, parse_float=fraction)


def kind_of(value: Any) -> str | None:
    """What a single value asks for; None says nothing (null, empty)."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if INT64_MIN <= value <= INT64_MAX else "bigint" if abs(value) < 10**38 else "json"
    if isinstance(value, Decimal):
        return next((kind for kind in ("decimal", "double") if fits(value, kind)), "json")
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object" if value else None
    return _array_kind(value) if isinstance(value, list) else "json"


def _array_kind(values: list[Any]) -> str | None:
    # One level is enough to know, and arrays may be nested hundreds of levels deep.
    kinds = {("json" if item else None) if isinstance(item, list) else kind_of(item) for item in values}
    kinds.discard(None)
    if not kinds:
        return None
    if kinds == {"long", "decimal"}:
        return "decimals"
    return ARRAYS.get(kinds.pop() or "", "json") if len(kinds) == 1 else "json"


def decide(counts: Mapping[str, int]) -> str:
    """The kind of a new column from what one batch showed of it."""
    families: Counter[str] = Counter()
    for kind, count in counts.items():
        families[_family(kind)] += count
    best = max(_FAMILIES, key=lambda family: (families[family], -_FAMILIES.index(family)))
    kinds = {kind for kind in counts if _family(kind) == best}
    if best == "number":
        return next(kind for kind in ("double", "decimal", "bigint", "long") if kind in kinds)
    if best == "array":
        return kinds.pop() if len(kinds) == 1 else "decimals" if kinds == {"longs", "decimals"} else "json"
    return best


def _family(kind: str) -> str:
    if kind in ("long", "bigint", "decimal", "double"):
        return "number"
    return kind if kind in ("string", "boolean", "object") else "array"


def decide_all(seen: Seen) -> dict[KeyPath, str]:
    """Columns for new fields, the most frequent fields first: objects are entered, and what lies under a
    non-object is left out."""
    kinds: dict[KeyPath, str] = {}
    objects: set[KeyPath] = {()}
    for path in sorted(seen, key=lambda path: (len(path), path)):
        if path[:-1] not in objects and any(path[:depth] in seen for depth in range(1, len(path))):
            continue
        kind = decide(seen[path])
        if kind == "object":
            objects.add(path)
        else:
            kinds[path] = kind
    return dict(sorted(kinds.items(), key=lambda item: (-seen[item[0]].total(), item[0])))


def fits(value: Any, kind: str) -> bool:
    return coerce(value, kind) is not None


def coerce(value: Any, kind: str) -> Any:
    """The value as a column of `kind` stores it, or None when it would lose something."""
    if kind in ELEMENT:
        if value == {}:
            return []  # PHP cannot tell an empty list from an empty map.
        if not isinstance(value, list):
            return None
        items = [None if item is None else coerce(item, ELEMENT[kind]) for item in value]
        lost = any(new is None and old is not None for new, old in zip(items, value, strict=True))
        return None if lost else items
    if kind == "json":
        scalar = not isinstance(value, list | dict) and kind_of(value) != "json"
        return None if scalar else as_text(value)
    if kind == "string":
        return value if isinstance(value, str) and is_utf8(value) else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    return _number(value, kind)


def _number(value: Any, kind: str) -> int | float | Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    exact = Decimal(value)
    if kind == "double":
        near = float(exact)
        return near if Decimal(repr(near)) == exact else None
    if kind in ("long", "bigint"):
        if exact != exact.to_integral_value():
            return None
        limit = 2**63 if kind == "long" else 10**38
        whole = int(exact) if exact.adjusted() < 39 else None
        if whole is None or not -limit <= whole < limit:
            return None
        return whole if kind == "long" else Decimal(whole)
    try:
        scaled = exact.quantize(Decimal(1).scaleb(-SCALE), context=_WIDE)
    except InvalidOperation:
        return None
    return scaled if scaled == exact else None


_WIDE: Final = Context(prec=38)


def is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_text(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except (UnicodeEncodeError, RecursionError):
        return _escaped(value)


def _escaped(value: Any) -> str:
    """With lone surrogates as escapes. Without recursion: a payload may be nested 900 levels deep."""
    parts: list[str] = []
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, msgspec.Raw):
            parts.append(bytes(part).decode())
        elif isinstance(part, dict):
            members = [[_raw(json.dumps(key) + ":"), member] for key, member in part.items()]
            waiting += reversed(_joined("{", members, "}"))
        elif isinstance(part, list):
            waiting += reversed(_joined("[", [[item] for item in part], "]"))
        else:
            parts.append(json.dumps(part) if isinstance(part, str) else _ENCODER.encode(part).decode())
    return "".join(parts)


def _joined(start: str, groups: list[list[Any]], end: str) -> list[Any]:
    inner = [part for group in groups for part in (_raw(","), *group)]
    return [_raw(start), *inner[1:], _raw(end)]


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())
