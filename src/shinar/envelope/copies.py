"""Copies of a body that was already judged: counted for a retry, dead-lettered, redriven.

All edits are made in the text, so numbers, key order, unknown members and white space come out as
they came in. Keys that decoding drops (a second identity, forbidden ones) are cut here as well.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from shinar.envelope.model import (
    FORBIDDEN_META,
    FORBIDDEN_TOP,
    MAX_DEPTH,
    SOURCE_LANG,
    DeadLetter,
    DeadReason,
    valid_identity,
)
from shinar.envelope.text import Member, Object, rebuild, scan_object
from shinar.envelope.verdict import parse_strict
from shinar.errors import ContractError, error_text

#: Longest error text a dead letter carries; a stack of nested causes must not outgrow the message.
MAX_ERROR_CHARS: Final = 4096

#: How every SDK ends a body it wrote. The brace closes the root, so the number is the root's last
#: member, and of repeated members the last one wins.
_PLAIN_END: Final = b',"attempts":'
#: A body without these texts (and without escapes that could spell them) has nothing to cut.
_SPECIAL: Final = (b'"urn"', b'"timestamp"', b'"max_retries"', b'"source"', b'"ts"', b'"dead_letter"', b"\\u")
_JSON_WS: Final = b" \t\n\r"

_raw_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def dead_letter(
    reason: DeadReason,
    *,
    queue: str,
    attempts: int,
    failed_ms: int,
    error: BaseException | str | None = None,
) -> DeadLetter:
    """The block for a delivery consumed from `queue` that was given up after `attempts` deliveries."""
    text = None if error is None else error_text(error)
    if text is not None:
        text = text[:MAX_ERROR_CHARS].encode("utf-8", "backslashreplace").decode("utf-8")
    return DeadLetter(
        reason=reason,
        error=text,
        exception=type(error).__qualname__ if isinstance(error, BaseException) else None,
        failed_at=failed_ms,
        original_queue=queue,
        attempts=attempts,
        lang=SOURCE_LANG,
    )


def reencode(body: bytes) -> bytes:
    """The body less the keys that decoding drops; byte-identical when there are none."""
    return _rewrite(body, None, None)


def with_attempts(body: bytes, attempts: int) -> bytes:
    return _rewrite(body, attempts, None)


def retry_copy(body: bytes, attempts: int | None = None) -> bytes:
    """The body counted once more (or set to `attempts`); nothing else changes."""
    return _rewrite(body, attempts_of(body) + 1 if attempts is None else attempts, None)


def dead_letter_copy(body: bytes, block: DeadLetter) -> bytes:
    """The body with its `dead_letter` block, `attempts` being the block's count."""
    if block.attempts is None:
        raise ContractError("a dead letter needs its count", pointer="/dead_letter/attempts")
    return _rewrite(body, block.attempts, msgspec.json.encode(block))


def redrive_copy(body: bytes) -> bytes:
    """A dead letter made fit to be handled again: no `dead_letter`, `attempts` 0."""
    return _rewrite(body, 0, b"")


def poison_record(body: bytes, block: DeadLetter) -> bytes:
    """The dead-letter record of a body that is not an envelope (contract rule 7.1): spliced, or wrapped."""
    encoded = msgspec.json.encode(block)
    if _splicable(body):
        text = body.strip(_JSON_WS)
        inside = text[:-1].rstrip(_JSON_WS)
        joint = b"" if inside == b"{" else b","
        return inside + joint + b'"dead_letter":' + encoded + b"}"
    try:
        raw = {"raw": body.decode("utf-8")}
    except UnicodeDecodeError:
        raw = {"raw": base64.b64encode(body).decode("ascii"), "raw_encoding": "base64"}
    return msgspec.json.encode(raw)[:-1] + b',"dead_letter":' + encoded + b"}"


