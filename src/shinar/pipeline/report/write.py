"""The report of a lake: figures in, one HTML file out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from shinar import durable_files as durable
from shinar.clock import SYSTEM, Clock
from shinar.pipeline.lake.store import existing_store
from shinar.pipeline.report.figures import collect
from shinar.pipeline.report.mask import Mask
from shinar.pipeline.report.page import render


def write_report(
    spark: SparkSession,
    lake: str,
    out: str,
    *,
    since: datetime | None = None,
    mask: Iterable[str] = (),
    clock: Clock = SYSTEM,
) -> Path:
    """The page about a lake. `since` marks what is new or gone after a deploy; in samples the values of the
    fields in `mask` are masked, and e-mail addresses always are."""
    made_at = datetime.fromtimestamp(clock.epoch_s(), UTC)
    page = render(collect(spark, existing_store(lake), made_at=made_at, since=since), Mask(mask))
    path = Path(out)
    durable.write(path, page.encode())
    return path
