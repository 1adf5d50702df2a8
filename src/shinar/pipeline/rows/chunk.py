"""Rows of one write and what settles them. Must not know files or brokers."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pyarrow as pa


class Chunk(NamedTuple):
    """Rows of one write, and the receipts to settle them with (None where receipts do not travel)."""

    rows: pa.RecordBatch
    #: Pickled, and only looked into when something is to be settled again.
    packed: bytes | None

    @classmethod
    def of(cls, rows: pa.RecordBatch, receipts: list[Any] | None) -> Chunk:
        return cls(rows, None if receipts is None else pickle.dumps(receipts, pickle.HIGHEST_PROTOCOL))

    def receipts(self) -> list[Any]:
        return [] if self.packed is None else list(pickle.loads(self.packed))
