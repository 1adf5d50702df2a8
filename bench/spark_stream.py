"""Streaming a queue of the embedded broker into Spark, beside a bare client that reserves and acknowledges.

    python bench/spark_stream.py [--rows 2000000] [--batch 200000]

Both drain the same number of messages of about 350 bytes from a broker in its own process, durable on disk.
Spark judges every row and gives it to a sink that does nothing; its rate is over the second half of the
batches, because a JVM compiles what it runs for some ten seconds and a stream runs for days. Asked for: 0.6
of the bare client.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode
from shinar.phpmq.server import serve_in_thread
from shinar.pipeline.session import session

warnings.simplefilter("ignore")
RESERVE = 4_000


def serve(folder: str, pipe: Connection) -> None:
    with serve_in_thread(folder) as server:
        pipe.send(server.url)
        pipe.recv()


def fill(url: str, rows: int) -> None:
    broker = connect(url)
    payload = {"customer": "c" * 36, "note": "n" * 60, "total": 99.5}
    for start in range(0, rows, 10_000):
        count = min(10_000, rows - start)
        bodies = [
            encode(build("urn:babel:orders:created", {"n": start + n, **payload})) for n in range(count)
        ]
        broker.publish("orders", [Outgoing(body=body) for body in bodies])
    broker.close()


def bare(url: str, rows: int) -> float:
    broker = connect(url)
    begin, left = time.perf_counter(), rows
    while left:
        deliveries = broker.reserve("orders", RESERVE, 1.0)
        broker.ack(deliveries)
        left -= len(deliveries)
    broker.close()
    return rows / (time.perf_counter() - begin)


def streamed(url: str, folder: Path, batch: int) -> tuple[float, int]:
    spark = session("local[2]", conf={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    frame = (
        spark.readStream.format("shinar")
        .option("url", url)
        .option("queue", "orders")
        .option("landing", str(folder / "landing"))
        .option("maxRecordsPerTrigger", batch)
        .load()
    )
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    batches = batches[len(batches) // 2 :]
    taken_s = sum(progress.durationMs["triggerExecution"] for progress in batches) / 1000
    total = sum(progress.numInputRows for progress in query.recentProgress)
    spark.stop()
    return sum(progress.numInputRows for progress in batches) / taken_s, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=200_000)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = spawn.Process(target=serve, args=(f"{folder}/data", theirs))
        process.start()
        url = ours.recv()
        fill(url, args.rows)
        client = bare(url, args.rows)
        fill(url, args.rows)
        spark, total = streamed(url, Path(folder), args.batch)
        assert total == args.rows, "every message, once"
        ours.send("stop")
        process.join()
    print(f"bare client   {client:10,.0f} messages/s")
    print(
        f"Spark stream  {spark:10,.0f} messages/s   {spark / client:.2f} of the bare client (asked for: 0.6)"
    )


if __name__ == "__main__":
    main()
