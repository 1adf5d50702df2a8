"""The message contract: build, encode, judge, copy. Pure: no I/O, no broker, no thread of its own."""

from shinar.envelope.build import MetaEntries, build, build_from, encode, follow_up, uuid4
from shinar.envelope.copies import (
    attempts_of,
    dead_letter,
    dead_letter_copy,
    poison_record,
    redrive_copy,
    reencode,
    retry_copy,
    unwrap_poison,
    with_attempts,
)
from shinar.envelope.data import check_json, check_strict
from shinar.envelope.model import (
    SCHEMA_VERSION,
    SOURCE_LANG,
    DeadLetter,
    DeadReason,
    Kind,
    Message,
    Meta,
    Reason,
    Verdict,
    Warning,
)
from shinar.envelope.trace import TraceParent, extract_trace
from shinar.envelope.urn import Urn, advise, matches, parse_urn
from shinar.envelope.verdict import classify, judge, parse_strict, read

__all__ = [
    "SCHEMA_VERSION",
    "SOURCE_LANG",
    "DeadLetter",
    "DeadReason",
    "Kind",
    "Message",
    "Meta",
    "MetaEntries",
    "Reason",
    "TraceParent",
    "Urn",
    "Verdict",
    "Warning",
    "advise",
    "attempts_of",
    "build",
    "build_from",
    "check_json",
    "check_strict",
    "classify",
    "dead_letter",
    "dead_letter_copy",
    "encode",
    "extract_trace",
    "follow_up",
    "judge",
    "matches",
    "parse_strict",
    "parse_urn",
    "poison_record",
    "read",
    "redrive_copy",
    "reencode",
    "retry_copy",
    "unwrap_poison",
    "uuid4",
    "with_attempts",
]
