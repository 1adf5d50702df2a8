"""An expression as a small tree of values, and the columns it may name. No parser, no rule, no I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from shinar.redrive.select.types import BIGINT, STRING, TIMESTAMP, SqlType

#: Columns of a dead letter and their types. Times are epoch milliseconds in the row.
COLUMNS: Final[dict[str, SqlType]] = {
    "urn": STRING,
    "exception": STRING,
    "error": STRING,
    "reason": STRING,
    "lang": STRING,
    "queue": STRING,
    "original_queue": STRING,
    "created_at": TIMESTAMP,
    "failed_at": TIMESTAMP,
    "attempts": BIGINT,
    "id": STRING,
    "trace_id": STRING,
    "fingerprint": STRING,
}
#: Name of the payload; `data.order.id` and `data.items[0].sku` are its members.
PAYLOAD: Final = "data"

Path = tuple[str | int, ...]


class Constant(NamedTuple):
    type: SqlType
    value: Any


class LetterColumn(NamedTuple):
    name: str


class PayloadMember(NamedTuple):
    """A member of the payload."""

    path: Path


class Call(NamedTuple):
    """An operator or a function."""

    name: str
    arguments: tuple[Any, ...]
    #: Offset in the text, where it is known.
    at: int | None


Node = Constant | LetterColumn | PayloadMember | Call