def unwrap_poison(record: bytes) -> bytes:
    """The bytes a poison record was made from; for a spliced one, the object without its block."""
    document = parse_strict(record)
    if isinstance(document, dict) and isinstance(document.get("raw"), str) and document.keys() <= _WRAPPER:
        raw = document["raw"]
        return base64.b64decode(raw) if document.get("raw_encoding") == "base64" else raw.encode("utf-8")
    found = scan_object(record)
    return rebuild(record, found, [_slice(record, m) for m in found.members if m.name != "dead_letter"])


_WRAPPER: Final = frozenset({"raw", "raw_encoding", "dead_letter"})


def attempts_of(body: bytes) -> int:
    """The count in a judged body; a missing or null one is 0."""
    at = _plain_count_at(body)
    if at:
        return int(body[at:-1])
    member = scan_object(body).last("attempts")
    if member is None or member.value(body) == b"null":
        return 0
    return int(member.value(body))


def _rewrite(body: bytes, attempts: int | None, block: bytes | None) -> bytes:
    """`attempts` None keeps the count; `block` None keeps the dead_letter member, b"" removes it."""
    at = _plain_count_at(body)
    if at and not any(text in body for text in _SPECIAL):
        count = body[at:-1] if attempts is None else b"%d" % attempts
        tail = b"}" if not block else b',"dead_letter":' + block + b"}"
        return body[:at] + count + tail
    return _rewrite_members(body, attempts, block)


def _plain_count_at(body: bytes) -> int:
    """Offset of the digits when the body ends in its count; 0 when it is written otherwise."""
    at = body.rfind(_PLAIN_END) + len(_PLAIN_END)
    return at if at >= len(_PLAIN_END) and body.endswith(b"}") and body[at:-1].isdigit() else 0


def _rewrite_members(body: bytes, attempts: int | None, block: bytes | None) -> bytes:
    found = scan_object(body)
    identity, counted, meta = _identity_member(body, found), found.last("attempts"), found.last("meta")
    cut = set(FORBIDDEN_TOP) if block is None else {*FORBIDDEN_TOP, "dead_letter"}
    changed: dict[Member, bytes] = {}
    if identity is not None and identity.name == "urn":
        cut.add("job")
        changed[identity] = b'"job":' + identity.value(body)
    if counted is not None and attempts is not None:
        changed[counted] = body[counted.start : counted.value_start] + b"%d" % attempts
    if meta is not None:
        changed[meta] = _without_forbidden_meta(body, meta)
    out = [
        changed.get(member, _slice(body, member))
        for member in found.members
        if member in changed or member.name not in cut
    ]
    if counted is None and attempts is not None:
        out.append(b'"attempts":%d' % attempts)
    if block:
        out.append(b'"dead_letter":' + block)
    if [_slice(body, m) for m in found.members] == out:
        return body  # nothing to cut or change: not a byte of white space either
    return rebuild(body, found, out)


def _identity_member(body: bytes, found: Object) -> Member | None:
    for name in ("job", "urn"):
        member = found.last(name)
        if member is not None and valid_identity(_text_value(member.value(body))):
            return member
    return None


def _text_value(raw: bytes) -> str | None:
    if raw[:1] != b'"':
        return None
    value = parse_strict(raw)
    return value if isinstance(value, str) else None


def _without_forbidden_meta(body: bytes, member: Member) -> bytes:
    whole = _slice(body, member)
    if body[member.value_start] != 0x7B:  # null
        return whole
    inner = scan_object(body, member.value_start)
    kept = [_slice(body, m) for m in inner.members if m.name not in FORBIDDEN_META]
    if len(kept) == len(inner.members):
        return whole
    return body[member.start : member.value_start] + b"{" + b",".join(kept) + b"}"


def _slice(body: bytes, member: Member) -> bytes:
    return body[member.start : member.end]


def _splicable(body: bytes) -> bool:
    """One strict JSON object, no lone surrogate, no `dead_letter` of its own (contract rule 7.1)."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        return False
    try:
        body.decode("utf-8")
        members = _raw_members(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return "dead_letter" not in members
