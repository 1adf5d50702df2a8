"""One stream per kind of broker: portable receipts, receipts bound to a connection, real offsets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shinar.brokers import Outgoing, connect, parse, traits
from shinar.envelope import build, encode, judge
from shinar.phpmq.server import serve_in_thread

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

COUNT = 3000


def messages(count: int = COUNT) -> list[bytes]:
    good = [encode(build("urn:babel:orders:created", {"n": n})) for n in range(count)]
    return [*good, good[0], b'{"job":"urn:x","attempts":"poison"}']


def drain(spark: SparkSession, folder: Path, options: dict[str, str], runs: int = 1) -> list[dict]:
    """Run the stream to the end of what is there; the rows of its sink."""
    for _ in range(runs):
        query = (
            spark.readStream.format("shinar")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = spark.read.parquet(str(folder / "out")).select(
        "body", "verdict", "queue", "broker", "position", "attempts"
    )
    return [row.asDict() for row in rows.collect()]


def secret(folder: Path, url: str) -> dict[str, str]:
    """By reference, as a URL with a password must be."""
    path = folder / "url"
    path.write_text(url)
    return {
        "urlFile": str(path),
        "landing": str(folder / "landing"),
        "maxRecordsPerTrigger": "2000",
        "minPartitions": "2",
    }


def check(rows: list[dict], bodies: list[bytes], name: str) -> None:
    assert Counter(bytes(row["body"]) for row in rows) == Counter(bodies)
    assert all(row["verdict"] == judge(bytes(row["body"])).kind.value for row in rows)
    assert {row["broker"] for row in rows} == {name}


@pytest.mark.parametrize("name", ["redis", "rabbitmq"])
def test_a_queue_is_drained_exactly_once(spark, tmp_path, live_server, name):
    server = live_server(name)
    queue = f"spark.{tmp_path.name}".replace("_", "-")
    broker = connect(server.url)
    bodies = messages()
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    rows = drain(spark, tmp_path, {**secret(tmp_path, server.url), "queue": queue})
    check(rows, bodies, traits(server.url).name)
    depth = broker.depth(queue)
    assert (depth.ready, depth.reserved or 0) == (0, 0)
    broker.close()
    _no_secret(server.url, tmp_path)


def _no_secret(url: str, folder: Path) -> None:
    password = parse(url).password
    if password:
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "url":
                assert password.encode() not in path.read_bytes(), path


@pytest.mark.live("kafka")
def test_a_topic_is_read_by_offsets(spark, tmp_path, server):
    topic = f"spark-{tmp_path.name}"
    broker = connect(server.url)
    bodies = messages()
    broker.publish(topic, [Outgoing(body=body) for body in bodies])
    options = secret(tmp_path, server.url) | {"queue": topic}
    del options["landing"]
    check(drain(spark, tmp_path, options), bodies, "kafka")
    more = [encode(build("urn:babel:orders:paid", {}))]
    broker.publish(topic, [Outgoing(body=body) for body in more])
    check(drain(spark, tmp_path, options), bodies + more, "kafka")
    frame = spark.readStream.format("shinar").options(**options, startingOffsets="latest").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "other"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress.numInputRows for progress in query.recentProgress) == 0
    broker.close()


def test_the_embedded_broker_and_its_log(spark, tmp_path):
    with serve_in_thread(tmp_path / "data", archive=True) as server:
        broker = connect(server.url)
        bodies = messages()
        broker.publish("orders", [Outgoing(body=body, headers={"a": "b"}) for body in bodies])
        options = secret(tmp_path, server.url) | {"queue": "orders"}
        rows = drain(spark, tmp_path, options, runs=2)
        check(rows, bodies, "phpmq")
        assert broker.depth("orders").ready == 0
        # What was acknowledged is in the broker's log, and the log is an archive and a stream.
        archive = spark.read.format("shinar").load(str(tmp_path / "data"))
        found = [row.asDict() for row in archive.select("body", "verdict", "broker").collect()]
        check(found, bodies, "phpmq")
        again = tmp_path / "again"
        again.mkdir()
        log = {
            "path": str(tmp_path / "data"),
            "queue": "orders",
            "maxRecordsPerTrigger": "1000",
            "minPartitions": "2",
        }
        check(drain(spark, again, log), bodies, "phpmq")
        assert json.loads((again / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]) == {
            "position": 1001
        }
        broker.close()
