"""Changing `data` on the way back. `--set` edits the text in place, so every other byte stays; a
function gets the payload and gives it back. Either way the copy is a new message with a new id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shinar.envelope import fresh_id, judge
from shinar.envelope.text import Member, scan_object
from shinar.errors import ConfigError, ContractError
from shinar.redrive.letters.letter import Letter
from shinar.redrive.select.expression import Expression, parse_path
from shinar.redrive.select.selection import row_of

Function = Callable[[dict[str, Any]], Any]
Path = tuple[str | int, ...]


class Patch:
    def __init__(self, sets: Sequence[str] = (), function: Function | None = None) -> None:
        self._sets = [_assignment(text) for text in sets]
        self._function = function

    def apply(self, letter: Letter, body: bytes, new_id: str = "") -> tuple[bytes, str]:
        """(the copy changed, its new id). ContractError when the change does not fit this message."""
        if letter.message is None:
            raise ContractError("is no envelope and has no data to change", pointer="/data")
        if self._sets:
            row = row_of(letter)
            for path, expression in self._sets:
                body = _replaced(body, ("data", *path), _value(expression, row, body))
        if self._function is not None:
            message = judge(body).message
            try:
                changed = self._function(message.data if message else {})
            except Exception as exc:  # the outermost edge: somebody else's code, and its fault is the finding
                raise ContractError(f"the function raised {type(exc).__name__}: {exc}"[:300]) from exc
            if not isinstance(changed, dict):
                raise ContractError("the patch function did not return an object", pointer="/data")
            body = _replaced(body, ("data",), msgspec.json.encode(changed))
        new_id = new_id or fresh_id()
        return _replaced(body, ("meta", "id"), msgspec.json.encode(new_id)), new_id


def _assignment(text: str) -> tuple[Path, Expression]:
    left, sign, right = text.partition("=")
    if not sign or not right.strip():
        raise ConfigError(f"{text!r}: write data.field = expression", setting="--set")
    path = parse_path(left.strip())
    if any(isinstance(step, int) for step in path):
        raise ConfigError("an array's items cannot be set one by one; use --patch", setting="--set")
    return path, Expression(right.strip(), "--set")


def _value(expression: Expression, row: dict[str, Any], body: bytes) -> bytes:
    if expression.path is not None:
        found = _find(body, ("data", *expression.path))
        return found.value(body) if isinstance(found, Member) else b"null"
    return msgspec.json.encode(expression.value(row))


def _find(body: bytes, path: Path) -> Member | int:
    """The member at the path, or how many of its steps exist."""
    at = 0
    found: Member | None = None
    for depth, step in enumerate(path):
        if isinstance(step, int):
            raise ConfigError("an array's items cannot be set one by one; use --patch", setting="--set")
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
            "is no object that could take a member", pointer="/" + "/".join(map(str, path[:found]))
        )
    place = scan_object(body, start)
    joint = b"," if place.members else b""
    return body[: place.close] + joint + msgspec.json.encode(path[found]) + b":" + value + body[place.close :]
