"""The whole pipeline to tables against reading and rewriting the same Parquet with no work.

One run, one session, both ways over the same file of raw bodies: `rewrite` reads and writes the bodies;
`pipeline` judges, dedupes and commits tables, `typed` also routes to the per-URN tables. The target is a
ratio of at most 5. CPU is that of all processes: on a busy machine the steadier figure. With --growth it does
the pipeline at 1, 4 and 16 times the rows and prints time and peak memory of the JVM, of the largest Python
worker and of this process: time must grow in proportion, memory must not.

    python bench/spark_pipeline.py --rows 2000000
    python bench/spark_pipeline.py --rows 1000000 --growth
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import uuid
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

warnings.filterwarnings("ignore", category=FutureWarning)

from pyspark.sql import SparkSession  # noqa: E402  # the filter comes first

from shinar.pipeline.pipeline import Pipeline  # noqa: E402  # likewise
from shinar.pipeline.session import session  # noqa: E402  # likewise

#: Rows per Parquet file of the input.
FILE_ROWS = 250_000
URNS = ("orders:created", "orders:paid", "mails:sent", "users:registered", "stock:changed")
LANGS = ("php", "go", "python", "java", "dotnet", "node")


def body(number: int, chance: random.Random) -> bytes:
    """About 350 bytes; 2 % are broken."""
    text = json.dumps(
        {
            "job": f"urn:babel:{URNS[number % len(URNS)]}",
            "trace_id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "data": {
                "order_id": number,
                "amount": (number % 10_000) / 100,
                "customer": {"id": number % 5000, "name": f"customer {number % 5000}"},
                "items": ["sku-1", "sku-2"],
            },
            "meta": {
                "id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
                "queue": "orders",
                "lang": LANGS[number % len(LANGS)],
                "schema_version": 1,
                "created_at": 1_790_000_000_000 + number,
            },
            "attempts": 0,
        },
        separators=(",", ":"),
    ).encode()
    return text[:-9] if number % 50 == 49 else text


def plant_apart(folder: Path, rows: int, duplicates: float) -> None:
    """In a process of its own: what making the bodies takes is not the pipeline's memory."""
    made = multiprocessing.get_context("spawn").Process(target=plant, args=(folder, rows, duplicates))
    made.start()
    made.join()


def plant(folder: Path, rows: int, duplicates: float) -> None:
    chance = random.Random(1)
    folder.mkdir(parents=True)
    for start in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - start)
        bodies = [body(start + place, chance) for place in range(count)]
        for place in range(int(count * duplicates)):
            bodies[-1 - place] = bodies[place]
        table = pa.table({"body": pa.array(bodies, pa.binary()), "queue": pa.array(["orders"] * count)})
        pq.write_table(table, folder / f"{start:012d}.parquet", row_group_size=50_000)


def family(jvm: int) -> dict[int, float]:
    """CPU seconds of the JVM and all its Python workers by process, those of dead children included."""
    ticks = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = sum(map(int, fields[11:15])) / ticks
    found, todo = {}, [jvm]
    while todo:
        pid = todo.pop()
        found[pid] = spent.get(pid, 0.0)
        todo += children.get(pid, [])
    return found


def cpu_s(jvm: int) -> float:
    """User and system time of this process, the JVM and its workers."""
    return sum(family(jvm).values()) + sum(os.times()[:2])


def peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # gone meanwhile
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def jvm_pid(spark: SparkSession) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def rewrite(spark: SparkSession, source: Path, work: Path) -> float:
    target = work / f"rewritten-{uuid.uuid4().hex[:6]}"
    started = time.perf_counter()
    spark.read.parquet(str(source)).write.parquet(str(target))
    spent = time.perf_counter() - started
    shutil.rmtree(target)
    return spent


def pipeline(spark: SparkSession, source: Path, work: Path, rows: int, *, typed: bool) -> float:
    lake = work / f"lake-{uuid.uuid4().hex[:6]}"
    started = time.perf_counter()
    job = Pipeline(spark, lake=str(lake), job="bench", typed=typed)
    done = job.process(spark.read.parquet(str(source)))
    spent = time.perf_counter() - started
    if done.received != rows or not done.balanced:
        raise SystemExit(f"the pipeline lost rows: {done}")
    shutil.rmtree(lake)
    return spent


def compare(spark: SparkSession, args: argparse.Namespace, work: Path) -> None:
    source = work / "bodies"
    plant(source, args.rows, args.duplicates)
    rewrite(spark, source, work)
    pipeline(spark, source, work, args.rows, typed=True)
    jvm = jvm_pid(spark)
    ways = {
        "rewrite": lambda: rewrite(spark, source, work),
        "pipeline": lambda: pipeline(spark, source, work, args.rows, typed=False),
        "pipeline, typed": lambda: pipeline(spark, source, work, args.rows, typed=True),
    }
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpus: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            before = cpu_s(jvm)
            walls[name].append(way())
            cpus[name].append(cpu_s(jvm) - before)
    print(f"{args.rows:,} bodies, {args.duplicates:.1%} of them twice, 2 % broken, best of {args.rounds}")
    print(f"{'way':<18}{'s':>8}{'rows/s':>12}{'× rewrite':>11}{'CPU s':>9}{'× CPU':>8}")
    base, base_cpu = min(walls["rewrite"]), min(cpus["rewrite"])
    for name in ways:
        best, cpu = min(walls[name]), min(cpus[name])
        told = f"{name:<18}{best:>8.2f}{args.rows / best:>12,.0f}{best / base:>11.2f}"
        print(f"{told}{cpu:>9.2f}{cpu / base_cpu:>8.2f}")
    for name in (name for name in ways if name != "rewrite"):
        print(f"{name}: {base / min(walls[name]):.1%} of a rewrite's rate")
    print("target: pipeline at most 5 × rewrite")


def grow(spark: SparkSession, args: argparse.Namespace, work: Path) -> None:
    jvm = jvm_pid(spark)
    plant_apart(work / "warm", 100_000, args.duplicates)
    pipeline(spark, work / "warm", work, 100_000, typed=not args.untyped)
    print(f"{'rows':>12}{'s':>9}{'µs/row':>9}{'CPU µs':>9}{'JVM MB':>9}{'worker MB':>11}{'driver MB':>11}")
    for factor in map(int, args.factors.split(",")):
        rows = args.rows * factor
        source = work / f"bodies-{factor}"
        plant_apart(source, rows, args.duplicates)
        before = cpu_s(jvm)
        spent = pipeline(spark, source, work, rows, typed=not args.untyped)
        cpu = cpu_s(jvm) - before
        worker = max((peak_mb(pid) for pid in family(jvm) if pid != jvm), default=0.0)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        told = f"{rows:>12,}{spent:>9.1f}{spent / rows * 1e6:>9.2f}{cpu / rows * 1e6:>9.2f}"
        print(f"{told}{peak_mb(jvm):>9.0f}{worker:>11.0f}{own:>11.0f}", flush=True)
        shutil.rmtree(source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--duplicates", type=float, default=0.01)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--factors", default="1,4,16", help="with --growth: times the rows")
    parser.add_argument("--untyped", action="store_true", help="with --growth: no typed tables")
    parser.add_argument("--heap", default="1g")
    args = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = session("local[2]", conf={"spark.driver.memory": args.heap})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="shinar-bench-") as folder:
        (grow if args.growth else compare)(spark, args, Path(folder))
    spark.stop()


if __name__ == "__main__":
    main()
