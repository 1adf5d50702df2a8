"""The lag of a stream from what Spark's progress events show, for each kind of offset."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shinar.observe import Metrics
from shinar.pipeline.batch.journal import Balance, BatchId, Manifest
from shinar.pipeline.metrics import PipelineMetrics, lag_of

QUEUED = {"lag": {"a": {"ready": 90, "reserved": 5, "delayed": 0}, "b": {"ready": 3}, "c": {"ready": None}}}


@pytest.mark.parametrize(
    ("latest", "end", "lag"),
    [
        (QUEUED, {"partitions": [["a", 20, None], ["a", 30, 5], ["b", 4, None]]}, {"a": 40, "b": 0}),
        (QUEUED, {"shares": [["a", 20, None]]}, {"a": 70, "b": 3}),
        (QUEUED, {}, {"a": 90, "b": 3}),
        ({"t": {"0": 10, "1": 7}, "u": {"0": 2}}, {"t": {"0": 4, "1": 7}}, {"t": 6, "u": 2}),
        ({"position": 1001}, {"position": 900}, {"": 101}),
        ({}, {}, {}),
    ],
)
def test_what_a_batch_leaves_behind(latest, end, lag):
    assert lag_of(latest, end) == lag


def test_redeliveries_are_shown_under_their_former_name_too():
    metrics = Metrics()
    source = SimpleNamespace(latestOffset='{"lag":{},"redelivered":7,"came_again":7}', endOffset="null")
    PipelineMetrics(metrics, "orders").progress(SimpleNamespace(sources=[source]))
    for name in ("redelivered", "came_again"):
        assert metrics.value(f"shinar_pipeline_{name}", job="orders") == 7


def test_batches_are_counted_by_queue_and_table():
    metrics = Metrics()
    figures = PipelineMetrics(metrics, "orders")
    balances = (Balance("a", 10, 7, 2, 1, 1, 2), Balance("b", 5, 5, 0, 0))
    manifest = Manifest(BatchId("orders", "e", 0), (), balances, took_ms=1500)
    for _ in range(2):
        figures.batch(manifest)
    figures.failures(0)
    figures.progress(None)
    text = metrics.render()
    assert 'shinar_pipeline_received_total{job="orders",queue="a"} 20' in text
    assert 'shinar_pipeline_rows_total{job="orders",queue="a",table="quarantine"} 4' in text
    assert 'shinar_pipeline_possible_redeliveries_total{job="orders",queue="a"} 4' in text
    assert 'shinar_pipeline_batches_total{job="orders"} 2' in text
    assert 'shinar_pipeline_batch_seconds_sum{job="orders"} 3' in text
    assert metrics.value("shinar_pipeline_rows_total", table="messages") == 24
