"""Header tables of AMQP 0-9-1 as they are on the wire: read without loss, and thinned out without
being read. Pure, and never raises: whatever a stranger put into a header, the message has to be handled.

pika's own reader cuts off what follows a decimal point and fails on times in milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

_LENGTH: Final = struct.Struct(">I")
_DECIMAL: Final = struct.Struct(">Bi")
#: Kinds of one fixed size. RabbitMQ's letters, which differ from the standard's: l and L are both signed.
_FIXED: Final = {
    kind: struct.Struct(f">{form}")
    for kind, form in zip(b"tbBUsuIiLlfdT", "?bBhhHiIqqfdQ", strict=True)
}  # fmt: skip
_STRING, _BYTES, _ARRAY, _TABLE, _VOID, _SCALED = b"SxAFVD"
#: Deeper than this a value counts as empty: reading it would end in Python's own limit.
_DEEPEST: Final = 20


class _Damaged(Exception):
    """Ends before it should, or has a kind whose length nobody knows."""


def read_table(encoded: bytes) -> Mapping[str, Any]:
    """Times are numbers, as they were sent; a damaged table is empty."""
    try:
        return {name: value for name, value, _ in _entries(encoded, 0, len(encoded), 0)}
    except (_Damaged, struct.error, IndexError):
        return {}


def thinned(encoded: bytes, keep: Callable[[str], bool]) -> bytes:
    """The same table without some names, every other byte unchanged; a damaged one stays as it is."""
    try:
        kept = [part for name, _, part in _entries(encoded, 0, len(encoded), 0) if keep(name)]
    except (_Damaged, struct.error, IndexError):
        return encoded
    return b"".join(kept)


def _entries(data: bytes, at: int, end: int, depth: int) -> Iterator[tuple[str, Any, bytes]]:
    """Names, values, and both as they were written. Without the length in front."""
    while at < end:
        start, after = at, at + 1 + data[at]
        name = data[at + 1 : after].decode("utf-8", "replace")
        value, at = _value(data, after, end, depth)
        yield name, value, data[start:at]


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    kind, at = data[at], at + 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at)[0], _within(at + fixed.size, end)
    if kind == _VOID:
        return None, at
    if kind == _SCALED:
        places, digits = _DECIMAL.unpack_from(data, at)
        return Decimal(digits).scaleb(-places), _within(at + _DECIMAL.size, end)
    if kind not in (_STRING, _BYTES, _ARRAY, _TABLE):
        raise _Damaged
    at, stop = at + _LENGTH.size, _within(at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0], end)
    if kind == _STRING:
        return data[at:stop].decode("utf-8", "replace"), stop
    if kind == _BYTES:
        return data[at:stop], stop
    if depth >= _DEEPEST:
        return None, stop
    if kind == _TABLE:
        return {name: value for name, value, _ in _entries(data, at, stop, depth + 1)}, stop
    items = []
    while at < stop:
        item, at = _value(data, at, stop, depth + 1)
        items.append(item)
    return items, stop


def _within(at: int, end: int) -> int:
    if at > end:
        raise _Damaged
    return at
