"""Traces put back together: one row a hop, one row a trace.

The envelope names the trace of a message, not its parent. The parent is learnt from all traces: a URN's
parent is the URN that comes before it most steadily (then the nearest); a hop's parent is the latest such
message of its trace. Ids and times are those of the producers; nothing is guessed about consumers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.lake.store import to_spark
from shinar.pipeline.rows import schema

#: A hop is slow when it takes more than the edge's 95th percentile and this many times its median.
SLOW_FACTOR: Final = 3.0
#: Different URNs of one trace that are compared with each other.
MAX_URNS: Final = 50
#: Hops of one trace that are looked at together: beyond it something reuses one trace id for everything.
MAX_HOPS: Final = 100_000
#: Hops shown in a trace's `path`.
_PATH_HOPS: Final = 20

_CARRIED: Final = (
    "trace_id",
    "id",
    "urn",
    "lang",
    "queue",
    "broker",
    "created_at",
    "received_at",
    "attempts",
)
_PAIRS: Final = pa.schema(
    [
        pa.field("urn", pa.string()),
        pa.field("parent_urn", pa.string()),
        pa.field("traces", pa.int64()),
        pa.field("ahead", pa.int64()),
        pa.field("gap_us", pa.float64()),
    ]
)
_LINKS: Final = pa.schema(
    [
        pa.field("hop", pa.int64()),
        pa.field("parent_id", pa.string()),
        pa.field("parent_urn", pa.string()),
        pa.field("latency_ms", pa.int64()),
        pa.field("fan_out", pa.int64()),
        pa.field("cycle", pa.bool_()),
    ]
)

_HOPS: Final = pa.schema(
    [*(schema.ARROW.field(name) for name in _CARRIED), pa.field("at_us", pa.int64()), *_LINKS]
)


def millis(later: str | Column, earlier: str | Column) -> Column:
    """Difference of two timestamps in whole milliseconds."""
    end = F.unix_micros(F.col(later) if isinstance(later, str) else later)
    start = F.unix_micros(F.col(earlier) if isinstance(earlier, str) else earlier)
    return F.floor((end - start) / 1000)


def hops(messages: DataFrame, *, slow_factor: float = SLOW_FACTOR) -> DataFrame:
    """One row per message of a trace, with its position, its inferred parent and how long the step took.

    Runs two jobs at once (who is whose parent, and how long a step usually takes) and keeps the hops cached:
    every question about traces starts from them.
    """
    sorted_rows = _by_trace(messages)
    parents = _parent_urns(sorted_rows)
    linked = sorted_rows.mapInArrow(_Linker(parents), to_spark(_HOPS)).drop("at_us").cache()
    usual = linked.where("latency_ms is not null").groupBy("parent_urn", "urn").agg(
        F.percentile_approx("latency_ms", 0.5).alias("usual_ms"),
        F.percentile_approx("latency_ms", 0.95).alias("late_ms"),
    )  # fmt: skip
    limit = F.greatest(F.col("late_ms"), F.col("usual_ms") * slow_factor)
    return (
        linked.join(F.broadcast(local(usual)), ["parent_urn", "urn"], "left")
        .withColumn("slow", F.coalesce(F.col("latency_ms") > limit, F.lit(False)))
        .withColumn("wait_ms", millis("received_at", "created_at"))
        .drop("late_ms")
    )


def local(frame: DataFrame) -> DataFrame:
    """A small result brought to the driver, so that it is worked out once however often it is used."""
    return frame.sparkSession.createDataFrame(frame.toArrow(), schema=frame.schema)


def _by_trace(messages: DataFrame) -> DataFrame:
    at = F.unix_micros(F.coalesce("created_at", "received_at"))
    return (
        messages.where("trace_id is not null and id is not null")
        .select(*_CARRIED, F.coalesce(at, F.lit(0)).alias("at_us"))
        .repartition("trace_id")
        .sortWithinPartitions("trace_id", "at_us", "id")
    )


def _parent_urns(sorted_rows: DataFrame) -> dict[str, str]:
    """URN -> the URN it follows. As many entries as URNs, so it is decided on the driver."""
    sums = sorted_rows.mapInArrow(_pairs, to_spark(_PAIRS)).groupBy("urn", "parent_urn").agg(
        F.sum("traces").alias("traces"), F.sum("ahead").alias("ahead"), F.sum("gap_us").alias("gap_us")
    )  # fmt: skip
    found = {(row["urn"], row["parent_urn"]): row for row in sums.collect()}
    best: dict[str, tuple[int, float, str]] = {}
    for (urn, parent), row in found.items():
        reverse = found.get((parent, urn))
        behind = reverse["ahead"] if reverse else -1
        # Two URNs made in the same millisecond precede each other: the one ahead more often is first.
        if row["ahead"] < behind or (row["ahead"] == behind and parent > urn):
            continue
        rank = (-row["traces"], row["gap_us"] / row["traces"], parent)
        best[urn] = min(best.get(urn, rank), rank)
    return {urn: rank[2] for urn, rank in best.items()}


def _traces(
    batches: Iterator[pa.RecordBatch],
    work: Callable[[pa.Table, list[tuple[int, int]]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Sorted rows to `work`, whole traces at a time: (rows, [(first, end) of each trace])."""
    rest: pa.Table | None = None
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        rows = rows if rest is None else pa.concat_tables([rest, rows])
        bounds = _bounds(rows)
        if len(bounds) == 1 and len(rows) < MAX_HOPS:
            rest = rows
            continue
        whole = bounds if len(bounds) == 1 else bounds[:-1]
        yield from work(rows, whole)
        rest = rows.slice(whole[-1][1])
    if rest is not None and len(rest):
        yield from work(rest, _bounds(rest))


