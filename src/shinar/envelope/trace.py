"""Which trace a delivery belongs to (contract rules 18.1 and 18.2): the traceparent header, else trace_id."""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, NamedTuple

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_ZERO: Final = frozenset("0")


class TraceParent(NamedTuple):
    source: Literal["traceparent", "trace_id"]
    #: 32 hex characters from a header; otherwise the envelope's trace_id without hyphens.
    trace_id_hex: str
    parent_span_id: str | None = None
    flags: str | None = None


def extract_trace(traceparent: str | None, trace_id: str) -> TraceParent:
    match = _TRACEPARENT.fullmatch(traceparent or "")
    if match and set(match[1]) != _ZERO and set(match[2]) != _ZERO:
        return TraceParent("traceparent", match[1], match[2], match[3])
    return TraceParent("trace_id", trace_id.replace("-", ""))


def otel_trace_id(trace_id: str) -> int:
    """A 128-bit trace id for any trace_id: a UUID's own bits, else a digest; never zero."""
    plain = trace_id.replace("-", "").lower()
    if _HEX32.fullmatch(plain) and set(plain) != _ZERO:
        return int(plain, 16)
    return int.from_bytes(hashlib.sha256(trace_id.encode("utf-8", "surrogatepass")).digest()[:16], "big") or 1


def synthetic_span_id(trace_id: str) -> int:
    """Parent span for a message that came without a traceparent: the same in every SDK."""
    text = f"babelqueue-span:{trace_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") or 1
