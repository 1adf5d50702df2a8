"""What users hand us of Spark: several sessions in one application, frames of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shinar.errors import ConfigError
from shinar.pipeline.rows.validate import judged_frame
from shinar.pipeline.session import register
from unit.pipeline.lakes import envelope, spark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]


def test_a_second_session_gets_the_source_too(tmp_path: Path) -> None:
    (tmp_path / "bodies.jsonl").write_bytes(envelope(1) + b"\n" + envelope(2))
    first = spark().newSession()
    second = first.newSession()
    first.createDataFrame([], "n int")  # the first is the active one, and stays it
    for session in (first, second, first):
        rows = register(session).read.format("shinar").load(str(tmp_path / "bodies.jsonl"))
        assert [row.id for row in rows.orderBy("id").collect()] == ["id-1", "id-2"]


def test_a_frame_without_bodies_is_refused_before_a_task_runs() -> None:
    with pytest.raises(ConfigError, match="no column body; there are text"):
        judged_frame(spark().createDataFrame([("x",)], "text string"))
