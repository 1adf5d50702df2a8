"""Figures in, one file out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from shinar import durable_files as durable
from shinar.clock import SYSTEM, Clock
from shinar.pipeline.lake.store import existing_store
from shinar.pipeline.report.figures import collect
from shinar.pipeline.report.page import render


def write_report(
    spark: SparkSession, lake: str, out: str, *, since: datetime | None = None, clock: Clock = SYSTEM
) -> Path:
    """The page about a lake. `since` marks what is new or gone after a deploy."""
    made_at = datetime.fromtimestamp(clock.epoch_s(), UTC)
    page = render(collect(spark, existing_store(lake), made_at=made_at, since=since))
    path = Path(out)
    durable.write(path, page.encode())
    return path
