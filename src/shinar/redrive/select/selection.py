"""Which dead letters are meant: an expression, a fingerprint, a time, a list of ids. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from shinar.errors import ConfigError
from shinar.redrive.letters.letter import Letter, whole
from shinar.redrive.select.expression import Expression

#: Kinds of expressions that choose; a member of the payload ("any") may hold true or false.
CONDITIONS: Final = ("bool", "any", "null")


class Chosen:
    """Asked once per letter; all the conditions given must hold. `--limit` is the caller's."""

    def __init__(
        self,
        *,
        where: str = "",
        fingerprint: str = "",
        since_ms: int | None = None,
        ids: tuple[str, ...] = (),
    ) -> None:
        self._where = Expression(where) if where else None
        if self._where is not None and self._where.kind not in CONDITIONS:
            raise ConfigError(
                f"{where!r} is a {self._where.kind}, no condition; compare it: exception = 'ValueError'",
                setting="--where",
            )
        self._fingerprint = fingerprint.lower()
        self._since_ms = since_ms
        self._ids = frozenset(ids)

    def __call__(self, letter: Letter) -> bool:
        if self._since_ms is not None and (letter.at_ms or 0) < self._since_ms:
            return False
        if self._ids and letter.id not in self._ids:
            return False
        if self._fingerprint and not letter.fingerprint.startswith(self._fingerprint):
            return False
        return self._where is None or self._where.matches(
            row_of(letter, self._where.uses_payload)
        )  # the expression last: it costs the most


def row_of(letter: Letter, payload: bool = True) -> dict[str, Any]:
    """The letter as the row an expression sees."""
    data = None
    if payload and letter.message is not None:
        try:
            data = msgspec.json.encode(letter.message.data).decode()
        except UnicodeEncodeError:
            data = whole(json.dumps(letter.message.data, ensure_ascii=False))
    row: dict[str, Any] = {
        "urn": letter.urn,
        "exception": letter.exception,
        "error": letter.error,
        "reason": letter.reason,
        "lang": letter.lang,
        "queue": letter.delivery.queue,
        "original_queue": letter.said_queue,
        "created_at": letter.created_ms or None,
        "failed_at": letter.failed_ms,
        "attempts": letter.attempts,
        "id": letter.id,
        "trace_id": letter.trace_id,
        "fingerprint": letter.fingerprint,
        "data": data,
    }
    return {name: whole(value) if isinstance(value, str) else value for name, value in row.items()}
