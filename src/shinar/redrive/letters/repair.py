"""Records that are nearly envelopes: what they say of themselves, and a repair. Pure, no I/O.

PHP writes an empty payload as `"data":[]`, which the contract calls poison. The repair rewrites those two
characters and nothing else; such a message is then sent back like any other.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from shinar.envelope import judge, parse_strict
from shinar.envelope.text import scan_object
from shinar.errors import ConfigError
from shinar.redrive.letters.letter import Letter, Nature, whole

PHP_EMPTY_DATA: Final = "php-empty-data"
REPAIRS: Final = (PHP_EMPTY_DATA,)


class Claimed(NamedTuple):
    """What the JSON of a record says, whatever the contract makes of it."""

    id: str | None
    urn: str | None


def claimed(letter: Letter) -> Claimed:
    if letter.message is not None:
        return Claimed(letter.id, letter.urn)
    document = parse_strict(letter.delivery.body)
    if not isinstance(document, dict):
        return Claimed(None, None)
    meta = document.get("meta")
    return Claimed(
        _text(meta.get("id") if isinstance(meta, dict) else None),
        _text(document.get("job")) or _text(document.get("urn")),
    )


def require_known(repair: str) -> None:
    if repair and repair not in REPAIRS:
        raise ConfigError(f"{repair!r} is not one of {', '.join(REPAIRS)}", setting="--repair")


def repaired(letter: Letter, repair: str) -> Letter:
    """The letter with an accepted body, if that is all it lacks; else the letter itself. The delivery of the
    result has the changed body: keep the old one to settle the message, and for its digest."""
    if repair != PHP_EMPTY_DATA or letter.message is not None or letter.nature is not Nature.POISON:
        return letter
    document = parse_strict(letter.delivery.body)
    if not isinstance(document, dict) or document.get("data") != []:
        return letter
    body = letter.delivery.body
    member = scan_object(body).last("data")
    assert member is not None, "the document has it"
    body = body[: member.value_start] + b"{}" + body[member.end :]
    verdict = judge(body)
    message = verdict.message
    if message is None:
        return letter
    return msgspec.structs.replace(
        letter,
        delivery=msgspec.structs.replace(letter.delivery, body=body),
        verdict=verdict,
        nature=Nature.DEAD,
        id=whole(message.meta.id) or None,
        urn=message.urn,
        trace_id=whole(message.trace_id) or None,
        created_ms=message.meta.created_at,
    )


def _text(value: Any) -> str | None:
    return whole(value) or None if isinstance(value, str) else None
