"""`decode`: a body as a message, or an error. For programs that read bodies themselves and have no use for
a verdict. What a body is, `judge` alone says."""

from __future__ import annotations

from typing import Final

from shinar.envelope.model import MAX_DEPTH, SCHEMA_VERSION, Kind, Message, Reason
from shinar.envelope.verdict import judge
from shinar.errors import ContractError

#: What each reason means to somebody who wanted a message.
SENTENCES: Final[dict[Reason, str]] = {
    Reason.UNSUPPORTED_VERSION: f"is another version of the contract than {SCHEMA_VERSION}; update Shinar",
    Reason.NO_IDENTITY: "the message has no URN: neither job nor urn is a string with text",
    Reason.INVALID_UTF8: "the body is not UTF-8",
    Reason.INVALID_JSON: "the body is not one JSON value",
    Reason.NOT_AN_OBJECT: "the body is JSON, but not an object",
    Reason.WRONG_TYPE: "has the wrong type",
    Reason.NUMBER_OUT_OF_RANGE: "the body has a number that no 64-bit float can represent",
    Reason.TOO_DEEP: f"the body is nested deeper than {MAX_DEPTH} levels",
}


def decode(body: bytes) -> Message:
    """The message of an accepted body; ContractError, with the pointer of the member at fault, for any other.

    A body that lacks members is accepted with empty values in their place, as workers do; ask
    `judge(body).accepts` where that matters.
    """
    verdict = judge(body)
    if verdict.kind is not Kind.ACCEPTED or verdict.message is None:
        raise ContractError(SENTENCES[verdict.reason], pointer=verdict.pointer or None)
    return verdict.message
