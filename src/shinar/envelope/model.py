"""The envelope as values: what a body is, once judged. Pure: brokers, clocks and I/O are unknown here.

`Message` doubles as msgspec's decoding target for the canonical case, so that a good body becomes
a message in one C call. The contract's names are fixed by `rename`; `extra` has the unknown members
and is filled by the exact path only, hence its JSON name is one no fast-path body may carry.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

SCHEMA_VERSION: Final = 1
SOURCE_LANG: Final = "python"
#: Every trim and every "blank" test of the contract uses exactly these six characters.
ASCII_WS: Final = " \t\n\v\f\r"
#: Members that must not leave this process, by pointer. `/urn` is legal inbound only.
FORBIDDEN_TOP: Final = frozenset({"timestamp", "urn"})
FORBIDDEN_META: Final = frozenset({"max_retries", "attempts", "source", "ts"})
CORE_META: Final = frozenset({"id", "queue", "lang", "schema_version", "created_at"})
TOP_LEVEL: Final = frozenset({"job", "trace_id", "data", "meta", "attempts", "dead_letter"})

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]

#: Deeper nesting is poison. Below CPython's recursion limit, so that the answer does not depend
#: on how deep the caller's own stack is.
MAX_DEPTH: Final = 900

# A JSON name may be any string, so no name is impossible; judge() sends the one body in the world
# that uses this one down the exact path.
_UNREACHABLE: Final = "__shinar_extra__"


class Kind(StrEnum):
    ACCEPTED = "accepted"
    UNSUPPORTED_VERSION = "unsupported_version"
    NO_IDENTITY = "no_identity"
    POISON = "poison"


class Reason(StrEnum):
    """Why a body is not simply accepted; stable, they end up in tables."""

    NONE = ""
    #: Accepted, but not every member the envelope page asks for is there.
    INCOMPLETE = "incomplete"
    UNSUPPORTED_VERSION = "unsupported_version"
    NO_IDENTITY = "no_identity"
    INVALID_UTF8 = "invalid_utf8"
    INVALID_JSON = "invalid_json"
    NOT_AN_OBJECT = "not_an_object"
    WRONG_TYPE = "wrong_type"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    TOO_DEEP = "too_deep"


class DeadReason(StrEnum):
    FAILED = "failed"
    UNKNOWN_URN = "unknown_urn"
    POISON = "poison"


class DeadLetter(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The block a dead letter carries; the member order is the contract's."""

    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    failed_at: Int64 | None = None
    original_queue: str | None = None
    attempts: Int64 | None = None
    lang: str | None = None


class Meta(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"extra": _UNREACHABLE},
):
    id: str
    queue: str
    lang: str
    schema_version: Int64
    created_at: Int64
    #: Vendor entries and unknown members, by name; None when there are none.
    extra: dict[str, Any] | None = None


class Message(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"urn": "job", "extra": _UNREACHABLE},
):
    """A message as a handler sees it. Missing or null members are presented as empty ones."""

    urn: str
    trace_id: str
    data: dict[str, Any]
    meta: Meta
    attempts: Int64
    dead_letter: DeadLetter | None = None
    extra: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.meta.id


class EnvelopeWarning(msgspec.Struct, frozen=True):
    pointer: str
    text: str

    def __str__(self) -> str:
        return f"{self.pointer} {self.text}"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What a body is. `message` is there unless the body is poison or has no identity."""

    kind: Kind
    body: bytes
    message: Message | None = None
    reason: Reason = Reason.NONE
    #: RFC 6901 pointer of what `reason` is about; "" for the whole body.
    pointer: str = ""
    warnings: tuple[EnvelopeWarning, ...] = ()

    @property
    def accepts(self) -> bool:
        """The contract's strict consumer gate: complete, and of the supported version."""
        return self.kind is Kind.ACCEPTED and self.reason is Reason.NONE


def blank(text: str) -> bool:
    return not text.strip(ASCII_WS)


def valid_identity(value: object) -> bool:
    return isinstance(value, str) and not blank(value)
