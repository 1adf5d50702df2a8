"""A Spark session that is ready for `format("shinar")`, with nothing but pip. Knows no broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from shinar.pipeline.source.provider import ShinarSource

#: Sane on a laptop; each can be overridden. On a cluster only those that concern our source matter.
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60s",
    # A URL never shows in a plan; Spark's own rule covers keys with "url", ours say so again.
    "spark.sql.redaction.options.regex": "(?i)url|password|secret|token",
}
#: Only where the driver is this machine: elsewhere executors could not call back.
_LOCAL_ONLY: Final = ("spark.driver.host", "spark.driver.bindAddress")


def session(
    master: str = "local[*]", name: str = "shinar", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one, with the source registered."""
    # Workers are started as `python3` from PATH unless told otherwise: they need this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(DEFAULTS)
    if not master.startswith(("local", "spark://127.0.0.1", "spark://localhost")):
        for key in _LOCAL_ONLY:
            settings.pop(key)
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make `format("shinar")` known to a session that somebody else built."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(ShinarSource)
    except AnalysisException as exc:
        # Spark asks the active session whether the name is free, not this one. Beside a second session
        # that knows the source already, this one must be the active one first.
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        spark.createDataFrame([], "made_active int")
        spark.dataSource.register(ShinarSource)
    return spark
