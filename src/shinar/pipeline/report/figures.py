"""Everything the page shows, asked of the tables and brought to the driver: small lists, never raw tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from shinar.pipeline.analysis.drift import drift
from shinar.pipeline.analysis.fingerprints import fingerprints, over_time
from shinar.pipeline.analysis.stuck import stuck
from shinar.pipeline.analysis.traces import edges, hops, millis, traces
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import TableStore

Rows = list[dict[str, Any]]

#: Rows of a list on the page; the tables themselves have the rest.
TOP: Final = 25
#: Bars of a chart over time: the latest so many. And languages told apart in it.
BUCKETS: Final = 180
LANGS: Final = 7
#: Traces drawn as a waterfall, and hops of each.
WATERFALLS: Final = 4
WATERFALL_HOPS: Final = 30
_SAMPLE_CHARS: Final = 300


class ReportFigures(msgspec.Struct, frozen=True):
    lake: str
    #: Whether any message says when it was received; an archive's do not.
    with_receipt: bool
    made_at: datetime
    first_at: datetime | None
    last_at: datetime | None
    #: Width of a bar in the charts over time: minute, hour or day.
    unit: str
    totals: dict[str, int]
    latency: dict[str, Any]
    traffic: Rows
    #: (at, lang, messages) by creation, in buckets of `produced_unit`.
    produced: Rows
    produced_unit: str
    by_urn: Rows
    producers: Rows
    fingerprints: Rows
    deaths: Rows
    trace_totals: dict[str, Any]
    slow_traces: Rows
    waterfalls: list[Rows]
    edges: Rows
    stuck: Rows
    drift: Rows
    quarantine: Rows
    typed_rejects: Rows
    batches: Rows


class _Tables(msgspec.Struct, frozen=True):
    messages: Any
    quarantine: Any
    duplicates: Any
    dead_letters: Any
    batches: Any
    typed_rejects: Any


def collect(
    spark: SparkSession, store: TableStore, *, made_at: datetime, since: datetime | None = None
) -> ReportFigures:
    found = _Tables(**{name: tables.read(spark, store, name) for name in _Tables.__struct_fields__})
    span = _one(
        found.messages.agg(
            F.min("received_at").alias("first"),
            F.max("received_at").alias("last"),
            F.count("received_at").alias("with_receipt"),
            F.min("created_at").alias("oldest"),
            F.max("created_at").alias("newest"),
        )
    )
    # An archive does not say when its bodies were received: then its charts are over their creation.
    first_at, last_at = span["first"] or span["oldest"], span["last"] or span["newest"]
    produced_unit = _unit(span["oldest"], span["newest"])
    unit = _unit(first_at, last_at)
    steps = hops(found.messages).cache()
    waiting = stuck(steps, found.dead_letters).cache()
    summary = traces(steps, waiting).cache()
    slowest = _rows(summary.orderBy(F.desc("duration_ms"), "trace_id").limit(TOP))
    shown = [row["trace_id"] for row in slowest if row["hops"] > 1][:WATERFALLS]
    return ReportFigures(
        lake=store.root.name,
        with_receipt=bool(span["with_receipt"]),
        made_at=made_at,
        first_at=first_at,
        last_at=last_at,
        unit=unit,
        totals=_totals(found),
        latency=_one(found.messages.agg(*_latency())),
        traffic=_traffic(found, unit),
        produced=_produced(found.messages, produced_unit),
        produced_unit=produced_unit,
        by_urn=_by_urn(found),
        producers=_rows(
            found.messages.groupBy("lang", "urn").count().orderBy(F.desc("count")).limit(TOP * 4)
        ),
        fingerprints=_rows(fingerprints(found.dead_letters, since).limit(TOP)),
        deaths=_rows(over_time(found.dead_letters, unit).orderBy("at")),
        trace_totals=_one(summary.agg(*_trace_totals())),
        slow_traces=slowest,
        waterfalls=_waterfalls(steps, shown),
        edges=_rows(edges(steps).orderBy(F.desc("steps")).limit(TOP)),
        stuck=_rows(waiting.orderBy(F.desc("age_ms"), "id").limit(TOP)),
        drift=_rows(drift(found.messages, since, rejects=found.typed_rejects).limit(TOP * 4)),
        quarantine=_quarantine(found.quarantine),
        typed_rejects=_typed_rejects(found.typed_rejects),
        batches=_rows(found.batches.orderBy(F.desc("prepared_at"), "queue").limit(TOP)),
    )


def _rows(frame: DataFrame) -> Rows:
    return [{name: _aware(value) for name, value in row.asDict().items()} for row in frame.collect()]


def _one(frame: DataFrame) -> dict[str, Any]:
    return _rows(frame)[0]


def _aware(value: Any) -> Any:
    """Spark hands over local times without a zone."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _unit(first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None or last - first < timedelta(hours=3):
        return "minute"
    return "hour" if last - first < timedelta(days=5) else "day"


