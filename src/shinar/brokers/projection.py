"""The native properties that travel beside a body (contract rules, chapter 11). Each broker's room has its
own table; this module knows how to read one, and no broker.

The body is always the envelope unchanged; this is a redundant view of it for tools that read
properties. Absent, empty or oddly typed values are left out, so that a poison record can always
be written. User headers ride along; a contract name wins a collision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from shinar.brokers.contract import Facts, Outgoing
from shinar.envelope.model import valid_identity
from shinar.errors import ContractError, Unsupported

APP_ID: Final = "babelqueue"
CONTENT_TYPE: Final = "application/json"

Slot = Literal["property", "annotation", "header"]
#: native name -> (where it goes, which fact, how it is written there)
Table = Mapping[str, tuple[Slot, str, Callable[[Any], Any]]]

#: Headers that most bindings write the same way; a room takes them into its own table.
BQ_HEADERS: Final[Table] = {
    "bq-job": ("header", "urn", str),
    "bq-trace-id": ("header", "trace_id", str),
    "bq-message-id": ("header", "id", str),
    "bq-schema-version": ("header", "schema_version", str),
    "bq-source-lang": ("header", "lang", str),
}

#: Header names of the frozen contract. A user header may not take one of them on any broker, because a copy
#: of the message may reach the broker where it means something.
RESERVED: Final = frozenset(
    {
        *BQ_HEADERS,
        "bq-created-at", "bq-attempts",
        "bq_schema_version", "bq_source_lang", "bq_attempts", "bq_app_id",
        "x-schema-version", "x-source-lang", "x-attempts",
    }
)  # fmt: skip

_CONSTANTS: Final = {"app_id": APP_ID, "content_type": CONTENT_TYPE}
_INT64: Final = range(-(2**63), 2**63)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: A hundred years, in seconds: longer is a mistake, and past what clients and servers can write down.
MAX_DELAY_S: Final = 100 * 365.25 * 86_400


class _Seen(msgspec.Struct):
    """The members a projection reads; `data` is skipped over, not built."""

    job: object = None
    urn: object = None
    trace_id: object = None
    meta: object = None
    attempts: object = None


_DECODE: Final = msgspec.json.Decoder(_Seen).decode


class Projection(msgspec.Struct, frozen=True):
    #: The broker's own message properties (as AMQP's basic properties).
    properties: Mapping[str, Any]
    annotations: Mapping[str, Any]
    #: Contract headers first, then the user's.
    headers: Mapping[str, Any]


def project(table: Table, message: Outgoing) -> Projection:
    facts = message.facts or facts_of(message.body)
    slots: dict[Slot, dict[str, Any]] = {"property": {}, "annotation": {}, "header": {}}
    for name, (slot, fact, write) in table.items():
        value = _CONSTANTS[fact] if fact in _CONSTANTS else getattr(facts, fact)
        if value is not None and value != "":
            slots[slot][name] = write(value)
    headers = slots["header"]
    for name, text in message.headers.items():
        if name and text and name not in RESERVED:
            check_header(name, text)
            headers[name] = text
    return Projection(slots["property"], slots["annotation"], headers)


def check_header(name: Any, text: Any) -> None:
    """Before anything is written: what is not text would be stored by one broker, changed by another and
    crash a third."""
    for part in (name, text):
        if not isinstance(part, str):
            raise ContractError(
                f"header {name!r}: names and values must be text, not {type(part).__name__}; write str(...)"
            )
        if not part.isascii() and _SURROGATE.search(part):
            raise ContractError(f"header {name!a} has a lone surrogate; send text that UTF-8 can write")


def user_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The out-of-band part of what a broker delivered: everything but the contract's own names."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        if name in RESERVED or value is None:
            continue
        found[name] = plain_text(value)
    return found


def plain_text(value: Any) -> str:
    """A native value as a header's text. A client may bring types of its own (proton's int32), which
    are numbers all the same but print as something else."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    return str(float(value) if isinstance(value, float) else value)


def checked_delay_s(broker: str, delay_s: float) -> float:
    """For the brokers whose own limit is the range of a clock: refuse what no clock shows, before
    anything is sent."""
    if not delay_s <= MAX_DELAY_S:  # so written, it is true of NaN
        raise Unsupported(
            broker,
            f"delay a message by {delay_s:g} s",
            f"the longest delay is {MAX_DELAY_S:.0f} s, a hundred years; keep the message elsewhere",
        )
    return delay_s


def contract_properties(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The other part: the contract's own names, in their native types (bytes become text)."""
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in headers.items()
        if name in RESERVED
    }


def facts_of(body: bytes) -> Facts:
    """Read what a projection needs out of any bytes. Never raises: what is odd is left out."""
    try:
        found = _DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Facts()
    meta = found.meta if isinstance(found.meta, dict) else {}
    return Facts(
        urn=next((_text(name) for name in (found.job, found.urn) if valid_identity(name)), None),
        trace_id=_text(found.trace_id),
        id=_text(meta.get("id")),
        lang=_text(meta.get("lang")),
        schema_version=_int64(meta.get("schema_version")),
        created_at=_int64(meta.get("created_at")),
        attempts=_int64(found.attempts),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _int64(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value in _INT64 else None
