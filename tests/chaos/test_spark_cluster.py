"""On a standalone cluster of two executors, made from the pip package: one dies mid-way; twins race."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from chaos.spark_run import Cluster, Job, Run, cluster, until
from chaos.spark_truth import QUEUE, differences, plant
from chaos.test_spark_source import EmbeddedBroker, emptied, survive
from shinar.brokers import connect

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("SHINAR_HEAVY"), reason="six JVMs: set SHINAR_HEAVY=1"),
]

#: Messages, and the most a batch may take: enough for a task on each executor.
COUNT, BATCH = 40_000, 5_000


@contextlib.contextmanager
def running(folder: Path, on: Cluster, spark: dict[str, str] | None = None):
    """A pipeline over a queue that holds all of the planted messages; checked against them at the end."""
    # A server of its own: a process stopped inside a transaction of a database would hold up everybody.
    server = EmbeddedBroker(folder / "broker")
    server.start()
    url = f"{server.url}?lease_s=60"
    truth = plant(COUNT, seed=5, delay=False)
    with contextlib.closing(server), contextlib.closing(connect(url)) as broker:
        for at in range(0, len(truth.first + truth.later), 1000):
            broker.publish(QUEUE, (truth.first + truth.later)[at : at + 1000])
        job = Job.write(folder / "job", url, QUEUE, BATCH, master=on.master, spark=spark)
        run = job.start("--once")
        try:
            yield run
            assert run.process.wait(timeout=1200) == 0, "".join(run.lines[-40:])
        finally:
            run.close()
        depth = broker.depth(QUEUE)
        assert (depth.ready, depth.reserved) == (0, 0)
    assert differences(job.lake, truth) == {}


def test_executors_die_in_the_middle(tmp_path: Path):
    with contextlib.closing(EmbeddedBroker(tmp_path / "broker")) as server:
        server.start()
        executors_die(tmp_path, f"{server.url}?lease_s=30", seed=5)


@pytest.mark.live("redis")
def test_executors_die_over_redis(tmp_path: Path, server):
    with emptied(server.url):
        executors_die(tmp_path, server.url, seed=6)


@pytest.mark.live("rabbitmq")
def test_executors_die_over_rabbitmq(tmp_path: Path, server):
    with emptied(server.url):
        executors_die(tmp_path, server.url, seed=7)


def executors_die(folder: Path, url: str, seed: int) -> None:
    targets = ("executor", "executor", "worker")
    with cluster(folder) as on:
        chaos = survive(folder, url, [], on=on, kills=5, targets=targets, seed=seed)
    # One for the kills, one to drain the rest: the query outlives its executors.
    assert chaos.shot["executor"] >= 1
    assert chaos.lives <= 4


def test_speculative_twins(tmp_path: Path):
    """Python workers are stopped in the middle of a task, so that Spark starts the task once more elsewhere;
    then they go on, beside their twin or after it has won, with reservations of their own."""
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.minTaskRuntime": "500ms",
        # A stage of one task has no others to compare it with.
        "spark.speculation.task.duration.threshold": "3s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    with cluster(tmp_path) as on, running(tmp_path, on, spark) as run:
        until("a batch", lambda: run.batches or not run.alive)
        overtaken = stop_and_go(on, run, times=5)
    twins = [event for event in task_starts(events) if event["Task Info"]["Speculative"]]
    assert twins, "Spark started no task twice: the test has shown nothing"
    assert overtaken, "no twin won a race while the other held its reservations"
    print(f"\n{len(twins)} speculative tasks, {overtaken} captured a partition that a stopped task had begun")


def stop_and_go(on: Cluster, run: Run, times: int) -> int:
    """Stop a worker that is capturing a partition, let a twin finish the batch, let the worker go on.
    Says how often a batch ended without the one that had been stopped."""
    overtaken = 0
    for _ in range(times):
        slow = until("a worker that captures", lambda: capturing(on) or not run.alive, pause_s=0.005)
        if not run.alive:
            break
        seen = run.batches
        with contextlib.suppress(ProcessLookupError):
            os.kill(slow, signal.SIGSTOP)
            if is_capturing(slow):  # else it has just published
                with contextlib.suppress(AssertionError):
                    until("a batch without it", lambda n=seen: run.batches > n or not run.alive, 90.0)
                overtaken += run.batches > seen
            # Spark may have ended the loser already.
            os.kill(slow, signal.SIGCONT)
    return overtaken


def capturing(on: Cluster) -> int:
    return next((pid for pid in on.readers() if is_capturing(pid)), 0)


def is_capturing(pid: int) -> bool:
    """Has it an attempt's file open? Then it has reserved messages and not yet published them."""
    with contextlib.suppress(OSError):
        return any("/attempts/" in os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def task_starts(folder: Path) -> list[dict]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            lines = path.read_text(errors="replace").splitlines()
            found += [json.loads(line) for line in lines if '"SparkListenerTaskStart"' in line]
    return found
