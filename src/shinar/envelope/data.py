"""What may stand in a payload. `check_json` is the gate every message passes; `check_strict`
is the producer's optional, stricter check for payloads that every language must read alike."""

from __future__ import annotations

import decimal
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from shinar.envelope.model import INT64_MAX, INT64_MIN, MAX_DEPTH, EnvelopeWarning, Int64
from shinar.errors import ContractError

#: Largest integer a JavaScript consumer reads exactly.
SAFE_INTEGER: Final = 2**53 - 1

_DATE_LIKE: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
_RFC3339: Final = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)"
    r"(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
)

_ADVICE: Final[dict[str, str]] = {
    "bytes": "encode it as base64 text",
    "bytearray": "encode it as base64 text",
    "memoryview": "encode it as base64 text",
    "datetime": "write it as RFC 3339 text (.isoformat() of an aware datetime) or as epoch milliseconds",
    "date": "write it as text (.isoformat())",
    "UUID": "write it as text (str(...))",
}


# The usual payload is checked in one C call against this type, which nests as deep as usual
# payloads do. What does not fit (deeper, or wrong) is looked at again, slowly, member by member.
_Scalar = (
    str | Int64 | Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)] | bool | None
)
_Inner: Any = _Scalar
for _ in range(5):
    _Inner = _Scalar | list[_Inner] | dict[str, _Inner]


class _Usual(msgspec.Struct, array_like=True):
    payload: dict[str, _Inner]


def check_json(value: Mapping[str, Any], pointer: str) -> None:
    """Refuse what JSON cannot say, or says differently in another language. Raises ContractError."""
    try:
        msgspec.convert((value,), _Usual)
    except (msgspec.ValidationError, RecursionError):
        # Counted from the root of the body, as `judge` does: what may leave must be read.
        if pointer.count("/") + _depth(value) > MAX_DEPTH:
            text = f"makes the message nested deeper than {MAX_DEPTH} levels; flatten it"
            raise ContractError(text, pointer=pointer or None) from None
        for where, item in _walk(value, pointer):
            _refuse_bad(where, item)


def check_strict(value: Mapping[str, Any], pointer: str = "/data") -> list[EnvelopeWarning]:
    """`check_json`, and no lone surrogates, and times as RFC 3339; warns of integers JavaScript rounds."""
    check_json(value, pointer)
    warnings: list[EnvelopeWarning] = []
    for where, item in _walk(value, pointer):
        if isinstance(item, str):
            _check_text(where, item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > SAFE_INTEGER:
            warnings.append(
                EnvelopeWarning(where, "is beyond 2^53-1: a JavaScript consumer rounds it; send it as text")
            )
    return warnings


def _check_text(where: str, text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ContractError(
                "contains a lone surrogate and is not Unicode text; remove it", pointer=where
            ) from None
    if _DATE_LIKE.match(text) and not _RFC3339.fullmatch(text):
        raise ContractError(
            f"{text[:40]!r} looks like a time but is not RFC 3339; write 2026-01-31T12:00:00Z "
            "or epoch milliseconds",
            pointer=where,
        )


def escape(name: str) -> str:
    """A member name as a segment of an RFC 6901 pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _refuse_bad(where: str, item: object) -> None:
    if isinstance(item, _BadKey):
        raise ContractError(f"the name {item.key!r} is not a string", pointer=where or None)
    kind = type(item)
    if kind in _PLAIN:
        return
    if isinstance(item, int):
        if not INT64_MIN <= item <= INT64_MAX:
            raise ContractError("is outside int64; write it as text", pointer=where)
    elif isinstance(item, float | decimal.Decimal):
        if not math.isfinite(item):
            raise ContractError(f"{item} is not JSON; leave the member out or write null", pointer=where)
    elif not isinstance(item, _CONTAINERS):
        advice = _ADVICE.get(kind.__name__, "convert it to text, numbers, lists or dicts first")
        raise ContractError(f"{kind.__name__} is not JSON: {advice}", pointer=where)


_PLAIN: Final = frozenset({str, bool, type(None)})
#: Sets and Decimals are taken too: they go out as a list and as text, which loses nothing.
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)


class _BadKey:
    def __init__(self, key: object) -> None:
        self.key = key


def _walk(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    stack = [(pointer, value)]
    while stack:
        where, item = stack.pop()
        if isinstance(item, Mapping):
            for key, inner in item.items():
                if isinstance(key, str):
                    stack.append((f"{where}/{escape(key)}", inner))
                    yield f"{where}/{escape(key)}", key
                else:
                    yield where, _BadKey(key)
        elif isinstance(item, _CONTAINERS):
            stack.extend((f"{where}/{index}", inner) for index, inner in enumerate(item))
        if item is not value:
            yield where, item


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, Mapping) else item)
            if isinstance(inner, (Mapping, *_CONTAINERS))
        ]
        if deepest > MAX_DEPTH:
            break
    return deepest
