"""The whole pipeline as a user runs it: a durable queue, the command line, SIGKILL, and the planted truth."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servers.process import free_port
from shinar.brokers import connect, parse
from shinar.brokers.contract import Outgoing
from shinar.envelope import build, encode
from shinar.pipeline import process_guard
from shinar.pipeline.lake.store import TableStore, existing_store

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
#: Known messages, kills, and the most a batch may take.
ROWS, KILLS, BATCH = (200_000, 20, 10_000) if HEAVY else (2_000, 2, 200)
#: A killed reader's messages come back after this long.
LEASE_S = 5
POISON = (b"{", b"\xff\xfe", b'{"job":null,"data":{}}', b"[]")


def plant(url: str, queue: str) -> tuple[list[str], list[bytes], int]:
    """(ids, bodies that are no messages, redeliveries): all of it published in one shuffled order."""
    chance = random.Random(7)
    bodies, ids = [], []
    for number in range(ROWS):
        urn = f"urn:babel:orders:{('created', 'paid', 'shipped')[number % 3]}"
        message = build(urn, {"order_id": number, "amount": number / 4}, queue=queue)
        ids.append(message.meta.id)
        bodies.append(encode(message))
    again = chance.sample(bodies, ROWS // 50)
    broken = [POISON[number % len(POISON)] for number in range(ROWS // 50)]
    everything = [*bodies, *again, *broken]
    chance.shuffle(everything)
    broker = connect(parse(url))
    for start in range(0, len(everything), 1000):
        broker.publish(queue, [Outgoing(body=body) for body in everything[start : start + 1000]])
    broker.close()
    return ids, broken, len(again)


def start(url: str, queue: str, lake: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shinar.cli.main", "pipeline", "run", "--from", url, "--queue", queue]
    command += ["--lake", str(lake), "--once", "--max-records", str(BATCH), "--master", "local[2]", "--json"]
    return subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Short lives: no time for the optimising compiler to pay back.
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )


def kill_after_a_batch(run: subprocess.Popen[str], pause_s: float) -> bool:
    """SIGKILL driver and JVM some time after the first batch; False when the run ended before."""
    assert run.stderr is not None
    told = []
    for line in run.stderr:
        told.append(line)
        if line.startswith("batch "):
            time.sleep(pause_s)
            break
    killed = run.poll() is None
    if killed:
        os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert killed or run.returncode == 0, "".join(told)
    return killed


def column(store: TableStore, table: str, name: str) -> list:
    parts = [pq.read_table(path, columns=[name]) for path in store.files(table)]
    return pa.concat_tables(parts)[name].to_pylist() if parts else []


def test_nothing_lost_nothing_twice(tmp_path: Path) -> None:
    url, queue, lake = f"sqlite://{tmp_path}/queue.db?lease_s={LEASE_S}", "orders", tmp_path / "lake"
    ids, broken, again = plant(url, queue)
    chance = random.Random(11)
    kills = [kill_after_a_batch(start(url, queue, lake), chance.uniform(0.0, 2.0)) for _ in range(KILLS)]
    assert any(kills)
    broker = connect(parse(url))
    for _ in range(5):
        time.sleep(LEASE_S + 1)  # what the killed readers held comes back
        run = start(url, queue, lake)
        out, err = run.communicate(timeout=1200)
        assert run.returncode == 0, err[-3000:]
        assert json.loads(out)["balanced"]
        depth = broker.depth(queue)
        if not depth.ready and not depth.reserved:
            break
    assert (depth.ready, depth.reserved) == (0, 0)
    store = existing_store(lake)
    assert Counter(column(store, "messages", "id")) == Counter(ids)
    assert Counter(column(store, "quarantine", "body")) == Counter(broken)
    # A crash between freeze and ack may bring a delivery again: it is found by its id, and counted.
    assert len(column(store, "duplicates", "id")) >= again
    typed = [name for name in store.tables() if name.startswith("typed/")]
    assert typed == [f"typed/orders_{name}" for name in ("created", "paid", "shipped")]
    assert Counter(i for name in typed for i in column(store, name, "_id")) == Counter(ids)
    sums = {n: sum(column(store, "batches", n)) for n in ("received", "messages", "quarantine", "duplicates")}
    assert sums["received"] == sums["messages"] + sums["quarantine"] + sums["duplicates"]
    assert sums["messages"] == len(ids)
    assert len(column(store, "batches", "batch")) == len(set(column(store, "batches", "batch")))


def scraped(port: int, name: str, run: subprocess.Popen[str]) -> dict[str, float]:
    """The endpoint's figures by name, as soon as this one is among them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while run.poll() is None:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
            lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
        found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line}
        if name in found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"the run ended before it told {name}")


def test_ctrl_c_finishes_the_batch_in_hand(tmp_path: Path) -> None:
    url, queue, lake = f"sqlite://{tmp_path}/queue.db", "orders", tmp_path / "lake"
    broker = connect(parse(url))
    bodies = [encode(build("urn:babel:orders:created", {"n": n}, queue=queue)) for n in range(800)]
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    port = free_port()
    run = start(url, queue, lake, "--max-records", "40", "--no-typed", "--metrics-port", str(port))
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("batch "):
            break
    figures = scraped(port, "shinar_pipeline_lag", run)
    assert figures["shinar_pipeline_lag"] % 40 == 0 < figures["shinar_pipeline_lag"] < 800
    assert figures["shinar_pipeline_received_total"] >= 40
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=300)
    assert run.returncode == 130, err[-3000:]
    told = json.loads(out)
    store = existing_store(lake)
    assert told["messages"] == len(column(store, "messages", "id")) < 800
    left = broker.depth(queue)
    # At most the batch that Spark had planned already is frozen and waits for the next run.
    assert 800 - told["messages"] - left.ready <= 40


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard reads /proc")
def test_nothing_outlives_a_killed_driver(tmp_path: Path) -> None:
    """SIGKILL for the driver alone: JVM, Python workers and planner end too, and soon."""
    url, queue, lake = f"sqlite://{tmp_path}/queue.db", "orders", tmp_path / "lake"
    broker = connect(parse(url))
    bodies = [encode(build("urn:babel:orders:created", {"n": n}, queue=queue)) for n in range(2000)]
    broker.publish(queue, [Outgoing(body=body) for body in bodies])
    broker.close()
    run = start(url, queue, lake, "--max-records", "20", "--no-typed")
    assert run.stderr is not None
    for line in run.stderr:
        if line.startswith("batch "):
            break
    family = process_guard.below(run.pid)
    assert len(family) >= 3
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=120)
    end_s = time.monotonic() + process_guard.GRACE_S + 60
    while alive := [pid for pid, started in family.items() if process_guard.is_alive(pid, started)]:
        assert time.monotonic() < end_s, f"still there: {alive}"
        time.sleep(0.2)
