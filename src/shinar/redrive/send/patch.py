"""Changing `data` on the way back. `--set` edits the text in place, so every other byte stays; a
function gets the payload and returns it. Either way the copy is a new message with a new id."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from shinar.envelope import fresh_id, judge
from shinar.envelope.text import Member, scan_object
from shinar.errors import ConfigError, ContractError, ExpressionError
from shinar.redrive.letters.letter import Letter
from shinar.redrive.select.casts import cast_to
from shinar.redrive.select.expression import Expression, parse_path
from shinar.redrive.select.payload import decode
from shinar.redrive.select.selection import row_of
from shinar.redrive.select.tree import PAYLOAD
from shinar.redrive.select.types import DATE, STRING, TIMESTAMP, SqlType

Function = Callable[[dict[str, Any]], Any]
Path = tuple[str | int, ...]

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_ITEMS: Final = "an item of an array cannot be set; use --patch"


class Patch:
    def __init__(self, sets: Sequence[str] = (), function: Function | None = None) -> None:
        self._sets = [_assignment(text) for text in sets]
        self._function = function

    def apply(self, letter: Letter, body: bytes, new_id: str = "") -> tuple[bytes, str]:
        """(the copy changed, its new id). ContractError when the change does not fit this message."""
        if letter.message is None:
            raise ContractError("there is no payload to change: this is not an envelope", pointer="/data")
        body = self.changed(letter, body)
        new_id = new_id or fresh_id()
        return _replaced(body, ("meta", "id"), _encode(new_id)), new_id

    def changed(self, letter: Letter, body: bytes) -> bytes:
        """The body with its payload changed, under its old id."""
        for path, expression in self._sets:
            body = _replaced(body, (PAYLOAD, *path), _value(expression, letter, body))
        if self._function is not None:
            message = judge(body).message
            try:
                changed = self._function(message.data if message else {})
            except Exception as exc:  # the outermost edge: somebody else's code, and its fault is the finding
                raise ContractError(f"the function raised {type(exc).__name__}: {exc}"[:300]) from exc
            if not isinstance(changed, dict):
                raise ContractError("the patch function did not return an object", pointer="/data")
            body = _replaced(body, (PAYLOAD,), msgspec.json.encode(changed))
        return body


def _assignment(text: str) -> tuple[Path, Expression]:
    left, sign, right = text.partition("=")
    if not sign or not right.strip():
        raise ConfigError(f"{text!r}: write data.field = expression", setting="--set")
    path = parse_path(left.strip())
    if any(isinstance(step, int) for step in path):
        raise ConfigError(_ITEMS, setting="--set")
    return path, Expression(right.strip(), "--set")


def _value(expression: Expression, letter: Letter, body: bytes) -> bytes:
    """The result as JSON. `body` is the copy so far: an assignment sees what those before it wrote."""
    if expression.path is not None and not any(isinstance(step, int) for step in expression.path):
        found = _find(body, (PAYLOAD, *expression.path))
        return found.value(body) if isinstance(found, Member) else b"null"
    row = row_of(letter, [name for name in expression.columns if name != PAYLOAD])
    if PAYLOAD in expression.columns:
        row[PAYLOAD] = decode(body)
    try:
        return _json(*expression.typed_value(row))
    except ExpressionError as exc:
        raise ContractError(f"{exc.reason} ({expression.text})", pointer="/data") from None


def _json(type_: SqlType, value: Any) -> bytes:
    """As Spark's to_json writes it: numbers keep their type, times are text."""
    if value is not None and type_ in (DATE, TIMESTAMP):
        as_text = cast_to(type_, STRING)
        assert as_text is not None
        value = as_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ContractError("JSON has no NaN and no infinity", pointer="/data")
    if isinstance(value, Decimal):
        return format(value, "f").encode()
    return _encode(value)


def _find(body: bytes, path: Path) -> Member | int:
    """The member at the path, or how many of its steps exist."""
    at = 0
    found: Member | None = None
    for depth, step in enumerate(path):
        if isinstance(step, int):
            raise ConfigError(_ITEMS, setting="--set")
        if found is not None:
            at = found.value_start
        if body[at : at + 1] != b"{" and found is not None:
            return depth
        found = scan_object(body, at).last(step)
        if found is None:
            return depth
    assert found is not None
    return found


def _replaced(body: bytes, path: Path, value: bytes) -> bytes:
    found = _find(body, path)
    if isinstance(found, Member):
        return body[: found.value_start] + value + body[found.end :]
    for step in reversed(path[found + 1 :]):
        value = b"{" + msgspec.json.encode(step) + b":" + value + b"}"
    parent = _find(body, path[:found]) if found else None
    start = parent.value_start if isinstance(parent, Member) else 0
    if body[start : start + 1] != b"{" and start:
        raise ContractError(
            "is not an object, so it cannot take a member", pointer="/" + "/".join(map(str, path[:found]))
        )
    scanned = scan_object(body, start)
    joint = b"," if scanned.members else b""
    added = joint + msgspec.json.encode(path[found]) + b":" + value
    return body[: scanned.close] + added + body[scanned.close :]
