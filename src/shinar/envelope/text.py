"""Editing JSON as text: find members, cut, replace, append; never parse and print again.

Works on bytes that are known to be one valid JSON object. What is not edited stays byte-identical.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_STOP: Final = re.compile(rb'["{}\[\]]')
_SCALAR: Final = re.compile(rb"[^,}\] \t\n\r]+")
_GAP: Final = re.compile(rb"[ \t\n\r]*")


class Member(NamedTuple):
    name: str
    #: Offset of the name's opening quote.
    start: int
    value_start: int
    end: int

    def value(self, text: bytes) -> bytes:
        return text[self.value_start : self.end]


class Object(NamedTuple):
    """Where an object lies in a text: its braces and its members, in order."""

    open: int
    close: int
    members: list[Member]

    def last(self, name: str) -> Member | None:
        """The member that counts: of repeated names the last one wins."""
        return next((m for m in reversed(self.members) if m.name == name), None)


def scan_object(text: bytes, at: int = 0) -> Object:
    """The members of the object that starts at or after `at`, without looking inside them."""
    start = _gap(text, at)
    members: list[Member] = []
    at = _gap(text, start + 1)
    while text[at] != 0x7D:  # }
        name_end = _string_end(text, at)
        value_start = _gap(text, _gap(text, name_end) + 1)
        end = _value_end(text, value_start)
        members.append(Member(_name(text[at:name_end]), at, value_start, end))
        at = _gap(text, end)
        if text[at] == 0x2C:  # ,
            at = _gap(text, at + 1)
    return Object(start, at, members)


def rebuild(text: bytes, found: Object, members: Iterable[bytes]) -> bytes:
    """The same object with these members, each a `"name":value` text."""
    return text[: found.open + 1] + b",".join(members) + text[found.close :]


def _name(quoted: bytes) -> str:
    if b"\\" not in quoted:
        return quoted[1:-1].decode("utf-8")
    try:
        return msgspec.json.decode(quoted, type=str)
    except msgspec.DecodeError:
        return quoted.decode("utf-8")  # a lone surrogate: no contract name has one, so any text will do


def _gap(text: bytes, at: int) -> int:
    match = _GAP.match(text, at)
    assert match is not None
    return match.end()


def _string_end(text: bytes, at: int) -> int:
    match = _STRING.match(text, at)
    assert match is not None, "the caller vouches for valid JSON"
    return match.end()


def _value_end(text: bytes, at: int) -> int:
    first = text[at]
    if first == 0x22:  # "
        return _string_end(text, at)
    if first not in b"{[":
        match = _SCALAR.match(text, at)
        assert match is not None, "the caller vouches for valid JSON"
        return match.end()
    depth = 0
    while True:
        match = _STOP.search(text, at)
        assert match is not None, "the caller vouches for valid JSON"
        at = match.start()
        if text[at] == 0x22:
            at = _string_end(text, at)
            continue
        depth += 1 if text[at] in b"{[" else -1
        at += 1
        if depth == 0:
            return at
