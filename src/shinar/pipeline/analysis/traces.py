"""Traces put back together: one row a hop, one row a trace.

The envelope names the trace of a message, not its parent. The parent is learnt from all traces: a URN's
parent is the URN that comes before it most steadily (then the nearest); a hop's parent is the latest such
message of its trace. Ids and times are those of the producers; nothing is guessed about consumers.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

#: A hop is slow when it takes more than the edge's 95th percentile and this many times its median.
SLOW_FACTOR: Final = 3.0
#: Traces with more hops than this are cut: something reuses one trace id for everything.
MAX_HOPS: Final = 1000
#: Hops shown in a trace's `path`.
_PATH_HOPS: Final = 20


def millis(later: str | Column, earlier: str | Column) -> Column:
    """Difference of two timestamps in whole milliseconds."""
    end = F.unix_micros(F.col(later) if isinstance(later, str) else later)
    start = F.unix_micros(F.col(earlier) if isinstance(earlier, str) else earlier)
    return F.floor((end - start) / 1000)


def hops(messages: DataFrame, *, slow_factor: float = SLOW_FACTOR) -> DataFrame:
    """One row per message of a trace, with its place, its inferred parent and how long the step took."""
    numbered = _numbered(messages)
    parents = parent_urns(numbered)
    linked = _linked(numbered, parents)
    usual = (
        linked.where("latency_ms is not null")
        .groupBy("parent_urn", "urn")
        .agg(
            F.percentile_approx("latency_ms", 0.5).alias("usual_ms"),
            F.percentile_approx("latency_ms", 0.95).alias("late_ms"),
        )
    )
    children = (
        linked.where("parent_id is not null")
        .groupBy(F.col("trace_id"), F.col("parent_id").alias("id"))
        .agg(F.count(F.lit(1)).alias("fan_out"))
    )
    limit = F.greatest(F.col("late_ms"), F.col("usual_ms") * slow_factor)
    return (
        linked.join(usual, ["parent_urn", "urn"], "left")
        .join(children, ["trace_id", "id"], "left")
        .withColumn("fan_out", F.coalesce("fan_out", F.lit(0)))
        .withColumn("slow", F.coalesce(F.col("latency_ms") > limit, F.lit(False)))
        .select(
            "trace_id", "hop", "id", "urn", "lang", "queue", "broker", "created_at", "received_at",
            "attempts", "parent_id", "parent_urn", "latency_ms", "usual_ms", "wait_ms", "fan_out",
            "slow", "cycle",
        )
    )  # fmt: skip


def _numbered(messages: DataFrame) -> DataFrame:
    at = F.coalesce("created_at", "received_at")
    trace = Window.partitionBy("trace_id").orderBy("at", "id")
    again = Window.partitionBy("trace_id", "urn").orderBy("at", "id")
    return (
        messages.where("trace_id is not null and id is not null")
        .select(
            "trace_id", "id", "urn", "lang", "queue", "broker", "created_at", "received_at", "attempts",
            at.alias("at"), millis("received_at", "created_at").alias("wait_ms"),
        )
        .withColumn("hop", F.row_number().over(trace))
        .where(F.col("hop") <= MAX_HOPS)
        .withColumn("_before", F.lag("urn").over(trace))
        .withColumn("_nth", F.row_number().over(again))
        # A URN that comes back after another one: the trace runs in a circle.
        .withColumn("cycle", (F.col("_nth") > 1) & (F.col("_before") != F.col("urn")))
        .drop("_before", "_nth")
    )  # fmt: skip


def parent_urns(numbered: DataFrame) -> DataFrame:
    """(urn, parent_urn): who comes before whom, judged over all traces."""
    firsts = numbered.groupBy("trace_id", "urn").agg(F.min("at").alias("at"))
    earlier = firsts.select("trace_id", F.col("urn").alias("parent_urn"), F.col("at").alias("parent_at"))
    pairs = firsts.join(earlier, "trace_id").where("urn != parent_urn and parent_at <= at")
    support = pairs.groupBy("urn", "parent_urn").agg(
        F.count(F.lit(1)).alias("traces"),
        F.sum((F.col("parent_at") < F.col("at")).cast("long")).alias("ahead"),
        F.percentile_approx(millis("at", "parent_at"), 0.5).alias("gap_ms"),
    )
    # Two URNs made in the same millisecond precede each other: the one that is ahead more often is first.
    reverse = support.select(
        F.col("urn").alias("parent_urn"), F.col("parent_urn").alias("urn"), F.col("ahead").alias("behind")
    )
    one_way = support.join(reverse, ["urn", "parent_urn"], "left").where(
        "behind is null or ahead > behind or (ahead = behind and parent_urn < urn)"
    )
    best = Window.partitionBy("urn").orderBy(F.desc("traces"), "gap_ms", "parent_urn")
    return one_way.withColumn("rank", F.row_number().over(best)).where("rank = 1").select("urn", "parent_urn")


def _linked(numbered: DataFrame, parents: DataFrame) -> DataFrame:
    wanting = numbered.join(F.broadcast(parents), "urn", "left").withColumnRenamed("parent_urn", "_wanted")
    possible = numbered.select(
        F.col("trace_id"), F.col("urn").alias("_wanted"), F.col("id").alias("_pid"), F.col("at").alias("_pat")
    )
    found = (
        wanting.select("trace_id", "id", "at", "_wanted")
        .join(possible, ["trace_id", "_wanted"])
        .where((F.col("_pat") <= F.col("at")) & (F.col("_pid") != F.col("id")))
        .groupBy("trace_id", "id")
        .agg(F.max(F.struct("_pat", "_pid")).alias("_parent"))
    )
    joined = wanting.join(found, ["trace_id", "id"], "left")
    return joined.withColumns(
        {
            "parent_id": F.col("_parent._pid"),
            "parent_urn": F.when(F.col("_parent").isNotNull(), F.col("_wanted")),
            "latency_ms": millis("at", "_parent._pat"),
        }
    ).drop("_parent", "_wanted")


def edges(hops_frame: DataFrame) -> DataFrame:
    """One row per step parent -> child: how often it happens and how long it takes."""
    parents = hops_frame.groupBy(F.col("urn").alias("parent_urn")).agg(F.count(F.lit(1)).alias("parents"))
    steps = (
        hops_frame.where("parent_id is not null")
        .groupBy("parent_urn", "urn")
        .agg(
            F.count(F.lit(1)).alias("steps"),
            F.countDistinct("parent_id").alias("followed"),
            F.percentile_approx("latency_ms", 0.5).alias("p50_ms"),
            F.percentile_approx("latency_ms", 0.95).alias("p95_ms"),
            F.percentile_approx("latency_ms", 0.99).alias("p99_ms"),
            F.max("latency_ms").alias("max_ms"),
        )
    )
    return steps.join(parents, "parent_urn").withColumn("share", F.col("followed") / F.col("parents"))


def traces(hops_frame: DataFrame, gaps: DataFrame | None = None) -> DataFrame:
    """One row per trace. `gaps` is what `stuck.stuck` found: steps that should have come."""
    ordered = F.sort_array(F.collect_list(F.struct("hop", "urn")))
    result = hops_frame.groupBy("trace_id").agg(
        F.min(F.coalesce("created_at", "received_at")).alias("started_at"),
        F.max(F.coalesce("created_at", "received_at")).alias("ended_at"),
        F.count(F.lit(1)).alias("hops"),
        F.countDistinct("urn").alias("urns"),
        F.sort_array(F.collect_set("lang")).alias("langs"),
        F.sort_array(F.collect_set("queue")).alias("queues"),
        F.max("fan_out").alias("fan_out"),
        F.sum(F.col("slow").cast("long")).alias("slow_hops"),
        F.sum(F.col("cycle").cast("long")).alias("cycles"),
        F.sum("attempts").alias("retries"),
        F.concat_ws(" > ", F.slice(F.transform(ordered, lambda step: step["urn"]), 1, _PATH_HOPS)).alias(
            "path"
        ),
    )
    result = result.withColumn("duration_ms", millis("ended_at", "started_at"))
    if gaps is None:
        return result.withColumn("gaps", F.lit(0).cast("long"))
    missing = gaps.groupBy("trace_id").agg(F.count(F.lit(1)).alias("gaps"))
    return result.join(missing, "trace_id", "left").withColumn("gaps", F.coalesce("gaps", F.lit(0)))
