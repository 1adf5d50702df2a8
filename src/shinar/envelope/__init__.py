"""The message contract: build, encode, judge, decode, copy. Pure: no I/O, no broker, no thread of its own."""

from shinar.envelope.build import MetaEntries, build, build_from, encode, follow_up, fresh_id
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
from shinar.envelope.decode import decode
from shinar.envelope.model import (
    SCHEMA_VERSION,
    SOURCE_LANG,
    DeadLetter,
    DeadReason,
    EnvelopeWarning,
    Kind,
    Message,
    Meta,
    Reason,
    Verdict,
)
from shinar.envelope.trace import TraceParent, extract_trace
from shinar.envelope.urn import Urn, advise, matches, parse_urn
from shinar.envelope.verdict import classify, judge, parse_strict, read

__all__ = [
    "SCHEMA_VERSION",
    "SOURCE_LANG",
    "DeadLetter",
    "DeadReason",
    "EnvelopeWarning",
    "Kind",
    "Message",
    "Meta",
    "MetaEntries",
    "Reason",
    "TraceParent",
    "Urn",
    "Verdict",
    "advise",
    "attempts_of",
    "build",
    "build_from",
    "check_json",
    "check_strict",
    "classify",
    "dead_letter",
    "dead_letter_copy",
    "decode",
    "encode",
    "extract_trace",
    "follow_up",
    "fresh_id",
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
    "with_attempts",
]
