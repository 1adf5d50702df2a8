"""Which deliveries of a batch were seen before, by `meta.id`, in the batch itself or in `messages`.

Only eight-byte hashes of ids cross the cluster; the ids of the few that meet are then compared in full,
so a collision of hashes never drops a message. A message without an id is never a duplicate. The state is
the `messages` table itself, read no further back than the horizon.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from shinar.pipeline.tables import describe, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A batch of up to this many ids is sent to every executor instead of shuffling the history.
BROADCAST_ROWS: Final = 2_000_000


def find(keys: DataFrame, history: DataFrame | None, *, batch: str, rows: int, work: Path) -> str:
    """The folder that names the deliveries seen before (`row`, `first_batch`, by `file`), or "" if none were.

    `keys` are the accepted rows that have an id, with `file` and `row`, their place among the spooled rows.
    """
    candidates = _candidates(keys, history, rows)
    place = work / "candidates"
    candidates.write.parquet(str(place))
    if not any(file.rows for file in describe(place, place.glob("*.parquet"))):
        return ""
    met = keys.sparkSession.read.schema(candidates.schema).parquet(quoted(str(place)))
    found = work / "duplicates"
    _confirmed(keys, history, met, batch).write.partitionBy("file").parquet(str(found))
    return str(found)


def _candidates(keys: DataFrame, history: DataFrame | None, rows: int) -> DataFrame:
    hashes = keys.select("id_hash")
    twice = hashes.groupBy("id_hash").count().where("count > 1").select("id_hash")
    if history is None:
        return twice
    keys = F.broadcast(hashes) if rows <= BROADCAST_ROWS else hashes
    seen = history.select("id_hash").join(keys, "id_hash", "left_semi")
    return twice.union(seen).distinct()


def _confirmed(keys: DataFrame, history: DataFrame | None, candidates: DataFrame, batch: str) -> DataFrame:
    met = keys.join(candidates, "id_hash", "left_semi")
    # The delivery that stays: a live message before its dead-letter copy, then the earlier one.
    order = [F.col("dl_reason").isNotNull(), *map(F.col, ("received_at", "position", "file", "row"))]
    ranked = met.withColumn("rank", F.row_number().over(Window.partitionBy("id").orderBy(*order)))
    if history is None:
        return ranked.where("rank > 1").select("file", "row", F.lit(batch).alias("first_batch"))
    known = (
        history.select("id_hash", "id", "received_at", "batch")
        .join(candidates, "id_hash", "left_semi")
        .groupBy("id")
        .agg(F.min_by("batch", "received_at").alias("known_batch"))
    )
    return (
        ranked.join(known, "id", "left")
        .where("rank > 1 or known_batch is not null")
        .select("file", "row", F.coalesce("known_batch", F.lit(batch)).alias("first_batch"))
    )