def _totals(found: _Tables) -> dict[str, int]:
    names = ("received", "messages", "quarantine", "duplicates")
    sums = found.batches.agg(
        F.countDistinct("batch").alias("batches"), *(F.coalesce(F.sum(n), F.lit(0)).alias(n) for n in names)
    )
    beside = {name: getattr(found, name).count() for name in ("dead_letters", "typed_rejects")}
    return {**_one(sums), **beside}


def _latency(what: str = "") -> list[Column]:
    """Percentiles of the wait; of one kind of row where several are mixed."""
    counts = F.col("created_at") <= F.col("received_at")
    counts = counts & (F.col("what") == what) if what else counts
    wait = F.when(counts, millis("received_at", "created_at"))
    quantiles = (0.5, 0.95, 0.99)
    return [F.percentile_approx(wait, quantile).alias(f"p{int(quantile * 100)}_ms") for quantile in quantiles]


def _trace_totals() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("traces"),
        F.coalesce(F.sum("hops"), F.lit(0)).alias("hops"),
        F.coalesce(F.sum("slow_hops"), F.lit(0)).alias("slow_hops"),
        F.coalesce(F.sum((F.col("cycles") > 0).cast("long")), F.lit(0)).alias("with_cycles"),
        F.coalesce(F.sum("gaps"), F.lit(0)).alias("gaps"),
        F.percentile_approx("duration_ms", 0.5).alias("p50_ms"),
        F.percentile_approx("duration_ms", 0.95).alias("p95_ms"),
    ]


def _traffic(found: _Tables, unit: str) -> Rows:
    """All four tables in one pass: a row each, then one grouping."""
    at = F.date_trunc(unit, F.coalesce("received_at", "created_at")).alias("at")
    names = ("messages", "quarantine", "duplicates", "dead_letters")
    slim = [
        getattr(found, name).select(at, F.lit(name).alias("what"), "created_at", "received_at")
        for name in names
    ]
    every = slim[0].union(slim[1]).union(slim[2]).union(slim[3])
    counts = [F.sum((F.col("what") == name).cast("long")).alias(name) for name in names]
    grouped = every.where("at is not null").groupBy("at").agg(*counts, *_latency("messages"))
    return _rows(grouped.orderBy(F.desc("at")).limit(BUCKETS))[::-1]


def _produced(messages: DataFrame, unit: str) -> Rows:
    at = F.date_trunc(unit, "created_at").alias("at")
    lang = F.coalesce("lang", F.lit("–")).alias("lang")
    made = messages.where("created_at is not null")
    counted = made.groupBy(at, lang).agg(F.count(F.lit(1)).alias("messages"))
    return _rows(counted.orderBy(F.desc("at"), "lang").limit(BUCKETS * LANGS))[::-1]


def _by_urn(found: _Tables) -> Rows:
    names = ("messages", "dead_letters")
    slim = [
        getattr(found, name).select(
            "urn", "lang", F.lit(name).alias("what"), "created_at", "received_at", "attempts"
        )
        for name in names
    ]
    told = slim[0].union(slim[1]).groupBy("urn").agg(
        *(F.sum((F.col("what") == name).cast("long")).alias(name) for name in names),
        F.sum(F.when(F.col("what") == "messages", F.col("attempts")).otherwise(0)).alias("retries"),
        F.sort_array(F.collect_set("lang")).alias("langs"),
        *_latency("messages"),
    )  # fmt: skip
    return _rows(told.orderBy(F.desc("messages"), F.desc("dead_letters"), "urn").limit(TOP))


def _waterfalls(steps: DataFrame, trace_ids: list[str]) -> list[Rows]:
    if not trace_ids:
        return []
    chosen = steps.where(F.col("trace_id").isin(*trace_ids) & (F.col("hop") <= WATERFALL_HOPS))
    found = _rows(chosen.orderBy("trace_id", "hop"))
    return [[row for row in found if row["trace_id"] == name] for name in trace_ids]


def _quarantine(frame: DataFrame) -> Rows:
    reason = F.regexp_extract("reason", r"^[^:]*", 0).alias("reason")
    told = frame.groupBy("verdict", reason, "pointer", "queue").agg(
        F.count(F.lit(1)).alias("count"),
        F.max("received_at").alias("last_at"),
        F.first(F.substring(F.decode(F.col("body"), "ISO-8859-1"), 1, _SAMPLE_CHARS)).alias("sample"),
    )
    return _rows(told.orderBy(F.desc("count"), "reason", "pointer").limit(TOP))


def _typed_rejects(frame: DataFrame) -> Rows:
    told = frame.groupBy("table", "pointer", "reason", "lang").agg(
        F.count(F.lit(1)).alias("count"),
        F.max(F.coalesce("received_at", "created_at")).alias("last_at"),
        F.min("id").alias("sample_id"),
    )
    return _rows(told.orderBy(F.desc("count"), "table", "pointer").limit(TOP))
