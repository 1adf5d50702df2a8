"""The dead letters of a batch, each with its fingerprint. Live messages are not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from shinar.envelope.fingerprint import error_template, fingerprint
from shinar.pipeline.lake.store import DEAD_LETTERS, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PRINTED: Final = (
    *("dl_exception", "dl_error", "urn", "dl_lang", "lang", "dl_original_queue", "queue", "dl_reason"),
)


def select(staged: DataFrame, history: DataFrame | None) -> DataFrame:
    """Rows of the `dead_letters` table. The same death delivered twice is one dead letter.

    `staged` has every dead letter received, with its `file_name` and `row_index`; a record without an id is
    always kept.
    """
    death = F.when(F.col("id_hash").isNotNull(), F.xxhash64("id", "dl_failed_at", "dl_reason"))
    dead = staged.withColumn("id_hash", death)
    order = Window.partitionBy("id_hash").orderBy("received_at", "position", "file_name", "row_index")
    once = dead.withColumn("rank", F.row_number().over(order)).where("id_hash is null or rank = 1")
    if history is not None:
        once = once.join(history.select("id_hash"), "id_hash", "left_anti")
    columns = [name for name in DEAD_LETTERS.names if name not in ("fingerprint", "template")]
    return once.select(*columns).mapInArrow(_printed, to_spark(DEAD_LETTERS))


def _printed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        told = [batch.column(name).to_pylist() for name in _PRINTED]
        prints = [
            fingerprint(exception, error, urn, dl_lang or lang, original or queue, reason)
            for exception, error, urn, dl_lang, lang, original, queue, reason in zip(*told, strict=True)
        ]
        templates = [error_template(error) for error in told[1]]
        arrays = [pa.array(prints, pa.string()), pa.array(templates, pa.string()), *batch.columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=_as(DEAD_LETTERS, batch.schema))


def _as(wanted: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Spark names map and list items its own way: keep its types for the columns passed through."""
    return pa.schema([given.field(field.name) if field.name in given.names else field for field in wanted])
