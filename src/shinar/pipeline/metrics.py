"""Metrics of a running job: what its batches did, and how far it is behind. Must not know a broker.

The lag comes from Spark's own progress events, so that both always say the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shinar.observe import Metrics
from shinar.pipeline.batch.journal import Manifest

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


#: Messages the broker delivered again within the last day; the second is its former name.
REDELIVERED: Final = ("shinar_pipeline_redelivered", "shinar_pipeline_came_again")


class PipelineMetrics:
    def __init__(self, metrics: Metrics, job: str) -> None:
        self._metrics = metrics
        self._job = job

    def batch(self, manifest: Manifest) -> None:
        add = self._metrics.add
        add("shinar_pipeline_batches_total", 1, job=self._job)
        self._metrics.observe("shinar_pipeline_batch_seconds", manifest.took_ms / 1000, job=self._job)
        for balance in manifest.balances:
            where = {"job": self._job, "queue": balance.queue}
            add("shinar_pipeline_received_total", balance.received, **where)
            add("shinar_pipeline_possible_redeliveries_total", balance.possible_redeliveries, **where)
            for table in ("messages", "quarantine", "duplicates", "dead_letters"):
                add("shinar_pipeline_rows_total", getattr(balance, table), table=table, **where)

    def failures(self, count: int) -> None:
        self._metrics.add("shinar_pipeline_handler_failures_total", count, job=self._job)

    def progress(self, progress: StreamingQueryProgress | None) -> None:
        for source in progress.sources if progress is not None else ():
            latest = _offset(source.latestOffset)
            for queue, left in lag_of(latest, _offset(source.endOffset)).items():
                self._metrics.put("shinar_pipeline_lag", left, job=self._job, queue=queue)
            redelivered = latest.get("redelivered", latest.get("came_again"))
            if redelivered is not None:
                for name in REDELIVERED:
                    self._metrics.put(name, redelivered, job=self._job)


def lag_of(latest: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, int]:
    """Messages per queue that were there when the batch was planned and that it does not take.

    From the two offsets of a progress event: of a queue, of a broker with offsets, or of a log (whose one
    position has no queue)."""
    if "lag" in latest:
        taken: Counter[str] = Counter()
        # Checkpoints of earlier versions call the partitions shares.
        for queue, rows, _ in end.get("partitions") or end.get("shares") or ():
            taken[queue] += rows
        known = {queue: depth["ready"] for queue, depth in latest["lag"].items()}
        return {queue: max(0, ready - taken[queue]) for queue, ready in known.items() if ready is not None}
    if "position" in latest:
        return {"": max(0, latest["position"] - end.get("position", 0))}
    return {
        queue: sum(max(0, high - end.get(queue, {}).get(number, 0)) for number, high in parts.items())
        for queue, parts in latest.items()
    }


def _offset(text: str | None) -> dict[str, Any]:
    """Spark shows an offset as JSON; the word null, or nothing, before the first one."""
    return (json.loads(text) if text else None) or {}
