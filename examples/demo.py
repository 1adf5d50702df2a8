"""The whole system on one machine: `make demo`.

An embedded broker, 200,000 messages of five languages with faults planted, a worker whose handlers
fail now and then, a Spark pipeline into Delta tables that must add up to what was planted, traces,
dead letters explained and sent back, and an HTML report. About two minutes on two cores.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from shinar import Backoff, Handlers, Limits, Policy, Worker, encode
from shinar.brokers import Outgoing, connect
from shinar.envelope import Message, fresh_id
from shinar.envelope.model import Meta

OUT = Path("demo-out")
TRACES = 45_000
COMMANDS = 30_000
DAY_MS = 24 * 3600 * 1000


def say(text: str) -> None:
    print(f"\n\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def start_broker() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "shinar.cli.main", "broker", "serve"]
    command += ["--listen", "127.0.0.1:0", "--data", str(OUT / "broker"), "--json"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    return broker, json.loads(broker.stdout.readline())["urls"][0]


def body(urn: str, data: dict, lang: str, queue: str, trace: str, at_ms: int) -> bytes:
    return encode(Message(urn, trace, data, Meta(fresh_id(), queue, lang, 1, at_ms), 0))


def events(now_ms: int, draw: random.Random, truth: Counter[str]) -> list[bytes]:
    """A day of four services: an order leads to a payment, a parcel and a mail, or stops on the way."""
    made: list[bytes] = []
    for order in range(TRACES):
        trace, at_ms = fresh_id(), now_ms - draw.randrange(DAY_MS)
        steps = [
            (
                "urn:babel:orders:created",
                "php",
                {"order_id": order, "total_cents": draw.randrange(500, 90_000)},
            ),
            (
                "urn:babel:payments:captured",
                "go",
                {"order_id": order, "provider": draw.choice(["acme", "pay"])},
            ),
            ("urn:babel:parcels:booked", "java", {"order_id": order, "weight_g": draw.randrange(50, 9000)}),
            ("urn:babel:mails:sent", "node", {"order_id": order, "template": "thanks"}),
        ]
        for urn, lang, data in steps[: draw.choices((1, 2, 3, 4), (3, 5, 7, 85))[0]]:
            made.append(body(urn, data, lang, "events", trace, at_ms))
            at_ms += draw.randrange(20, 4000) * (50 if draw.random() < 0.01 else 1)
    truth["messages"] = len(made)
    repeated = draw.sample(made, 1500)
    broken = [body_[: draw.randrange(20, 200)] for body_ in draw.sample(made, 500)]
    broken += [b"\xff\xfe not even text"] * 100 + [b'{"job":5,"data":{}}'] * 200
    broken += [b.replace(b'"schema_version":1', b'"schema_version":2') for b in draw.sample(made, 200)]
    truth.update(duplicates=len(repeated), quarantine=len(broken))
    made += repeated + broken
    draw.shuffle(made)
    return made


handlers = Handlers()


@handlers.handler("urn:babel:orders:ship")
def ship(message: Message) -> None:
    order = message.data["order_id"]
    if order % 20 == 0:
        raise TimeoutError(f"gateway did not answer within 30 s for order {order}")
    if order % 33 == 0:
        raise ValueError(f"no address for order {order}")
    if order % 50 == 7:
        raise KeyError("warehouse")


def publish(url: str, queue: str, bodies: list[bytes]) -> None:
    broker = connect(url)
    started = time.perf_counter()
    for start in range(0, len(bodies), 2000):
        broker.publish(queue, [Outgoing(b) for b in bodies[start : start + 2000]])
    spent = time.perf_counter() - started
    broker.close()
    rate = len(bodies) / spent
    print(f"   {len(bodies):,} messages to {queue!r}, each confirmed on disk: {rate:,.0f} a second")


def work(url: str) -> None:
    policy = Policy(max_attempts=2, backoff=Backoff(0.05))
    started = time.perf_counter()
    report = Worker(url, handlers, queue="orders", policy=policy, limits=Limits(until_empty=True)).run()
    spent = time.perf_counter() - started
    print(f"   {report.received:,} deliveries in {spent:.1f} s: {dict(sorted(report.counts.items()))}")


def run_pipeline(url: str, truth: Counter[str]) -> None:
    from pyspark.sql import functions as F

    from shinar.pipeline.analysis.fingerprints import fingerprints
    from shinar.pipeline.analysis.traces import hops, traces
    from shinar.pipeline.pipeline import Pipeline
    from shinar.pipeline.report.write import write_report
    from shinar.pipeline.session import session

    spark = session("local[2]", "shinar-demo")
    spark.sparkContext.setLogLevel("ERROR")  # its warnings are about itself
    lake = str(OUT / "lake")
    for queue in ("events", "orders.dlq"):
        summary = Pipeline(spark, url=url, queue=queue, lake=lake).run(once=True)
        rate = summary.received / max(summary.took_s, 0.001)
        print(
            f"   {queue}: received {summary.received:,} = messages {summary.messages:,} + quarantine "
            f"{summary.quarantine:,} + duplicates {summary.duplicates:,} ({rate:,.0f} a second)"
        )
        if queue == "events":
            found = {name: getattr(summary, name) for name in ("messages", "quarantine", "duplicates")}
            assert found == dict(truth), f"planted {dict(truth)}, found {found}"
            print("   which is exactly what was planted")

    pipeline = Pipeline(spark, url=url, queue="events", lake=lake)
    say("6. Traces: what followed what, how long it took, where it stopped")
    found_traces = traces(hops(pipeline.table("messages")))
    found_traces.groupBy("hops").agg(F.count("*").alias("traces")).orderBy("hops").show()
    say("7. Dead letters, grouped by why they died")
    dead = fingerprints(pipeline.table("dead_letters"))
    dead.select("fingerprint", "exception", "template", "dead_letters").show(truncate=60)
    page = OUT / "report.html"
    write_report(spark, lake, str(page))
    say(f"8. The same as one HTML page: {page}")
    spark.stop()


def main() -> None:
    logging.getLogger("shinar").setLevel(logging.CRITICAL)  # the failures are on purpose
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    started = time.perf_counter()
    draw, truth = random.Random(42), Counter[str]()
    say("1. An embedded broker: one process, SQLite underneath, PHPMQ on the wire")
    broker, url = start_broker()
    print(f"   {url}")
    try:
        say("2. 170,000 events of PHP, Go, Java and Node services, duplicates and broken bodies among them")
        now_ms = time.time_ns() // 1_000_000
        publish(url, "events", events(now_ms, draw, truth))
        say("3. Work for a worker")
        commands = [
            body("urn:babel:orders:ship", {"order_id": n}, "php", "orders", fresh_id(), now_ms)
            for n in range(COMMANDS)
        ]
        publish(url, "orders", commands)
        say("4. A worker whose handler fails for some orders: two attempts, then a dead letter that says why")
        work(url)
        say("5. The pipeline: every message judged, quarantined, deduplicated, routed into Delta tables")
        run_pipeline(url, truth)
        say("9. Look around")
        print(f"   the tables are Delta: read {OUT}/lake/messages with DuckDB, pandas, Polars or Spark")
        print("   shinar broker --help, shinar dlq --help, shinar traces --help")
    finally:
        broker.terminate()
        broker.wait()
    say(f"Done in {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
