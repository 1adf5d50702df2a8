"""`judge` decides what a body is; nothing else does. Pure, never raises, bounded in depth.

Two paths, one answer. The fast one decodes a canonical envelope with one typed msgspec call. It
refuses everything unusual (unknown members, nulls, odd types, lone surrogates), and whatever it
refuses goes down the exact path, which follows contract chapters 2 and 5 step by step.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from shinar.envelope.model import (
    CORE_META,
    FORBIDDEN_META,
    FORBIDDEN_TOP,
    INT64_MAX,
    INT64_MIN,
    MAX_DEPTH,
    SCHEMA_VERSION,
    TOP_LEVEL,
    DeadLetter,
    EnvelopeWarning,
    Kind,
    Message,
    Meta,
    Reason,
    Verdict,
    valid_identity,
)

#: No double can represent an integer of this many digits.
_HUGE_DIGITS: Final = 309
#: Nothing shorter has room for such a number next to the members a canonical envelope must have.
_HUGE_BODY: Final = _HUGE_DIGITS + 100
_HUGE_NUMBER: Final = re.compile(rb"[0-9]{309}")
_DIGIT: Final = re.compile(rb"[0-9]")
#: Nothing shorter can be nested deeper than MAX_DEPTH: each level takes two brackets.
_DEEP_BODY: Final = 2 * MAX_DEPTH
#: Innermost pairs are peeled off, level by level, while that costs less than so many scans of all brackets;
#: then they are counted one by one.
_PEELING_WORK: Final = 8
_NEITHER_BRACKET_NOR_QUOTE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_BRACKET_OR_STRING: Final = re.compile(rb'[\[{]|[\]}]|"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_canonical: Final = msgspec.json.Decoder(Message).decode
#: Text that begins with white space, and empty text, come before this.
_PRINTABLE: Final = "!"
#: Looked up once: reading a member of an Enum class costs as much as reading ten globals.
_ACCEPTED: Final = Kind.ACCEPTED


def judge(body: bytes) -> Verdict:
    message = read(body)
    return _examine(body) if message is None else Verdict(_ACCEPTED, body, message)


def read(body: bytes) -> Message | None:
    """The fast path of `judge`: the message of a canonical body, accepted as it is. None says nothing
    but that judge must look closer."""
    try:
        message = _canonical(body)
    except _REFUSALS:
        return None
    meta = message.meta
    if (
        meta.schema_version != SCHEMA_VERSION
        or message.extra is not None
        or meta.extra is not None
        # Empty, or white space or less in front: perhaps blank, which is not for this path to say.
        or message.urn < _PRINTABLE
        or message.trace_id < _PRINTABLE
        or (len(body) > _HUGE_BODY and _has_huge_number(body))
        or (len(body) > _DEEP_BODY and not _shallow(body))
    ):
        return None
    return message


def classify(body: bytes) -> Literal["ok", "no_identity", "poison"]:
    """The three-way answer of the contract's chapter 5; another version is still `ok`."""
    kind = judge(body).kind
    if kind is Kind.POISON:
        return "poison"
    return "no_identity" if kind is Kind.NO_IDENTITY else "ok"


def parse_strict(body: bytes) -> Any:
    """One strict JSON value, or a Fault. A number that no double can represent is a Fault too."""
    if not _shallow(body):
        return Fault(Reason.TOO_DEEP)
    try:
        # msgspec is stricter than the contract on lone surrogates only; it does not bound integers.
        if not (len(body) > _HUGE_DIGITS and _has_huge_number(body)):
            return msgspec.json.decode(body)
    except _REFUSALS:
        pass
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return Fault(Reason.INVALID_UTF8)
    return _parse_text(text)


class Fault(NamedTuple):
    reason: Reason
    pointer: str = ""


def fold_identity(document: Mapping[str, Any]) -> tuple[str | None, list[EnvelopeWarning]]:
    """`job`, else `urn` (contract rules 2.3 and 2.4): the identity verbatim, and what to warn about."""
    job, urn = document.get("job"), document.get("urn")
    if valid_identity(job):
        dropped = (
            [EnvelopeWarning("/urn", "is dropped: job already names the message")]
            if "urn" in document
            else []
        )
        return job, dropped
    warnings = []
    if "job" in document and not isinstance(job, str):
        warnings.append(EnvelopeWarning("/job", "is not a string and is ignored"))
    return (urn if valid_identity(urn) else None), warnings


def forbidden_in(document: Mapping[str, Any]) -> list[EnvelopeWarning]:
    found = [EnvelopeWarning("/timestamp", "is forbidden and dropped")] if "timestamp" in document else []
    meta = document.get("meta")
    if isinstance(meta, dict):
        found += [
            EnvelopeWarning(f"/meta/{name}", "is forbidden and dropped")
            for name in sorted(FORBIDDEN_META & meta.keys())
        ]
    return found


def _examine(body: bytes) -> Verdict:
    document = parse_strict(body)
    if isinstance(document, Fault):
        return Verdict(Kind.POISON, body, None, document.reason, document.pointer)
    if document is None:
        return Verdict(Kind.NO_IDENTITY, body, None, Reason.NO_IDENTITY)
    if not isinstance(document, dict):
        return Verdict(Kind.POISON, body, None, Reason.NOT_AN_OBJECT)
    fault = _type_fault(document)
    if fault is not None:
        return Verdict(Kind.POISON, body, None, Reason.WRONG_TYPE, fault)
    identity, warnings = fold_identity(document)
    found = tuple(warnings + forbidden_in(document))
    if identity is None:
        return Verdict(Kind.NO_IDENTITY, body, None, Reason.NO_IDENTITY, "/job", found)
    message = _message(identity, document)
    version = (document.get("meta") or {}).get("schema_version")
    if version is not None and version != SCHEMA_VERSION:
        pointer = "/meta/schema_version"
        return Verdict(Kind.UNSUPPORTED_VERSION, body, message, Reason.UNSUPPORTED_VERSION, pointer, found)
    missing = _first_missing(document)
    reason = Reason.NONE if missing is None else Reason.INCOMPLETE
    return Verdict(Kind.ACCEPTED, body, message, reason, missing or "", found)