def _bounds(rows: pa.Table) -> list[tuple[int, int]]:
    names = rows["trace_id"].combine_chunks()
    if len(names) == 0:
        return []
    changes = pc.indices_nonzero(pc.not_equal(names[1:], names[:-1])).to_pylist()
    starts = [0, *(index + 1 for index in changes)]
    return list(zip(starts, [*starts[1:], len(names)], strict=True))


def _pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0, 0.0])

    def work(rows: pa.Table, bounds: list[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        urns, times = rows["urn"].to_pylist(), rows["at_us"].to_pylist()
        for start, end in bounds:
            firsts: dict[str, int] = {}
            for index in range(start, end):
                firsts.setdefault(urns[index], times[index])
            _add_pairs(sums, list(firsts.items())[:MAX_URNS])
        return iter(())

    yield from _traces(batches, work)
    found = [(urn, parent, int(s[0]), int(s[1]), s[2]) for (urn, parent), s in sums.items()]
    columns = zip(*found, strict=True) if found else [[]] * len(_PAIRS)
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _PAIRS, strict=True)], schema=_PAIRS
    )


def _add_pairs(sums: dict[tuple[str, str], list[float]], firsts: list[tuple[str, int]]) -> None:
    for index, (urn, at) in enumerate(firsts):
        for other, (parent, parent_at) in enumerate(firsts):
            if other == index or parent_at > at:
                continue
            one = sums[urn, parent]
            one[0] += 1
            one[1] += parent_at < at
            one[2] += at - parent_at


