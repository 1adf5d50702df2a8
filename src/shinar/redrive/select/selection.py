"""Which dead letters are selected: by an expression, a fingerprint, a time, a list of ids. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from shinar.errors import ConfigError, ExpressionError
from shinar.redrive.letters.letter import Letter, whole
from shinar.redrive.select.expression import Expression
from shinar.redrive.select.payload import decode
from shinar.redrive.select.types import BOOLEAN, VOID

#: What happens to a dead letter for which `--where` raises, as Spark's ANSI mode does.
FAIL, SKIP = "fail", "skip"
WHERE_ERRORS: Final = (FAIL, SKIP)


class Chosen:
    """Asked once per letter; all the conditions given must hold. `--limit` is the caller's."""

    def __init__(
        self,
        *,
        where: str = "",
        where_errors: str = FAIL,
        fingerprint: str = "",
        since_ms: int | None = None,
        ids: tuple[str, ...] = (),
    ) -> None:
        self._where = Expression(where) if where else None
        if self._where is not None and self._where.type not in (BOOLEAN, VOID):
            raise ConfigError(
                f"{where!r} is a {self._where.type}, not a condition; compare it with something, such as "
                "exception = 'ValueError'",
                setting="--where",
            )
        if where_errors not in WHERE_ERRORS:
            known = ", ".join(WHERE_ERRORS)
            raise ConfigError(f"{where_errors!r} is not one of {known}", setting="--where-errors")
        self._skips = where_errors == SKIP
        self._fingerprint = fingerprint.lower()
        self._since_ms = since_ms
        self._ids = frozenset(ids)
        #: Dead letters for which the expression raised, and which were therefore not selected.
        self.skipped = 0

    def __call__(self, letter: Letter) -> bool:
        if self._since_ms is not None and (letter.at_ms or 0) < self._since_ms:
            return False
        if self._ids and letter.id not in self._ids:
            return False
        if self._fingerprint and not letter.fingerprint.startswith(self._fingerprint):
            return False
        # The expression last: it costs the most.
        return self._where is None or self._holds(self._where, letter)

    def _holds(self, where: Expression, letter: Letter) -> bool:
        try:
            return where.matches(row_of(letter, where.columns))
        except ExpressionError as exc:
            if self._skips:
                self.skipped += 1
                return False
            raise exc.for_letter(
                letter.id or letter.delivery.position,
                "change the expression (try_cast gives NULL instead), or leave out such dead letters with "
                "--where-errors skip",
            ) from None


def row_of(letter: Letter, columns: Iterable[str]) -> dict[str, Any]:
    """The letter as the row an expression sees: the columns it names, and no more."""
    return {name: _COLUMNS[name](letter) for name in columns}


def _text(read: Callable[[Letter], str | None]) -> Callable[[Letter], str | None]:
    def column(letter: Letter) -> str | None:
        value = read(letter)
        return value if value is None else whole(value)

    return column


_COLUMNS: Final[dict[str, Callable[[Letter], Any]]] = {
    "urn": _text(lambda letter: letter.urn),
    "exception": _text(lambda letter: letter.exception),
    "error": _text(lambda letter: letter.error),
    "reason": _text(lambda letter: letter.reason),
    "lang": _text(lambda letter: letter.lang),
    "queue": _text(lambda letter: letter.delivery.queue),
    "original_queue": _text(lambda letter: letter.said_queue),
    "created_at": lambda letter: letter.created_ms or None,
    "failed_at": lambda letter: letter.failed_ms,
    "attempts": lambda letter: letter.attempts,
    "id": _text(lambda letter: letter.id),
    "trace_id": _text(lambda letter: letter.trace_id),
    "fingerprint": lambda letter: letter.fingerprint,
    "data": lambda letter: None if letter.message is None else decode(letter.delivery.body),
}
