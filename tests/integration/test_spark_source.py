"""The source and the sink inside Spark, on a real queue (a SQLite file: several processes share it)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from shinar.brokers import Broker, Outgoing, connect
from shinar.envelope import build, encode, judge
from shinar.observe import Metrics
from shinar.pipeline.metrics import PipelineMetrics
from shinar.pipeline.rows import schema
from shinar.pipeline.rows.validate import judged_frame
from unit.pipeline.fuzz import bodies as fuzzed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/queue.db"


@pytest.fixture
def broker(url: str) -> Broker:
    opened = connect(url)
    yield opened
    opened.close()


def put(
    broker: Broker, count: int, urn: str = "urn:babel:orders:created", queue: str = "orders"
) -> list[bytes]:
    bodies = [encode(build(urn, {"n": n})) for n in range(count)]
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    return bodies


def stream(spark: SparkSession, url: str, folder: Path, **more: object):
    reader = spark.readStream.format("shinar").option("url", url).option("queue", "orders")
    reader = reader.option("landing", str(folder / "landing"))
    for name, value in more.items():
        reader = reader.option(name, str(value))
    return reader.load()


def drain(frame, folder: Path):
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    return [bytes(row.body) for row in spark.read.parquet(str(folder / "out")).select("body").collect()]


def test_a_batch_read_is_a_browse(spark, url, broker):
    bodies = put(broker, 30)
    frame = spark.read.format("shinar").option("url", url).option("queue", "orders").load()
    assert frame.schema == schema.SPARK
    assert sorted(bytes(row.body) for row in frame.collect()) == sorted(bodies)
    assert broker.depth("orders").ready == 30
    assert {row.broker for row in frame.collect()} == {"sqlite"}


def test_filters_reach_the_source_and_change_no_answer(spark, url, broker):
    put(broker, 20)
    put(broker, 5, "urn:babel:orders:paid")
    put(broker, 7, queue="other")
    frame = spark.read.format("shinar").option("url", url).option("queue", "orders,other").load()
    paid = frame.where("urn = 'urn:babel:orders:paid'")
    assert paid.count() == 5
    assert frame.where("queue = 'other'").count() == 7
    assert frame.where("queue = 'other'").rdd.getNumPartitions() == 1
    assert frame.where("queue = 'nowhere'").count() == 0
    assert frame.where("urn like 'urn:babel:orders:p%'").count() == 5
    assert frame.where("received_at > timestamp'2020-01-01 00:00:00'").count() == 32
    assert frame.where("created_at < timestamp'2020-01-01 00:00:00'").count() == 0
    assert frame.where(F.col("urn").isin("urn:babel:orders:paid", "urn:x")).count() == 5


def test_available_now_drains_the_queue_in_bounded_batches(spark, url, broker, tmp_path):
    bodies = put(broker, 250)
    query = drain(stream(spark, url, tmp_path, maxRecordsPerTrigger=100), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress] == [100, 100, 50]
    assert sorted(written(spark, tmp_path)) == sorted(bodies)
    depth = broker.depth("orders")
    assert (depth.ready, depth.reserved) == (0, 0)
    lag = json.loads(query.recentProgress[0].sources[0].latestOffset)
    assert lag == {
        "lag": {"orders": {"ready": 250, "reserved": 0, "delayed": 0}},
        "redelivered": 0,
        "possible_redeliveries": 0,
        "came_again": 0,
    }
    metrics, left = Metrics(), []
    for progress in query.recentProgress:
        PipelineMetrics(metrics, "job").progress(progress)
        left.append(metrics.value("shinar_pipeline_lag", queue="orders"))
    assert left == [150, 50, 0]


def test_a_stream_may_start_on_an_empty_queue(spark, url, broker, tmp_path):
    drain(stream(spark, url, tmp_path), tmp_path)
    bodies = put(broker, 7)
    for _ in range(2):
        drain(stream(spark, url, tmp_path), tmp_path)
        assert sorted(written(spark, tmp_path)) == sorted(bodies)


def test_a_second_run_goes_on_where_the_first_stopped(spark, url, broker, tmp_path):
    first = put(broker, 10)
    drain(stream(spark, url, tmp_path), tmp_path)
    second = put(broker, 10)
    drain(stream(spark, url, tmp_path), tmp_path)
    drain(stream(spark, url, tmp_path), tmp_path)
    assert sorted(written(spark, tmp_path)) == sorted(first + second)
    assert list((tmp_path / "landing").glob("default/*/batch-*")) == [], "swept at the next start"


def test_many_tasks_share_a_batch(spark, url, broker, tmp_path):
    bodies = put(broker, 9000)
    query = drain(stream(spark, url, tmp_path, minPartitions=4), tmp_path)
    (progress,) = query.recentProgress
    assert len(json.loads(progress.sources[0].endOffset)["partitions"]) == 4
    assert sorted(written(spark, tmp_path)) == sorted(bodies)


def test_a_live_query_takes_what_comes(spark, url, broker, tmp_path):
    query = (
        stream(spark, url, tmp_path)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        bodies = put(broker, 10)
        _until(lambda: sum(progress.numInputRows for progress in query.recentProgress) == 10)
        bodies += put(broker, 5)
        _until(lambda: sum(progress.numInputRows for progress in query.recentProgress) == 15)
        empty = [progress for progress in query.recentProgress if progress.numInputRows == 0]
        assert all(progress.batchId <= 2 for progress in empty), "an idle queue makes no batches"
    finally:
        query.stop()
    assert sorted(written(spark, tmp_path)) == sorted(bodies)


def _until(done, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


# -- archives


def test_archives_of_every_kind_give_the_rows_of_the_judge(spark, tmp_path):
    column = [body for body in fuzzed(2000, 5) if b"\n" not in body and body.strip(b"\r\n")]
    want = sorted((body, judge(body).kind.value) for body in column)
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_bytes(b"\n".join(body.rstrip(b"\r") for body in column))
    pq.write_table(pa.table({"body": pa.array(column, pa.binary())}), table, row_group_size=300)
    for path, parts in ((lines, 3), (table, 3)):
        frame = spark.read.format("shinar").option("minPartitions", parts).load(str(path))
        assert frame.rdd.getNumPartitions() >= 3
        found = sorted((bytes(row.body), row.verdict) for row in frame.select("body", "verdict").collect())
        assert found == want
    mapped = judged_frame(spark.read.parquet(str(table))).select("body", "verdict").collect()
    assert sorted((bytes(row.body), row.verdict) for row in mapped) == want


def test_export_records_keep_what_was_known(spark, tmp_path):
    body = encode(build("urn:babel:orders:created", {}))
    (tmp_path / "x.export.jsonl").write_text(
        json.dumps(
            {"body": body.decode(), "queue": "orders", "headers": {"a": "b"}, "received_ms": 1760000000000}
        )
        + "\n"
        + json.dumps({"body_base64": "/w==", "queue": "orders"})
    )
    rows = spark.read.format("shinar").load(str(tmp_path / "x.export.jsonl")).collect()
    assert [(row.queue, row.verdict, row.headers) for row in rows] == [
        ("orders", "accepted", {"a": "b"}),
        ("orders", "poison", None),
    ]
    assert rows[0].received_at is not None


def test_kept_segments_are_an_archive(spark, url, broker, tmp_path):
    bodies = put(broker, 40)
    drain(stream(spark, url, tmp_path, keepSegments="true"), tmp_path)
    drain(stream(spark, url, tmp_path, keepSegments="true"), tmp_path)
    (kept,) = (tmp_path / "landing").glob("default/*/kept")
    rows = spark.read.format("shinar").load(str(kept)).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)


# -- the sink


def test_bodies_pass_through_untouched(spark, url, broker):
    bodies = [*put(broker, 5), b"\xff poison"]
    broker.publish("orders", [Outgoing(body=bodies[-1], headers={"a": "b"})])
    rows = spark.read.format("shinar").option("url", url).option("queue", "orders").load()
    rows.write.format("shinar").mode("append").option("url", url).option("queue", "copy").save()
    copies = list(broker.browse("copy"))
    assert sorted(d.body for d in copies) == sorted(bodies)
    assert [dict(d.headers) for d in copies if d.body == bodies[-1]] == [{"a": "b"}]


def test_rows_become_envelopes_with_the_same_ids_each_time(spark, url, broker):
    frame = spark.createDataFrame(
        [
            ("urn:babel:a:b", '{"price":99.90}', "t1"),
            ("urn:babel:a:b", '{"price":99.90}', "t1"),
            ("urn:babel:a:c", "{}", None),
        ],
        "urn string, data string, trace_id string",
    ).coalesce(1)
    for _ in range(2):
        frame.write.format("shinar").mode("append").option("url", url).option("queue", "out").option(
            "jobId", "j"
        ).save()
    judged = [judge(delivery.body) for delivery in broker.browse("out")]
    assert all(verdict.accepts for verdict in judged)
    ids = [verdict.message.meta.id for verdict in judged]
    assert len(ids) == 6
    assert len(set(ids)) == 3, "equal rows are different messages; a second run has the same ids"
    assert any(b'"data":{"price":99.90}' in verdict.body for verdict in judged), "the text as it was given"
    assert {verdict.message.meta.queue for verdict in judged} == {"out"}


def test_structs_become_payloads_and_rows_choose_their_queue(spark, url, broker):
    frame = spark.sql(
        "select 'urn:babel:a:b' urn, named_struct('n', 1, 'tags', array('x')) data, 'q' || id queue "
        "from range(2)"
    )
    frame.write.format("shinar").mode("append").option("url", url).save()
    for queue in ("q0", "q1"):
        (delivery,) = broker.browse(queue)
        assert judge(delivery.body).message.data == {"n": 1, "tags": ["x"]}


def test_a_streamed_batch_is_written_with_its_own_ids(spark, url, broker, tmp_path):
    put(broker, 20)
    source = stream(spark, url, tmp_path, maxRecordsPerTrigger=10)
    built = source.selectExpr("'urn:babel:x:y' urn", "data", "trace_id")
    query = (
        built.writeStream.format("shinar")
        .option("url", url)
        .option("queue", "next")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    messages = [judge(delivery.body).message for delivery in broker.browse("next")]
    assert len({message.meta.id for message in messages}) == len(messages) == 20


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("'u' urn", "urn and data"),
        ("'u' urn, '{}' data, 1 qty", "does not use this column"),
        ("'u' urn, '[1]' data", "no valid message"),
    ],
)
def test_rows_the_sink_cannot_use_are_refused(spark, url, columns, text):
    with pytest.raises(PySparkException, match=text):
        spark.sql(f"select {columns}").write.format("shinar").mode("append").option("url", url).option(
            "queue", "q"
        ).save()


# -- options and secrets


def test_a_misspelt_option_is_refused_with_a_guess(spark, url, tmp_path):
    with pytest.raises(PySparkException, match="did you mean maxRecordsPerTrigger"):
        stream(spark, url, tmp_path, maxRecordPerTriger=5).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination()


def test_a_url_with_a_password_is_refused_in_plain_and_never_shown(spark, tmp_path):
    with pytest.raises(PySparkException, match="urlEnv or urlFile") as caught:
        spark.read.format("shinar").option("url", "redis://:hunter22@127.0.0.1/0/orders").load().collect()
    assert "hunter22" not in str(caught.value).split("holds a password")[1]


def test_a_url_can_come_from_a_file(spark, url, broker, tmp_path):
    put(broker, 3)
    secret = tmp_path / "url"
    secret.write_text(url + "\n")
    frame = spark.read.format("shinar").option("urlFile", str(secret)).option("queue", "orders").load()
    assert frame.count() == 3
    assert url not in frame._jdf.queryExecution().toString()


def test_a_url_can_come_from_the_environment(spark, url, broker, monkeypatch):
    put(broker, 3)
    os.environ["SHINAR_TEST_URL"] = url
    try:
        frame = (
            spark.read.format("shinar").option("urlEnv", "SHINAR_TEST_URL").option("queue", "orders").load()
        )
        with pytest.raises(PySparkException, match="is not set here"):
            frame.count()  # the JVM was started before: executors lack it, and the error says what to do
    finally:
        del os.environ["SHINAR_TEST_URL"]


def test_a_queue_only_one_process_sees_is_refused(spark):
    with pytest.raises(PySparkException, match="each see their own"):
        spark.read.format("shinar").option("url", "memory://m/orders").load().collect()


def test_a_checkpoint_that_was_set_back_is_an_error_or_goes_on(spark, url, broker, tmp_path):
    checkpoint = tmp_path / "checkpoint"

    def run(**more: object) -> None:
        writer = stream(spark, url, tmp_path, **more).writeStream.format("noop")
        writer.option("checkpointLocation", str(checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    put(broker, 5)
    run()
    run()  # settles the batch for good
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        run()
    run(failOnDataLoss="false")


@pytest.mark.skipif(not os.environ.get("SHINAR_HEAVY"), reason="a JVM of its own: set SHINAR_HEAVY=1")
def test_spark_connect_reads_streams_and_writes(tmp_path):
    """In a process of its own: one process has either classic sessions or remote ones."""
    pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
    program = Path(__file__).with_name("spark_connect_program.py")
    with open(tmp_path / "log", "wb") as log:
        done = subprocess.run(
            [sys.executable, program, tmp_path], stdout=subprocess.PIPE, stderr=log, timeout=500
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect")
    assert found["browsed"] == {"accepted": 100, "poison": 1}
    assert found["written"] == 1
    assert found["lag"] == {"lag": {"orders": {"ready": 101, "reserved": 0, "delayed": 0}}}
    assert (found["left"], found["copied"]) == (0, True)
    assert "run it with a classic session" in found["pipeline"]