_DICT_OR_NULL: Final = (dict, NoneType)
_TEXT_OR_NULL: Final = (str, NoneType)
#: Where the known members are and what they may be, besides null (contract rule 5.2).
_MEMBER_TYPES: Final = (
    # block, string members, int64 members
    ("", ("trace_id",), ("attempts",)),
    ("/meta", ("id", "queue", "lang"), ("schema_version", "created_at")),
    ("/dead_letter", ("reason", "error", "exception", "original_queue", "lang"), ("failed_at", "attempts")),
)


def _type_fault(document: dict[str, Any]) -> str | None:
    """Pointer of the first known member of a wrong type; null is always fine."""
    for name in ("data", "meta", "dead_letter"):
        if not isinstance(document.get(name), _DICT_OR_NULL):
            return f"/{name}"
    for block, strings, integers in _MEMBER_TYPES:
        inner = document if not block else document.get(block[1:]) or {}
        for name in strings:
            if not isinstance(inner.get(name), _TEXT_OR_NULL):
                return f"{block}/{name}"
        for name in integers:
            if not _int64_or_null(inner.get(name)):
                return f"{block}/{name}"
    return None


def _int64_or_null(value: object) -> bool:
    return value is None or (type(value) is int and INT64_MIN <= value <= INT64_MAX)


def _first_missing(document: dict[str, Any]) -> str | None:
    """Pointer of the first member the strict consumer gate misses (contract rule 2.7)."""
    if not valid_identity(document.get("trace_id")):
        return "/trace_id"
    if document.get("data") is None:
        return "/data"
    if (document.get("meta") or {}).get("schema_version") is None:
        return "/meta/schema_version"
    if document.get("attempts") is None:
        return "/attempts"
    return None


def _message(identity: str, document: dict[str, Any]) -> Message:
    block = document.get("dead_letter")
    unknown = {name: value for name, value in document.items() if name not in _KNOWN_TOP}
    return Message(
        urn=identity,
        trace_id=document.get("trace_id") or "",
        data=document.get("data") or {},
        meta=_meta(document.get("meta") or {}),
        attempts=document.get("attempts") or 0,
        dead_letter=None if block is None else _dead_letter(block),
        extra=unknown or None,
    )


#: Members that become fields, and those that decoding drops.
_KNOWN_TOP: Final = TOP_LEVEL | FORBIDDEN_TOP


def _meta(meta: dict[str, Any]) -> Meta:
    unknown = {
        name: value for name, value in meta.items() if name not in CORE_META and name not in FORBIDDEN_META
    }
    return Meta(
        id=meta.get("id") or "",
        queue=meta.get("queue") or "",
        lang=meta.get("lang") or "",
        schema_version=meta.get("schema_version") or 0,
        created_at=meta.get("created_at") or 0,
        extra=unknown or None,
    )


def _dead_letter(block: dict[str, Any]) -> DeadLetter:
    return DeadLetter(**{name: block.get(name) for name in DeadLetter.__struct_fields__})


def _shallow(body: bytes) -> bool:
    """Is every value nested at most MAX_DEPTH levels deep? Asks cheap questions first."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return True
    text = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    # A string without brackets is two quotes now; where one has brackets, a quote is left over.
    brackets = text.translate(None, _NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"")
    work = _PEELING_WORK * len(brackets)
    while work > 0:
        size = len(brackets)
        work -= size
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return True
        if len(brackets) == size:
            break
    return _counted_shallow(body)


def _counted_shallow(body: bytes) -> bool:
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return False
        elif first in b"]}":
            depth -= 1
    return True


def _has_huge_number(body: bytes) -> bool:
    # A run of 309 digits covers one of every 309 bytes, so most bodies are cleared by a short slice.
    probe = body[_HUGE_DIGITS - 1 :: _HUGE_DIGITS]
    return _DIGIT.search(probe) is not None and _HUGE_NUMBER.search(body) is not None


class _OutOfRange(ValueError):
    pass


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _OutOfRange
    return value


def _integer(literal: str) -> int:
    if len(literal) >= _HUGE_DIGITS:
        _finite(literal)  # before int(), whose cost is quadratic
    return int(literal)


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


_python_decoder: Final = json.JSONDecoder(
    parse_float=_finite, parse_int=_integer, parse_constant=_refuse_constant
)


def _parse_text(text: str) -> Any:
    try:
        return _python_decoder.decode(text)
    except _OutOfRange:
        return Fault(Reason.NUMBER_OUT_OF_RANGE)
    except ValueError:
        return Fault(Reason.INVALID_JSON)
    except RecursionError:
        return _parse_on_fresh_stack(text)


def _parse_on_fresh_stack(text: str) -> Any:
    # The body is at most MAX_DEPTH deep, so it was the caller's own stack that ran out.
    result: list[Any] = [Fault(Reason.TOO_DEEP)]

    def parse() -> None:
        try:
            result[0] = _python_decoder.decode(text)
        except _OutOfRange:
            result[0] = Fault(Reason.NUMBER_OUT_OF_RANGE)
        except ValueError:
            result[0] = Fault(Reason.INVALID_JSON)
        except RecursionError:
            pass

    thread = threading.Thread(target=parse)
    thread.start()
    thread.join()
    return result[0]
