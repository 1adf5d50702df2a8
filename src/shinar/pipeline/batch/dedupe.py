"""Which deliveries of a batch were seen before, by `meta.id`, in the batch itself or in `messages`.

First only eight-byte hashes are compared; the ids of the few that meet are then compared in full, so a
collision of hashes never drops a message. A message without an id is never a duplicate. The state is the
`messages` table itself, read no further back than the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F

from shinar.pipeline.batch.stage import KEYS
from shinar.pipeline.lake import store as tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A batch of up to this many ids is sent to every executor instead of shuffling the history.
BROADCAST_ROWS: Final = 2_000_000
#: Hashes of the batch that the driver has in memory at a time: 32 megabytes.
HASHES_IN_MEMORY: Final = 4_000_000


def find(
    spark: SparkSession, keys: Sequence[Path], history: DataFrame | None, *, batch: str, work: Path
) -> str:
    """The folder that names the deliveries seen before (`row`, `first_batch`, by `file`), or "" if none were.

    `keys` are the files of `stage.KEYS`; `work` is a folder for what comes in between.
    """
    candidates = _twice(keys)
    if history is not None:
        candidates = np.union1d(candidates, _seen(_read(spark, keys), history, _count(keys), work / "seen"))
    met = _met(keys, candidates, work / "met") if len(candidates) else []
    if not met:
        return ""
    found = work / "duplicates"
    _confirmed(_read(spark, met), history, _count(met), batch).write.partitionBy("file").parquet(str(found))
    return str(found)


def _twice(keys: Sequence[Path]) -> Any:
    """Hashes that come more than once, found in one bucket of all hashes after the other."""
    buckets = -(-_count(keys) // HASHES_IN_MEMORY)
    found = [np.zeros(0, np.int64)]
    for bucket in range(buckets):
        mine = np.concatenate([hashes[hashes % buckets == bucket] for hashes in map(_hashes, keys)])
        mine.sort()
        found.append(np.unique(mine[1:][mine[1:] == mine[:-1]]))
    return np.concatenate(found)


def _seen(keys: DataFrame, history: DataFrame, rows: int, folder: Path) -> Any:
    """Hashes of the batch that the history has."""
    hashes = _small(keys.select("id_hash"), rows)
    history.select("id_hash").join(hashes, "id_hash", "left_semi").write.parquet(str(folder))
    return np.concatenate([np.zeros(0, np.int64), *map(_hashes, folder.glob("*.parquet"))])


def _met(keys: Sequence[Path], candidates: Any, folder: Path) -> list[Path]:
    """The keys that have one of these hashes, in files of the same names."""
    folder.mkdir()
    found = []
    for path in keys:
        mask = np.isin(_hashes(path), candidates)
        if mask.any():
            found.append(folder / path.name)
            pq.write_table(pq.read_table(path, partitioning=None).filter(pa.array(mask)), found[-1])
    return found


def _confirmed(met: DataFrame, history: DataFrame | None, rows: int, batch: str) -> DataFrame:
    # The delivery that stays: a live message before its dead-letter copy, a first delivery before a possible
    # redelivery, then the earlier one.
    later = (F.col(name).isNotNull() for name in ("dl_reason", "redelivery"))
    order = [*later, *map(F.col, ("received_at", "position", "file", "row"))]
    ranked = met.withColumn("rank", F.row_number().over(Window.partitionBy("id").orderBy(*order)))
    if history is None:
        return ranked.where("rank > 1").select("file", "row", F.lit(batch).alias("first_batch"))
    known = (
        history.select("id_hash", "id", "received_at", "batch")
        .join(_small(met.select("id_hash"), rows), "id_hash", "left_semi")
        .groupBy("id")
        # An archive's rows may have no time of delivery: then any of their batches is as good.
        .agg(F.coalesce(F.min_by("batch", "received_at"), F.min("batch")).alias("known_batch"))
    )
    return (
        ranked.join(known, "id", "left")
        .where("rank > 1 or known_batch is not null")
        .select("file", "row", F.coalesce("known_batch", F.lit(batch)).alias("first_batch"))
    )


def _read(spark: SparkSession, keys: Sequence[Path]) -> DataFrame:
    rows = tables.read_files(spark, [str(path) for path in keys], tables.to_spark(KEYS))
    return rows.select("*", F.substring_index("_metadata.file_name", ".", 1).alias("file"))


def _small(hashes: DataFrame, rows: int) -> DataFrame:
    return F.broadcast(hashes) if rows <= BROADCAST_ROWS else hashes


def _hashes(path: Path) -> Any:
    return pq.read_table(path, columns=["id_hash"], partitioning=None)["id_hash"].to_numpy()


def _count(keys: Sequence[Path]) -> int:
    return sum(pq.read_metadata(path).num_rows for path in keys)
