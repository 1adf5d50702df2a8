"""On a standalone cluster of two executors, made from the pip package: one dies mid-way; twins race."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from pathlib import Path

import pytest

from chaos.spark_run import Cluster, Job, Run, cluster, until
from chaos.spark_truth import QUEUE, differences, plant
from shinar.brokers import connect

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("SHINAR_HEAVY"), reason="six JVMs: set SHINAR_HEAVY=1"),
]

#: Messages, and the most a batch may take.
COUNT, BATCH = 20_000, 2_000


@contextlib.contextmanager
def running(folder: Path, on: Cluster, spark: dict[str, str] | None = None):
    """A pipeline over a queue that holds all of the planted messages; checked against them at the end."""
    url = f"sqlite://{folder}/queue.db?lease_s=60"
    truth = plant(COUNT, seed=5, delay=False)
    with contextlib.closing(connect(url)) as broker:
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


def test_an_executor_dies_in_the_middle(tmp_path: Path):
    with cluster(tmp_path) as on, running(tmp_path, on) as run:
        until("two batches", lambda: run.batches >= 2 or not run.alive)
        before = on.executors()
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        until("another executor", lambda: set(on.executors()) - set(before) or not run.alive)
        assert run.alive, "the query outlives its executor"


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
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
    }
    with cluster(tmp_path) as on, running(tmp_path, on, spark) as run:
        until("a batch", lambda: run.batches or not run.alive)
        stop_and_go(on, run, random.Random(6), times=8)
    twins = [event for event in task_starts(events) if event["Task Info"]["Speculative"]]
    assert twins, "Spark started no task twice: the test has shown nothing"
    print(f"\n{len(twins)} speculative tasks")


def stop_and_go(on: Cluster, run: Run, dice: random.Random, times: int) -> None:
    for _ in range(times):
        readers = until("a Python worker", lambda: on.readers() or not run.alive)
        if not run.alive:
            return
        slow, seen = dice.choice(readers), run.batches
        with contextlib.suppress(ProcessLookupError):
            os.kill(slow, signal.SIGSTOP)
        # The batch can only end if a twin does the work, or if the stopped one had none. Not for ever: where
        # nothing is left to speculate on, the stage waits for this very process.
        with contextlib.suppress(AssertionError):
            until("a batch without it", lambda n=seen: run.batches > n or not run.alive, 15.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(slow, signal.SIGCONT)
        with contextlib.suppress(AssertionError):
            until("a batch with it", lambda n=seen: run.batches > n or not run.alive, 30.0)


def task_starts(folder: Path) -> list[dict]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            lines = path.read_text(errors="replace").splitlines()
            found += [json.loads(line) for line in lines if '"SparkListenerTaskStart"' in line]
    return found
