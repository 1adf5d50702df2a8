"""Messages that should have led to another one and did not, within the time that step usually takes."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.analysis.traces import edges, local, millis

#: A step is expected when at least this share of parents were followed by it ...
EXPECTED_SHARE: Final = 0.8
#: ... over at least this many parents: fewer prove nothing.
LEAST_PARENTS: Final = 20
#: Waiting is normal up to this many times the step's 99th percentile ...
PATIENCE: Final = 2.0
#: ... and never less than this.
LEAST_WAIT_MS: Final = 60_000


def stuck(
    hops: DataFrame,
    dead_letters: DataFrame,
    now: datetime | None = None,
    *,
    share: float = EXPECTED_SHARE,
    least_parents: int = LEAST_PARENTS,
) -> DataFrame:
    """One row per message and missing step. `now` is the latest receipt in the tables unless given: a lake
    that is behind must not call everything stuck. A dead letter is not stuck; it is dead."""
    expected = (
        local(edges(hops))
        .where((F.col("share") >= share) & (F.col("parents") >= least_parents))
        .select(
            F.col("parent_urn").alias("urn"),
            F.col("urn").alias("expected_urn"),
            F.col("p99_ms").alias("usual_ms"),
            F.col("share"),
        )
    )
    waiting = hops.select("trace_id", "id", "urn", "queue", "lang", "created_at", "received_at", "attempts")
    followed = hops.where("parent_id is not null").select(
        "trace_id", F.col("parent_id").alias("id"), F.col("urn").alias("expected_urn")
    )
    allowed = F.greatest(F.col("usual_ms") * PATIENCE, F.lit(LEAST_WAIT_MS))
    return (
        waiting.join(F.broadcast(expected), "urn")
        .join(followed, ["trace_id", "id", "expected_urn"], "left_anti")
        .join(dead_letters.where("id is not null").select("id"), "id", "left_anti")
        .crossJoin(F.broadcast(_now(hops, now)))
        .withColumn("age_ms", millis("now", F.coalesce("created_at", "received_at")))
        .where(F.col("age_ms") > allowed)
        .select(
            "id", "trace_id", "urn", "queue", "lang", "created_at", "attempts",
            "expected_urn", "usual_ms", "age_ms", "share",
        )
    )  # fmt: skip


def _now(hops: DataFrame, now: datetime | None) -> DataFrame:
    moment: Column = F.max(F.coalesce("received_at", "created_at")) if now is None else F.max(F.lit(now))
    return hops.agg(moment.alias("now"))
