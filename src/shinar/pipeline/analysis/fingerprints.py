"""Dead letters by fingerprint: how many, since when, and what is new or gone since a moment."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def fingerprints(dead_letters: DataFrame, since: datetime | None = None) -> DataFrame:
    """One row per kind of failure: `new` began after `since` (a deploy, a fix), `gone` ended before it."""
    at = F.coalesce("dl_failed_at", "received_at")
    moment = F.lit(since).cast("timestamp")
    grouped = dead_letters.withColumn("_at", at).groupBy("fingerprint").agg(
        F.first("urn", ignorenulls=True).alias("urn"),
        F.first(F.coalesce("dl_lang", "lang"), ignorenulls=True).alias("lang"),
        F.first(F.coalesce("dl_original_queue", "queue"), ignorenulls=True).alias("original_queue"),
        F.first("dl_reason", ignorenulls=True).alias("reason"),
        F.first("dl_exception", ignorenulls=True).alias("exception"),
        F.first("template", ignorenulls=True).alias("template"),
        F.first("dl_error", ignorenulls=True).alias("sample_error"),
        F.min("id").alias("sample_id"),
        F.count(F.lit(1)).alias("dead_letters"),
        F.countDistinct("id").alias("messages"),
        F.min("_at").alias("first_seen"),
        F.max("_at").alias("last_seen"),
        F.avg("dl_attempts").alias("mean_attempts"),
    )  # fmt: skip
    total = dead_letters.agg(F.count(F.lit(1)).alias("_all"))
    return (
        grouped.crossJoin(F.broadcast(total))
        .withColumn("share", F.col("dead_letters") / F.col("_all"))
        .withColumn("new", F.coalesce(F.col("first_seen") >= moment, F.lit(False)))
        .withColumn("gone", F.coalesce(F.col("last_seen") < moment, F.lit(False)))
        .drop("_all")
        .orderBy(F.desc("dead_letters"), "fingerprint")
    )


def over_time(dead_letters: DataFrame, unit: str = "hour") -> DataFrame:
    """(fingerprint, at, dead_letters): what a sparkline is drawn from."""
    at = F.date_trunc(unit, F.coalesce("dl_failed_at", "received_at")).alias("at")
    return dead_letters.groupBy("fingerprint", at).agg(F.count(F.lit(1)).alias("dead_letters"))
