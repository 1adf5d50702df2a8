"""A Spark session that is ready for `format("shinar")`, with nothing but pip. Must not know a broker."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Final

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from shinar.pipeline import process_guard
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
    # On a loaded machine a Python worker takes longer to start and to answer than Spark's 15 seconds.
    "spark.python.authenticate.socketTimeout": "5m",
    "spark.network.timeout": "10m",
    "spark.executor.heartbeatInterval": "30s",
    # A URL never shows in a plan; Spark's own rule covers keys with "url", ours say so again.
    "spark.sql.redaction.options.regex": "(?i)url|password|secret|token",
}
#: Only where the driver is this machine: elsewhere executors could not call back.
_LOCAL_ONLY: Final = ("spark.driver.host", "spark.driver.bindAddress")
#: Times a task may fail before the job does. Spark tries it once on a local master and four times on others.
TASK_FAILURES: Final = 4
_LOCAL_MASTER: Final = re.compile(r"local(?:\[([0-9]+|\*)\])?")


def session(
    master: str = "local[*]", name: str = "shinar", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, or a new one, with the source registered. Its JVM ends with this process."""
    # Workers are started as `python3` from PATH unless told otherwise: they need this environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = dict(DEFAULTS)
    if not master.startswith(("local", "spark://127.0.0.1", "spark://localhost")):
        for key in _LOCAL_ONLY:
            settings.pop(key)
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(retrying(master))
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, value)
    return register(_launched(builder))


def retrying(master: str) -> str:
    """`local[2]` as `local[2,4]`: a local master that retries tasks as a cluster does."""
    local = _LOCAL_MASTER.fullmatch(master)
    return f"local[{local[1] or 1},{TASK_FAILURES}]" if local else master


def _launched(builder: SparkSession.Builder) -> SparkSession:
    known, before = SparkContext._gateway, process_guard.below(os.getpid())
    try:
        spark = builder.getOrCreate()
    except BaseException:
        process_guard.end_new(before)  # A JVM that is half started would go on without us.
        raise
    gateway = SparkContext._gateway
    if gateway is not None and gateway is not known and getattr(gateway, "proc", None) is not None:
        process_guard.guard(gateway.proc.pid)
    return spark


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
