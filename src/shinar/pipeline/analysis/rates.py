"""Latency, retries and dead letters per URN, queue, language and hour: the numbers of an SLO."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.analysis.traces import millis

KEYS: Final = ("urn", "queue", "lang", "hour")


def rates(
    messages: DataFrame, duplicates: DataFrame, dead_letters: DataFrame, unit: str = "hour"
) -> DataFrame:
    """`latency` is from creation to receipt. `retries` counts earlier deliveries of what was received.

    Dead letters are counted under the queue and hour in which the message died, so a rate above one is
    possible where the messages themselves were not read.
    """
    # An archive does not say when its bodies were received.
    hour = F.date_trunc(unit, F.coalesce("received_at", "created_at")).alias("hour")
    wait = millis("received_at", "created_at")
    live = messages.where("dl_reason is null").groupBy("urn", "queue", "lang", hour).agg(
        F.count(F.lit(1)).alias("messages"),
        F.sum(F.coalesce("attempts", F.lit(0))).alias("retries"),
        F.sum((wait < 0).cast("long")).alias("from_the_future"),
        *_percentiles(F.when(wait >= 0, wait)),
    )  # fmt: skip
    again = (
        duplicates.where("dl_reason is null")
        .groupBy("urn", "queue", "lang", hour)
        .agg(F.count(F.lit(1)).alias("duplicates"))
    )
    died = F.date_trunc(unit, F.coalesce("dl_failed_at", "received_at", "created_at")).alias("hour")
    queue = F.coalesce("dl_original_queue", "queue").alias("queue")
    dead = dead_letters.groupBy("urn", queue, "lang", died).agg(F.count(F.lit(1)).alias("dead_letters"))
    joined = _outer(_outer(live, again), dead)
    count = F.col("messages")
    return joined.withColumns(
        {
            "retry_rate": F.when(count > 0, F.col("retries") / count),
            "dlq_rate": F.when(count > 0, F.col("dead_letters") / count),
        }
    ).orderBy("hour", "urn", "queue", "lang")


def _percentiles(value: Column) -> list[Column]:
    quantiles = (0.5, 0.95, 0.99)
    return [
        F.percentile_approx(value, quantile).alias(f"p{int(quantile * 100)}_ms") for quantile in quantiles
    ]


def _outer(left: DataFrame, right: DataFrame) -> DataFrame:
    """Full join where a missing language is a language of its own, and a missing count is 0."""
    marked = [frame.fillna("", ["urn", "queue", "lang"]) for frame in (left, right)]
    joined = marked[0].join(marked[1], list(KEYS), "full")
    counts = [name for name in joined.columns if name in _COUNTS]
    return joined.fillna(0, counts)


_COUNTS: Final = frozenset({"messages", "retries", "from_the_future", "duplicates", "dead_letters"})
