"""Which deliveries of a batch were seen before, by `meta.id`, in the batch itself or in `messages`.

Only eight-byte hashes of ids cross the cluster; the ids of the few that meet are then compared in full,
so a collision of hashes never drops a message. A message without an id is never a duplicate. The state is
the `messages` table itself, read no further back than the horizon.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F

from shinar.pipeline.tables import describe, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A batch of up to this many ids is sent to every executor instead of shuffling the history.
BROADCAST_ROWS: Final = 2_000_000


def id_hash() -> Column:
    """Null for a message without an id (or a blank one): such a message has no identity to compare."""
    named = F.length(F.btrim(F.col("id"), F.lit(" \t\n\v\f\r"))) > 0
    return F.when(named, F.xxhash64(F.col("id")))


class Found(NamedTuple):
    #: (file, row, first_batch) of every delivery to take out of the batch.
    rows: DataFrame
    total: int
    #: Names of the staged files that hold them.
    files: frozenset[str]


def find(staged: DataFrame, history: DataFrame | None, *, batch: str, rows: int, work: Path) -> Found | None:
    """The deliveries of a batch that were seen before, or None. `staged` has the accepted rows
    with `file` and `row`, their place in the staged files."""
    candidates, count = _written(_candidates(staged, history, rows), work / "candidates")
    if not count:
        return None
    place = work / "duplicates"
    found, count = _written(_confirmed(staged, history, candidates, batch), place)
    return Found(found, count, _names(place)) if count else None


def _candidates(staged: DataFrame, history: DataFrame | None, rows: int) -> DataFrame:
    hashes = staged.select("id_hash").where("id_hash is not null")
    twice = hashes.groupBy("id_hash").count().where("count > 1").select("id_hash")
    if history is None:
        return twice
    keys = F.broadcast(hashes) if rows <= BROADCAST_ROWS else hashes
    seen = history.select("id_hash").join(keys, "id_hash", "left_semi")
    return twice.union(seen).distinct()


def _confirmed(staged: DataFrame, history: DataFrame | None, candidates: DataFrame, batch: str) -> DataFrame:
    met = staged.join(candidates, "id_hash", "left_semi")
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


def _written(found: DataFrame, place: Path) -> tuple[DataFrame, int]:
    """Materialise: what was found is used several times, and how much it was decides the next step."""
    found.write.parquet(str(place))
    count = sum(file.rows for file in describe(place, place.glob("*.parquet")))
    return found.sparkSession.read.schema(found.schema).parquet(quoted(str(place))), count


def _names(place: Path) -> frozenset[str]:
    names: set[str] = set()
    for path in place.glob("*.parquet"):
        for part in pq.ParquetFile(path).iter_batches(columns=["file"]):
            names.update(pc.unique(part.column("file")).to_pylist())
    return frozenset(names)
