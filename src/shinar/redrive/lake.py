"""The same summary from the tables of a lake, on Spark: every partition counts with the very same
code, and only counters come back. Nothing here asks a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from shinar.brokers import Delivery
from shinar.redrive.choose import Chosen
from shinar.redrive.letters import Letter, read
from shinar.redrive.summary import Summary
from shinar.settlement.traits import Traits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How a row of the tables is read: the gate's property under its usual name.
TRAITS: Final = Traits(name="lake", gate_property="bq-schema-version")
_COLUMNS: Final = ("body", "queue", "received_at", "properties", "position")


def summarise_lake(spark: SparkSession, lake: Any, **choice: Any) -> Summary:
    """`lake` is a store of shinar.pipeline; `choice` are the arguments of `Chosen`."""
    from shinar.pipeline.tables import read as read_table

    rows = read_table(spark, lake, "dead_letters").select(*_COLUMNS)
    parts = rows.mapInArrow(_counter(choice), "part binary").collect()
    summary = Summary()
    for row in parts:
        summary.merge(msgspec.msgpack.decode(bytes(row["part"]), type=Summary))
    return summary


def _counter(choice: dict[str, Any]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen, summary = Chosen(**choice), Summary()
        for batch in batches:
            for letter in _letters(batch):
                if chosen(letter):
                    summary.add(letter)
        part = pa.array([msgspec.msgpack.encode(summary)], pa.binary())
        yield pa.RecordBatch.from_arrays([part], names=["part"])

    return count


def _letters(batch: pa.RecordBatch) -> Iterator[Letter]:
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    for body, queue, received_at, properties, position in zip(*columns, strict=True):
        delivery = Delivery(
            body or b"",
            queue or "",
            properties=dict(properties or ()),
            received_ms=round(received_at.timestamp() * 1000) if received_at else 0,
            position=position or "",
        )
        yield read(delivery, TRAITS)
