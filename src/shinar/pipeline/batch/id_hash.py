"""Hashes of ids, a whole column at once: Spark's own `xxhash64` of the same text, without Spark.

Rows of equal length are one matrix of bytes, so nothing is done row by row. Knows Arrow and numpy only.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: What Spark's xxhash64 starts from.
_SEED: Final = np.uint64(42)
_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
#: An id of nothing but these is not an identity.
_BLANK: Final = " \t\n\v\f\r"


def id_hashes(ids: pa.Array) -> pa.Array:
    """Null for a message without an id (or a blank one): such a message has no identity to compare."""
    named = pc.fill_null(pc.not_equal(pc.ascii_ltrim(ids, characters=_BLANK), ""), False)
    known = ids.filter(named)
    found = np.zeros(len(ids), np.int64)
    found[_flags(named)] = _xxhash64(known).view(np.int64)
    return pa.array(found, mask=~_flags(named))


def _flags(mask: pa.Array) -> Any:
    return mask.to_numpy(zero_copy_only=False)


def _xxhash64(texts: pa.Array) -> Any:
    found = np.zeros(len(texts), np.uint64)
    if not len(texts):
        return found
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    values = np.frombuffer(texts.buffers()[2], np.uint8)
    lengths = np.diff(offsets)
    with np.errstate(over="ignore"):  # it is arithmetic modulo 2^64
        if lengths.min() == lengths.max():  # nearly always: ids of one producer have one length
            return _of_equal_length(values[offsets[0] : offsets[-1]].reshape(len(texts), -1))
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            positions = offsets[rows].astype(np.int64)[:, None] + np.arange(length)
            found[rows] = _of_equal_length(values[positions])
    return found


def _of_equal_length(texts: Any) -> Any:
    count, length = texts.shape
    if length >= 32:
        lanes = [np.full(count, start) for start in (_SEED + _P1 + _P2, _SEED + _P2, _SEED, _SEED - _P1)]
        for at in range(0, length - 31, 32):
            words = _words(texts[:, at : at + 32], np.uint64).T
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        turned = [_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)]
        mixed = turned[0] + turned[1] + turned[2] + turned[3]
        for lane in lanes:
            mixed = (mixed ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    else:
        mixed = np.full(count, _SEED + _P5)
    mixed += np.uint64(length)
    return _avalanche(_tail(mixed, texts[:, length - length % 32 :]))


def _tail(mixed: Any, rest: Any) -> Any:
    eights = rest.shape[1] // 8 * 8
    for word in _words(rest[:, :eights], np.uint64).T:
        mixed = _rotated(mixed ^ _round(np.zeros_like(mixed), word), 27) * _P1 + _P4
    fours = eights + (rest.shape[1] - eights) // 4 * 4
    for word in _words(rest[:, eights:fours], np.uint32).T:
        mixed = _rotated(mixed ^ (word.astype(np.uint64) * _P1), 23) * _P2 + _P3
    for byte in rest[:, fours:].T:
        mixed = _rotated(mixed ^ (byte.astype(np.uint64) * _P5), 11) * _P1
    return mixed


def _words(texts: Any, kind: Any) -> Any:
    return np.ascontiguousarray(texts).view(kind) if texts.shape[1] else np.zeros((len(texts), 0), kind)


def _round(lane: Any, word: Any) -> Any:
    return _rotated(lane + word * _P2, 31) * _P1


def _rotated(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _avalanche(mixed: Any) -> Any:
    mixed = (mixed ^ (mixed >> np.uint64(33))) * _P2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
    return mixed ^ (mixed >> np.uint64(32))
