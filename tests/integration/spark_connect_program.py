"""Reads, streams and writes over Spark Connect; prints its findings as one JSON object. Takes a folder."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

from pyspark.sql import SparkSession  # noqa: E402  # the environment comes first

from shinar.brokers import Outgoing, connect  # noqa: E402  # likewise
from shinar.envelope import build, encode  # noqa: E402  # likewise
from shinar.errors import Unsupported  # noqa: E402  # likewise
from shinar.pipeline import Pipeline  # noqa: E402  # likewise
from shinar.pipeline.session import register  # noqa: E402  # likewise


def main(folder: Path) -> dict[str, object]:
    url = f"sqlite://{folder}/queue.db"
    queue = connect(url)
    bodies = [encode(build("urn:babel:orders:created", {"n": n})) for n in range(100)]
    queue.publish("orders", [Outgoing(body=body) for body in [*bodies, b"{"]])
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = register(builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
    found: dict[str, object] = {"session": type(spark).__module__}
    browsed = spark.read.format("shinar").option("url", url).option("queue", "orders").load()
    found["browsed"] = {row["verdict"]: row["count"] for row in browsed.groupBy("verdict").count().collect()}
    facts = spark.sql("select 'urn:babel:orders:paid' urn, '{\"total\":99.90}' data")
    facts.write.format("shinar").mode("append").option("url", url).option("queue", "paid").save()
    found["written"] = queue.depth("paid").ready
    stream = spark.readStream.format("shinar").option("url", url).option("queue", "orders")
    copies = stream.option("landing", str(folder / "landing")).load().select("body").writeStream
    target = copies.format("shinar").option("url", url).option("queue", "copies")
    query = target.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    found["lag"] = json.loads(query.recentProgress[-1].sources[0].latestOffset)
    found["left"] = queue.depth("orders").ready
    found["copied"] = sorted(d.body for d in queue.browse("copies")) == sorted([*bodies, b"{"])
    try:
        Pipeline(spark, url=url, queue="copies", lake=str(folder / "lake")).start(once=True)
    except Unsupported as exc:
        found["pipeline"] = str(exc)
    spark.stop()
    queue.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
