"""A streaming job to be killed: queue -> Parquet. Arguments: URL, folder, `once` or `on`, master."""

from __future__ import annotations

import sys
import warnings

from shinar.pipeline.session import session

warnings.simplefilter("ignore")


def main(url: str, folder: str, mode: str, master: str = "local[2,4]") -> None:
    # Four tries a task, as on a cluster: a Python worker may die without failing the query.
    conf = {
        "spark.driver.memory": "700m",
        "spark.executor.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = session(master, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    reader = spark.readStream.format("shinar").option("url", url).option("queue", "orders")
    frame = reader.option("landing", f"{folder}/landing").option("maxRecordsPerTrigger", 1500)
    writer = (
        frame.option("minPartitions", 2)
        .load()
        .writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    query = (writer.trigger(availableNow=True) if mode == "once" else writer).start()
    print("ready", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
