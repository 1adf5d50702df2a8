"""Which rows of a body column need the exact look: found in the column's bytes at once, no row touched.

May name a row too many (it is then judged slowly), never one too few. Knows bytes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Bytes looked at together: a few such arrays fit a core's own cache, and none is worth an mmap of its own.
_CHUNK: Final = 60_000
#: A number may be too large for a double only if its exponent has three digits, or if this many digits stand
#: in a row (the exponent's two digits give at most a factor of 10^99).
_LONG_RUN: Final = 209
#: Distance of the samples that find such a run: it covers at least six of them.
_STRIDE: Final = 32
_SAMPLES: Final = _LONG_RUN // _STRIDE
#: What may stand before a number (after its sign).
_BEFORE_NUMBER: Final = np.isin(np.arange(256), np.frombuffer(b"[:, \t\n\r", np.uint8))
_IN_NUMBER: Final = np.isin(np.arange(256), np.frombuffer(b"0123456789.", np.uint8))
_PLUS, _MINUS = 0x2B, 0x2D


def suspicious_rows(bodies: pa.Array, max_depth: int) -> set[int]:
    """Rows that are not UTF-8, may hold a number that is not a finite double, or may be nested too deep.
    A null is none of these."""
    if len(bodies) == 0 or bodies.buffers()[2] is None:
        return set()
    offsets = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    text = np.frombuffer(bodies.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    ends = offsets[1:] - offsets[0]
    positions = np.concatenate([_huge_exponents(text), _long_digit_runs(text)])
    rows = set(np.searchsorted(ends, positions, side="right").tolist())
    rows.update(_not_utf8(bodies))
    # Depth d takes at least 2d bytes, so only long bodies are counted.
    for row, body in _chosen(bodies, np.diff(offsets) > 2 * max_depth):
        if body.count(b"[") + body.count(b"{") > max_depth:
            rows.add(row)
    return rows


def _huge_exponents(text: Any) -> Any:
    """Positions of an e in `<number>e123` or `<number>e+123`, inside strings or not."""
    found = [_exponents_in(text[start : start + _CHUNK + 8]) + start for start in range(0, len(text), _CHUNK)]
    positions = np.concatenate(found) if found else np.zeros(0, np.int64)
    return positions[_after_number(text, positions)]


def _exponents_in(chunk: Any) -> Any:
    if len(chunk) < 5:
        return np.zeros(0, np.int64)
    digit = (chunk - np.uint8(48)) < 10
    letter = (chunk | np.uint8(0x20)) == 0x65
    # digit, e, any, digit: then the byte between decides, +dd may still be e+12, which is let through
    hits = np.flatnonzero(digit[:-4] & letter[1:-3] & digit[3:-1])
    between, last = chunk[hits + 2], digit[hits + 4]
    return hits[(digit[hits + 2] | (between == _PLUS)) & last] + 1


def _after_number(text: Any, positions: Any) -> Any:
    """Does a number end before each position? Tells 1.5e400 from the e of a hexadecimal id."""
    at = positions - 1
    walking = np.arange(len(positions))
    while walking.size:
        at[walking] -= 1
        walking = walking[(at[walking] >= 0) & _IN_NUMBER[text[at[walking]]]]
    signed = (at > 0) & (text[at] == _MINUS)
    at[signed] -= 1
    return (at >= 0) & _BEFORE_NUMBER[text[at]]


def _long_digit_runs(text: Any) -> Any:
    samples = (text[::_STRIDE] - np.uint8(48)) < 10
    count = len(samples) - _SAMPLES + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    together = samples[:count].copy()
    for shift in range(1, _SAMPLES):
        together &= samples[shift : shift + count]
    starts = np.flatnonzero(together)
    # A run lies inside one body, so all its samples do: the middle one names the row.
    return (starts + _SAMPLES // 2) * _STRIDE


def _not_utf8(bodies: pa.Array) -> list[int]:
    try:
        bodies.cast(pa.string())  # one vectorised check of the whole column
    except pa.ArrowInvalid:
        ascii_only = np.asarray(pc.string_is_ascii(bodies.view(pa.string())).fill_null(True))
        return [row for row, body in _chosen(bodies, ~ascii_only) if not _is_utf8(body)]
    return []


def _chosen(bodies: pa.Array, mask: Any) -> Iterator[tuple[int, bytes]]:
    rows = np.flatnonzero(mask)
    found = zip(rows.tolist(), bodies.take(pa.array(rows)).to_pylist(), strict=True)
    return ((row, body) for row, body in found if body is not None)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
