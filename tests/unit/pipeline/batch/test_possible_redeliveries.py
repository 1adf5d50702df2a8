"""Rows that may repeat an earlier one: dedupe settles those with an id, the balance shows the others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from pyspark.sql import functions as F

from shinar.pipeline import Pipeline
from shinar.pipeline.maintenance import status
from unit.pipeline.lakes import NOON, envelope, rows, spark, table


def test_what_dedupe_cannot_settle_is_kept_marked_and_counted(tmp_path: Path) -> None:
    job = Pipeline(spark(), lake=str(tmp_path), job="job", typed=False)
    first = job.process(rows([envelope(1), b"{", b"{"]))
    assert (first.quarantine, first.possible_redeliveries) == (2, 0)
    # A redelivery of each, one that has no id to compare, and one of the very same batch, received first.
    marked = rows([envelope(1), b"{", envelope(7, id=""), envelope(3)]).withColumn(
        "redelivery", F.lit("possible")
    )
    new = rows([envelope(3), envelope(4), b"["], received=NOON + timedelta(minutes=1))
    second = job.process(marked.unionByName(new))
    assert second.balanced
    assert (second.messages, second.quarantine, second.duplicates) == (3, 2, 2)
    assert second.possible_redeliveries == 2
    assert second.queues["orders"]["possible_redeliveries"] == 2
    kept = {(row["id"], row["redelivery"]) for row in table(job.store, "messages", "id", "redelivery")}
    assert kept == {("id-1", None), ("id-3", None), ("id-4", None), (None, "possible")}
    seen = {(row["id"], row["redelivery"]) for row in table(job.store, "duplicates", "id", "redelivery")}
    assert seen == {("id-1", "possible"), ("id-3", "possible")}
    quarantine = sorted((row["body"], row["redelivery"] or "") for row in table(job.store, "quarantine"))
    assert quarantine == [(b"[", ""), (b"{", ""), (b"{", ""), (b"{", "possible")]
    assert status(job.store).possible_redeliveries == 2
