"""What the commands over a lake share: the store, a session, spans of time, plain tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from shinar.clock import SYSTEM
from shinar.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from shinar.cli.support.settings import Settings

_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


_STREAM_LOG: Final = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
#: Dates go no further back than the year 1.
_LONGEST_S: Final = 1000 * 365 * 86_400


def lake_store(settings: Settings) -> Any:
    if not settings["lake"]:
        raise ConfigError("name the folder of the tables with --lake", setting="lake")
    try:
        from shinar.pipeline.lake.store import existing_store
    except ModuleNotFoundError as exc:
        raise MissingExtra("the pipeline", str(exc.name), "spark") from None
    return existing_store(settings["lake"])


def spark_session(master: str | None = None, conf: dict[str, Any] | None = None) -> Any:
    """A session, with a missing extra or a missing Java as one sentence."""
    import warnings

    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    try:
        from shinar.pipeline.session import session
    except ModuleNotFoundError as exc:
        raise MissingExtra("the pipeline", str(exc.name), "spark") from None
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    texts = {name: str(value) for name, value in (conf or {}).items()}
    try:
        spark = session(master or "local[*]", conf=texts)
    except PySparkRuntimeError as exc:
        raise ConfigError(f"Spark does not start ({exc}); it needs Java 17: try `shinar doctor`") from None
    except Py4JError as exc:
        where = f" on --master {master}" if master else ""
        cause = next((line for line in str(exc).splitlines() if line.startswith(": ")), ": unknown")[2:]
        raise ConfigError(
            f"Spark does not start{where} ({cause[:200]}); is that master reachable? Try `shinar doctor`"
        ) from None
    spark.sparkContext.setLogLevel("ERROR")
    # What ends a stream is raised here as well, and told in one sentence instead of a page of Java.
    java: Any = spark._jvm
    logs = java.org.apache.logging.log4j
    logs.core.config.Configurator.setLevel(_STREAM_LOG, logs.Level.OFF)
    return spark


def span_s(text: str, setting: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no length of time; write 30m, 12h, 7d", setting=setting)
    seconds = float(match[1]) * _SPANS[match[2]]
    if seconds > _LONGEST_S:
        raise ConfigError(f"{text} is more than a thousand years", setting=setting)
    return seconds


def moment(text: str | None) -> datetime | None:
    """`24h` ago, or a date (UTC unless it says otherwise)."""
    if not text:
        return None
    if text[-1:] in "smhdw" and text[:-1].replace(".", "").isdigit():
        return SYSTEM.utc_now() - timedelta(seconds=span_s(text, "since"))
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is neither a span (24h, 7d) nor a date", setting="since") from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Plain columns; what looks like a number goes to the right."""
    if not rows:
        return
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    right = [all(re.fullmatch(r"[-\d,.% ]*", str(row[i])) for row in rows) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            str(cell).rjust(width) if to_right else str(cell).ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())
    print()
