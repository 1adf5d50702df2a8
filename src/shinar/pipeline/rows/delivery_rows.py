"""Deliveries as rows of the schema, and back to what settles them. Must not know Spark or a broker module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shinar.brokers.contract import NOTHING, Delivery
from shinar.pipeline.rows.chunk import Chunk, pack_receipts, unpack_receipts
from shinar.pipeline.rows.validate import Judged, assemble, judge_column, one_or_many, repeated
from shinar.settlement import Traits, reconcile

_MAP: Final = pa.map_(pa.string(), pa.string())


def rows_of(
    deliveries: Sequence[Delivery],
    traits: Traits,
    include_headers: bool = True,
    marks: Sequence[str | None] = (),
) -> pa.RecordBatch:
    """`marks` are the values of the column `redelivery`, where some are known."""
    body = pa.array([d.body for d in deliveries], pa.binary())
    judged = judge_column(body)
    received_us = [d.received_ms * 1000 for d in deliveries]
    columns = {
        "body": body,
        "attempts": _attempts(judged, deliveries, traits),
        "queue": one_or_many([d.queue for d in deliveries], pa.string()),
        "broker": repeated(traits.name, len(body)),
        "position": pa.array([d.position or None for d in deliveries], pa.string()),
        "received_at": pa.array(received_us, pa.int64()).view(pa.timestamp("us", tz="UTC")),
        "key": pa.array([d.key for d in deliveries], pa.binary()),
        "native_count": pa.array([d.native_count for d in deliveries], pa.int64()),
    }
    if any(marks):
        columns["redelivery"] = pa.array(marks, pa.string())
    if include_headers:
        columns["headers"] = _maps([d.headers for d in deliveries])
        columns["properties"] = _maps([d.properties for d in deliveries])
    return assemble(judged, columns, len(body))


def chunk_of(
    deliveries: Sequence[Delivery],
    traits: Traits,
    include_headers: bool = True,
    marks: Sequence[str | None] = (),
) -> Chunk:
    receipts = pack_receipts([d.receipt for d in deliveries]) if traits.portable_receipts else None
    return Chunk(rows_of(deliveries, traits, include_headers, marks), receipts)


def deliveries_of(chunk: Chunk, receipt_type: Any) -> list[Delivery]:
    """What a broker needs to settle the rows of a chunk from another process; empty without receipts."""
    receipts = unpack_receipts(chunk, receipt_type)
    if not receipts:
        return []
    received = chunk.rows.column("received_at").cast(pa.int64()).to_pylist()
    rows = zip(named_messages(chunk.rows), received, receipts, strict=True)
    return [
        Delivery(
            body=body, queue=queue, position=position, receipt=receipt, received_ms=(received_us or 0) // 1000
        )
        for (queue, position, body), received_us, receipt in rows
    ]


def named_messages(rows: pa.RecordBatch) -> Iterator[tuple[str, str, bytes]]:
    """What names each message: queue, position ("" where the broker gives none) and bytes."""
    columns = (rows.column(name).to_pylist() for name in ("queue", "position", "body"))
    for queue, position, body in zip(*columns, strict=True):
        yield queue, position or "", body


def _attempts(judged: Judged, deliveries: Sequence[Delivery], traits: Traits) -> pa.Array:
    # Nearly all rows share a handful of counts: ask the rule once for each.
    stated = traits.attempts_property
    body = judged.columns["attempts"]
    told = {(delivery.native_count, delivery.properties.get(stated)) for delivery in deliveries}
    counts = pc.unique(body).to_pylist()
    if len(told) == len(counts) == 1:
        native, text = told.pop()
        one = reconcile(traits, counts[0] or 0, native, {stated: text})
        return pa.repeat(pa.scalar(one, pa.int64()), len(deliveries))
    cases = [
        (count, delivery.native_count, delivery.properties.get(stated))
        for count, delivery in zip(body.to_pylist(), deliveries, strict=True)
    ]
    known = {case: reconcile(traits, case[0] or 0, case[1], {stated: case[2]}) for case in set(cases)}
    return pa.array([known[case] for case in cases], pa.int64())


def _maps(values: Sequence[Mapping[str, Any]]) -> pa.Array:
    if all(value is NOTHING or not value for value in values):
        return pa.nulls(len(values), _MAP)
    pairs = [[(name, str(text)) for name, text in value.items()] if value else None for value in values]
    return pa.array(pairs, _MAP)
