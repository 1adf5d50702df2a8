"""Judging an archive of raw bodies in Spark, side by side: ours, the public SDK, from_json, and no work.

    python bench/spark_judge.py [--rows 2000000] [--rounds 2] [--sdk-rows 200000]

One Parquet file of envelopes of about 350 bytes, 2 % of them broken; two cores; every contestant gives all
columns to a sink that does nothing. Rates are rows per second, the best of the rounds; rounds interleave. CPU
is the time of the JVM and its Python workers per row: on a busy machine the steadier figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from shinar.pipeline.rows.validate import judged_frame
from shinar.pipeline.session import session

warnings.simplefilter("ignore")


def bodies(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    for n in range(count):
        own, trace, who = (str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(3))
        message = {
            "job": rng.choice(("urn:babel:orders:created", "urn:babel:orders:paid", "urn:babel:mail:sent")),
            "trace_id": trace,
            "data": {
                "order": n,
                "customer": who,
                "total": round(rng.random() * 900, 2),
                "note": rng.choice(("", "größer", "plain")),
            },
            "meta": {
                "id": own,
                "queue": "orders",
                "lang": rng.choice(("php", "go", "node")),
                "schema_version": 1,
                "created_at": 1_760_000_000_000 + n,
            },
            "attempts": 0,
        }
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
        yield _broken(text, rng) if rng.random() < 0.02 else text


def _broken(text: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        (
            lambda: text[:-7],
            lambda: text.replace(b'"schema_version":1', b'"schema_version":2'),
            lambda: text.replace(b'"attempts":0', b'"attempts":"0"'),
            lambda: text.replace(b'"note":"', b'"note":"\xff'),
            lambda: text.replace(b'"total":', b'"total":1e400,"x":'),
            lambda: text + b" {}",
            lambda: text.replace(b'"job":"urn', b'"job":"","was":"urn'),
        )
    )()


def write_archive(path: Path, rows: int) -> None:
    target = pa.schema([("body", pa.binary())])
    with pq.ParquetWriter(path, target) as writer:
        for start in range(0, rows, 100_000):
            column = list(bodies(min(100_000, rows - start), start))
            writer.write_table(pa.table({"body": pa.array(column, pa.binary())}), row_group_size=100_000)


def cpu_s() -> float:
    """CPU seconds of this process and everything below it, living and dead."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        spent[int(folder.name)] = sum(map(int, fields[11:15]))
    family = {os.getpid()}
    for _ in range(10):
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sum(spent.get(pid, 0) for pid in family) / os.sysconf("SC_CLK_TCK")


# -- the contestants: a raw frame in, all columns out


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def with_sdk(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The public SDK's full check, as its own users would write it."""
    from babelqueue import EnvelopeCodec

    for frame in frames:
        rows = []
        for body in frame["body"]:
            text = bytes(body).decode("utf-8", "surrogateescape")  # as its own transports read bytes
            cause = EnvelopeCodec.poison_cause(text)
            if cause is not None:
                rows.append((None, None, None, None, None, None, None, None, "poison", str(cause)))
                continue
            message = EnvelopeCodec.decode(text)
            accepted = EnvelopeCodec.accepts(message)
            meta = message.get("meta") or {}
            rows.append(
                (
                    message.get("job"),
                    message.get("trace_id"),
                    meta.get("id"),
                    meta.get("queue"),
                    meta.get("lang"),
                    meta.get("created_at"),
                    message.get("attempts"),
                    json.dumps(message.get("data")),
                    "accepted" if accepted else "refused",
                    None,
                )
            )
        yield pd.DataFrame(rows, columns=SDK_COLUMNS)


SDK_COLUMNS = [
    "urn",
    "trace_id",
    "id",
    "queue",
    "lang",
    "created_at",
    "attempts",
    "data",
    "verdict",
    "reason",
]
SDK_SCHEMA = (
    "urn string, trace_id string, id string, queue string, lang string, created_at long, attempts long, "
    "data string, verdict string, reason string"
)
ENVELOPE = (
    "job string, trace_id string, data string, attempts long, "
    "meta struct<id:string,queue:string,lang:string,schema_version:int,created_at:long>"
)


def with_from_json(raw: DataFrame) -> DataFrame:
    parsed = raw.select("body", F.from_json(F.col("body").cast("string"), ENVELOPE).alias("m"))
    good = F.col("m.job").isNotNull() & (F.col("m.meta.schema_version") == 1) & F.col("m.data").isNotNull()
    return parsed.select(
        F.col("m.job").alias("urn"),
        "m.trace_id",
        "m.meta.id",
        "m.meta.queue",
        "m.meta.lang",
        F.timestamp_millis("m.meta.created_at").alias("created_at"),
        "m.attempts",
        "m.data",
        "body",
        F.when(good, "accepted").otherwise("poison").alias("verdict"),
    )


def contestants(
    spark: SparkSession, path: Path, sdk_rows: int
) -> dict[str, tuple[Callable[[], DataFrame], int | None]]:
    raw = lambda: spark.read.parquet(str(path))  # noqa: E731  # read anew each time
    return {
        "identity mapInArrow": (lambda: raw().mapInArrow(identity, "body binary"), None),
        "shinar judged_frame": (lambda: judged_frame(raw()), None),
        "shinar source": (lambda: spark.read.format("shinar").load(str(path)), None),
        "from_json (wrong verdicts)": (lambda: with_from_json(raw()), None),
        "babelqueue mapInPandas": (
            lambda: raw().limit(sdk_rows).repartition(2).mapInPandas(with_sdk, SDK_SCHEMA),
            sdk_rows,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sdk-rows", type=int, default=200_000)
    parser.add_argument("--archive", type=Path, help="keep the generated Parquet here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.archive or Path(folder, "archive.parquet")
        if not path.exists():
            write_archive(path, args.rows)
        rows = pq.ParquetFile(path).metadata.num_rows
        spark = session("local[2]", conf={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        best: dict[str, Figure] = {}
        for round_number in range(args.rounds + 1):
            for name, (frame, count) in contestants(spark, path, args.sdk_rows).items():
                figure = measured(frame(), count or rows)
                if round_number:  # the first round warms the JVM up
                    best[name] = figure.better(best.get(name))
                    print(f"  round {round_number}  {name:28s} {figure}", flush=True)
        report(best, rows)
        spark.stop()


class Figure(NamedTuple):
    rate: float
    cpu_us: float

    def better(self, other: Figure | None) -> Figure:
        return self if other is None else Figure(max(self.rate, other.rate), min(self.cpu_us, other.cpu_us))

    def __str__(self) -> str:
        return f"{self.rate:12,.0f} rows/s {self.cpu_us:7.2f} us CPU a row"


def measured(frame: DataFrame, rows: int) -> Figure:
    cpu, begin = cpu_s(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Figure(rows / (time.perf_counter() - begin), (cpu_s() - cpu) / rows * 1e6)


def report(best: dict[str, Figure], rows: int) -> None:
    ours = best["shinar judged_frame"].better(best["shinar source"])
    print(f"\n{rows:,} rows{'':44s} ours / this by time   by CPU")
    for name, figure in best.items():
        print(f"{name:28s} {figure} {ours.rate / figure.rate:10.2f} {figure.cpu_us / ours.cpu_us:15.2f}")
    print("\nasked for: 10 (aim 15) of the SDK, 1 of from_json, 0.33 (aim 0.5) of identity")


if __name__ == "__main__":
    main()