class _Linker:
    """Gives every hop its parent; runs on executors with the table of parents."""

    def __init__(self, parents: Mapping[str, str]) -> None:
        self._parents = dict(parents)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _traces(batches, self._work)

    def _work(self, rows: pa.Table, bounds: list[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        ids, urns, times = (rows[name].to_pylist() for name in ("id", "urn", "at_us"))
        count = bounds[-1][1]
        links: dict[str, list[Any]] = {
            "hop": [0] * count,
            "parent_id": [None] * count,
            "parent_urn": [None] * count,
            "latency_ms": [None] * count,
            "fan_out": [0] * count,
            "cycle": [False] * count,
        }
        for start, end in bounds:
            self._link(links, start, urns[start:end], ids, times)
        made = rows.slice(0, count)
        for field in _LINKS:
            made = made.append_column(field, pa.array(links[field.name], field.type))
        yield from made.combine_chunks().to_batches()

    def _link(
        self, links: dict[str, list[Any]], start: int, urns: list[str], ids: list[str], times: list[int]
    ) -> None:
        latest: dict[str, int] = {}
        before: str | None = None
        ties: list[int] = []
        for offset, urn in enumerate(urns):
            index = start + offset
            links["hop"][index] = offset + 1
            links["cycle"][index] = urn in latest and before != urn
            parent = latest.get(self._parents.get(urn, ""))
            if parent is None and urn in self._parents:
                ties.append(index)
            elif parent is not None:
                self._tie(links, index, parent, urns[parent - start], ids, times)
            latest[urn] = index
            before = urn
        # A child sorted before a parent of the same millisecond.
        for index in ties:
            wanted = self._parents[urns[index - start]]
            later = index + 1
            while later < start + len(urns) and times[later] == times[index]:
                if urns[later - start] == wanted:
                    self._tie(links, index, later, wanted, ids, times)
                    break
                later += 1

    @staticmethod
    def _tie(
        links: dict[str, list[Any]], index: int, parent: int, urn: str, ids: list[str], times: list[int]
    ) -> None:
        links["parent_id"][index] = ids[parent]
        links["parent_urn"][index] = urn
        links["latency_ms"][index] = (times[index] - times[parent]) // 1000
        links["fan_out"][parent] += 1


def edges(hops_frame: DataFrame) -> DataFrame:
    """One row per step parent -> child: how often it happens and how long it takes."""
    parents = hops_frame.groupBy(F.col("urn").alias("parent_urn")).agg(F.count(F.lit(1)).alias("parents"))
    followers = hops_frame.where("parent_id is not null")
    # Apart from the percentiles: a distinct count beside them would make Spark keep a digest per parent.
    followed = (
        followers.select("parent_urn", "urn", "parent_id")
        .distinct()
        .groupBy("parent_urn", "urn")
        .agg(F.count(F.lit(1)).alias("followed"))
    )
    steps = followers.groupBy("parent_urn", "urn").agg(
        F.count(F.lit(1)).alias("steps"),
        F.percentile_approx("latency_ms", 0.5).alias("p50_ms"),
        F.percentile_approx("latency_ms", 0.95).alias("p95_ms"),
        F.percentile_approx("latency_ms", 0.99).alias("p99_ms"),
        F.max("latency_ms").alias("max_ms"),
    )
    return (
        steps.join(F.broadcast(followed), ["parent_urn", "urn"])
        .join(F.broadcast(parents), "parent_urn")
        .withColumn("share", F.col("followed") / F.col("parents"))
    )


def traces(hops_frame: DataFrame, gaps: DataFrame | None = None) -> DataFrame:
    """One row per trace. `gaps` is what `stuck.stuck` found: steps that should have come."""
    ordered = F.sort_array(F.collect_list(F.struct("hop", "urn")))
    path = F.slice(F.transform(ordered, lambda step: step["urn"]), 1, _PATH_HOPS)
    result = hops_frame.groupBy("trace_id").agg(
        F.min(F.coalesce("created_at", "received_at")).alias("started_at"),
        F.max(F.coalesce("created_at", "received_at")).alias("ended_at"),
        F.count(F.lit(1)).alias("hops"),
        F.size(F.collect_set("urn")).alias("urns"),
        F.sort_array(F.collect_set("lang")).alias("langs"),
        F.sort_array(F.collect_set("queue")).alias("queues"),
        F.max("fan_out").alias("fan_out"),
        F.sum(F.col("slow").cast("long")).alias("slow_hops"),
        F.sum(F.col("cycle").cast("long")).alias("cycles"),
        F.sum("attempts").alias("retries"),
        F.concat_ws(" > ", path).alias("path"),
    )
    result = result.withColumn("duration_ms", millis("ended_at", "started_at"))
    if gaps is None:
        return result.withColumn("gaps", F.lit(0).cast("long"))
    missing = gaps.groupBy("trace_id").agg(F.count(F.lit(1)).alias("gaps"))
    return result.join(missing, "trace_id", "left").withColumn("gaps", F.coalesce("gaps", F.lit(0)))
