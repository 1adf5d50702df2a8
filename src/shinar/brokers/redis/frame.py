"""Headers beside a body on a Redis list: the frame the contract's SDKs share. Pure.

A list element is the bare envelope; only a message with headers is wrapped, and only the
reserved member name tells a frame from an envelope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from shinar.brokers.contract import NOTHING
from shinar.brokers.projection import check_header
from shinar.envelope.copies import retry_copy
from shinar.envelope.model import Kind
from shinar.envelope.verdict import judge

_MARK: Final = b'"__bq_frame"'


class _Frame(msgspec.Struct, frozen=True):
    body: str
    version: object = msgspec.field(name="__bq_frame")
    headers: object = None


_decoder = msgspec.json.Decoder(_Frame)


def frame(body: bytes, headers: Mapping[str, str]) -> bytes:
    """`body` itself when there is nothing to carry. Bytes that are not UTF-8 fit in no JSON
    string: they go bare, because a body matters more than what travels beside it."""
    kept = {name: text for name, text in headers.items() if name and text}
    if not kept:
        return body
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return body
    for name, value in kept.items():
        check_header(name, value)
    return msgspec.json.encode({"__bq_frame": 1, "headers": kept, "body": text})


def unframe(value: bytes) -> tuple[bytes, Mapping[str, str]]:
    """The body and its headers; a value that is no frame is the body, unchanged."""
    if not value.startswith(b"{") or _MARK not in value:
        return value, NOTHING
    try:
        found = _decoder.decode(value)
        body = found.body.encode("utf-8")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return value, NOTHING
    if not found.version:
        return value, NOTHING
    headers = found.headers if isinstance(found.headers, dict) else {}
    return body, {name: str(text) for name, text in headers.items() if name and text not in (None, "")}


def counted(value: bytes) -> bytes:
    """The stored value with one attempt more; what has no attempts to count is left as it is."""
    body, headers = unframe(value)
    if judge(body).kind in (Kind.POISON, Kind.NO_IDENTITY):
        return value
    return frame(retry_copy(body), headers)
