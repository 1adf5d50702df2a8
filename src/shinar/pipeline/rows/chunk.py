"""Rows of one write and the receipts that settle them, as plain bytes: reading a chunk can run no code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from shinar.errors import StoreError


class Chunk(NamedTuple):
    """Rows of one write, and what settles them."""

    rows: pa.RecordBatch
    #: MessagePack, only looked into when something is to be settled again. None where receipts do not travel.
    receipts: bytes | None
    #: An earlier version wrote receipts as a pickle. They are never read.
    pickled: bool = False


def pack_receipts(receipts: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode(receipts)


def unpack_receipts(chunk: Chunk, kind: Any) -> list[Any]:
    """The receipts as values of the type that their broker declares, and of no other. Empty where the chunk
    has none that can be read."""
    if chunk.receipts is None:
        return []
    try:
        found: list[Any] = msgspec.msgpack.decode(chunk.receipts, type=list[kind])
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise StoreError(f"a segment holds receipts that its broker did not write: {exc}") from None
    if len(found) != chunk.rows.num_rows:
        raise StoreError(f"a segment holds {chunk.rows.num_rows} rows but {len(found)} receipts")
    return found
