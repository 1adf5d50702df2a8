"""What the tests of the tables share: one small Spark session, and judged rows made without a broker."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import UTC, datetime, timedelta
from functools import cache

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shinar.pipeline.rows import schema
from shinar.pipeline.rows import validate as judged

#: Every test's day.
NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@cache
def spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    # Tests have few rows and many plans: compiling code for each, or planning it again, is the whole cost.
    own = session.newSession()
    for name, value in {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    }.items():
        own.conf.set(name, value)
    return own


def envelope(
    number: int,
    urn: str = "urn:babel:orders:created",
    data: dict | None = None,
    *,
    at: datetime = NOON,
    lang: str = "php",
    trace: str | None = None,
    id: str | None = None,
    attempts: int = 0,
    dead: dict | None = None,
    **extra: object,
) -> bytes:
    """A body as an SDK would write it, with an id made from `number`."""
    document = {
        "job": urn,
        "trace_id": trace or f"trace-{number}",
        "data": {"order_id": number} if data is None else data,
        "meta": {
            "id": f"id-{number}" if id is None else id,
            "queue": "orders",
            "lang": lang,
            "schema_version": 1,
            "created_at": int(at.timestamp() * 1000),
        },
        "attempts": attempts,
        **extra,
    }
    if dead is not None:
        document["dead_letter"] = {
            "reason": "failed",
            "error": None,
            "exception": None,
            "failed_at": int(at.timestamp() * 1000),
            "original_queue": "orders",
            "attempts": 3,
            "lang": "php",
            **dead,
        }
    return msgspec.json.encode(document)


def rows(
    bodies: list[bytes],
    *,
    queue: str | list[str] = "orders",
    received: datetime | list[datetime] = NOON + timedelta(seconds=2),
    properties: list[dict | None] | None = None,
) -> DataFrame:
    """Judged rows of the source's schema, as if just read from a broker."""
    count = len(bodies)
    queues = [queue] * count if isinstance(queue, str) else queue
    times = [received] * count if isinstance(received, datetime) else received
    batch = judged.judged_batch(
        pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "queue": pa.array(queues, pa.string()),
                "received_at": pa.array(times, pa.timestamp("us", tz="UTC")),
                "position": pa.array([str(place) for place in range(count)], pa.string()),
                "properties": pa.array(properties or [None] * count, schema.ARROW.field("properties").type),
            }
        ),
        broker="test",
    )
    return spark().createDataFrame(pa.Table.from_batches([batch]), schema=schema.SPARK).repartition(2)


def table(store: object, name: str, *columns: str) -> list[dict]:
    """A table's rows through pyarrow, not through the code that wrote it."""
    import pyarrow.parquet as pq

    parts = [pq.read_table(path) for path in store.files(name)]
    if not parts:
        return []
    whole = pa.concat_tables(parts, promote_options="default")
    return whole.select(list(columns) or whole.column_names).to_pylist()
