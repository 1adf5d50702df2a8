"""The whole pipeline to its tables while driver and executors are shot and the broker restarts.

At the end the tables are the planted truth to the last copy, apart from rows that are marked as possible
redeliveries, and the queue is empty. Here driver and executor
share a JVM; test_spark_cluster has them apart. SHINAR_HEAVY=1 runs 200,000 messages of each broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaos.spark_run import Cluster, Job, Run, until
from chaos.spark_truth import QUEUE, Truth, differences, plant, possible_redeliveries
from servers.process import free_port
from shinar.brokers import connect, traits

HEAVY = int(os.environ.get("SHINAR_HEAVY") or 0)
#: Messages (SHINAR_HEAVY=30000 asks for another number), kills, most messages a batch may take.
COUNT, KILLS, BATCH = (HEAVY if HEAVY > 1 else 200_000, 20, 20_000) if HEAVY else (4_000, 3, 500)

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(3600 if HEAVY else 900)]


@dataclass
class Chaos:
    """Who gets shot, and when; and what happened, for the record."""

    job: Job
    url: str
    truth: Truth
    dice: random.Random
    cluster: Cluster | None = None
    #: The whole driver; its JVM alone, whose Python workers live on; an executor; a Python worker that reads.
    targets: tuple[str, ...] = ("driver", "jvm", "worker", "worker", "worker")
    shot: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    _slices: list[list] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def publish(self, messages: list) -> None:
        with contextlib.closing(connect(self.url)) as broker:
            for at in range(0, len(messages), 500):
                broker.publish(QUEUE, messages[at : at + 500])

    def start(self, *flags: str) -> Run:
        self.lives += 1
        run = self.job.start(*flags)
        self._stack.callback(run.close)
        return run

    def rage(self, kills: int, restarts: list[Callable[[], None]]) -> None:
        """Shoot so many times. Restarts of the broker are spread among the shots."""
        due = {(number + 1) * kills // (len(restarts) + 1): act for number, act in enumerate(restarts)}
        # Some of what comes later before each wait, so that there is a batch to wait for.
        later, steps = self.truth.later, kills + len(restarts)
        self._slices = [later[step::steps] for step in range(steps)]
        run = self.start()
        while (number := self.shot.total()) < kills:
            if not run.alive:
                # One that refuses its settings would be started for ever.
                assert self.lives <= 2 * kills + 5, "it does not stay up:\n" + "".join(run.lines)
                run = self.start()
            self._wait(run)
            if act := due.pop(number, None):
                act()
                self._wait(run)
            self._shoot(run)
        run.close()
        for left in self._slices:
            self.publish(left)

    def drain(self, runs: int = 6) -> None:
        """Until the broker says that it holds nothing: leases of the dead may outlast a run."""
        with contextlib.closing(connect(self.url)) as broker:
            for _ in range(runs):
                run = self.start("--once")
                assert run.process.wait(timeout=1200) == 0, "".join(run.lines[-40:])
                assert run.process.stdout is not None
                assert json.loads(run.process.stdout.read())["balanced"]
                depth = broker.depth(QUEUE)
                if not (depth.ready or depth.reserved or depth.delayed):
                    return
        raise AssertionError(f"the broker is not empty: {depth}")

    def close(self) -> None:
        self._stack.close()

    def _wait(self, run: Run) -> None:
        """To a random point: of a batch, or of whatever is going on."""
        seen = run.batches
        if self._slices:
            self.publish(self._slices.pop())
            if self.dice.random() < 0.6:
                until("a batch", lambda: run.batches > seen or not run.alive)
        time.sleep(self.dice.uniform(0.0, 4.0))

    def _shoot(self, run: Run) -> None:
        kind = self.dice.choice(self.targets)
        find = {
            "driver": lambda: [run.process.pid],
            "jvm": lambda: run.pids(b"SparkSubmit"),
            "executor": lambda: self.cluster.executors() if self.cluster else [],
            "worker": lambda: self.cluster.readers() if self.cluster else run.pids(b"pyspark.daemon"),
        }[kind]
        # The last shot may have left none: until the next one is up, or the driver has given up.
        victims = until(f"a {kind} to shoot at", lambda: find() or not run.alive)
        if not run.alive:
            return
        if kind == "driver":
            run.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.dice.choice(victims), signal.SIGKILL)
        self.shot[kind] += 1
        print(f"shot {kind}", time.strftime("%H:%M:%S"), f"after {run.batches} batches", flush=True)
        if kind == "jvm":
            try:
                run.process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                run.process.send_signal(signal.SIGABRT)  # says where its threads are
                run.process.wait(timeout=30)
                raise AssertionError("the driver outlived its JVM:\n" + "".join(run.lines[-200:])) from None


def survive(
    folder: Path,
    url: str,
    restarts: list[Callable[[], None]],
    *,
    on: Cluster | None = None,
    kills: int = KILLS,
    targets: tuple[str, ...] = ("driver", "jvm", "worker", "worker", "worker"),
    batch: int = BATCH,
    seed: int = 1,
) -> Chaos:
    able = traits(url)
    truth = plant(COUNT, seed, binary=able.binary, delay=able.delay)
    job = Job.write(folder / "job", url, QUEUE, batch, master=on.master if on else "local[2,4]")
    chaos = Chaos(job, url, truth, random.Random(seed), on, targets)
    started_s = time.monotonic()
    try:
        chaos.publish(truth.first)
        chaos.rage(kills, restarts)
        chaos.drain()
    finally:
        chaos.close()
    planted = len(truth.first) + len(truth.later)
    minutes, possible = (time.monotonic() - started_s) / 60, possible_redeliveries(job.lake)
    print(
        f"\n{able.name}: {planted:,} published "
        f"({len(truth.again):,} duplicates, {len(truth.poison):,} poison, "
        f"{truth.late:,} late), {chaos.shot.total()} kills {dict(chaos.shot)}, {len(restarts)} restarts, "
        f"{chaos.lives} drivers, {possible} possible redeliveries, {minutes:.1f} minutes",
        flush=True,
    )
    assert differences(job.lake, truth) == {}
    return chaos


class EmbeddedBroker:
    """`shinar broker serve` as users start it, on one port and one folder through all its lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"phpmq://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "shinar.cli.main", "broker", "serve", "--json"]
        command += ["--listen", f"127.0.0.1:{self._port}", "--data", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the broker did not start"

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(sign)
            self._process.wait(timeout=120)
            assert self._process.stdout is not None
            self._process.stdout.close()

    #: For contextlib.closing.
    close = stop

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        self.stop(signal.SIGKILL)
        self.start()


def test_the_embedded_broker(tmp_path: Path):
    server = EmbeddedBroker(tmp_path / "broker")
    server.start()
    try:
        restarts = [server.restart, server.crash] if HEAVY else [server.crash]
        # What a dead driver held is back soon enough for the end of the test.
        survive(tmp_path, f"{server.url}?lease_s=30", restarts)
    finally:
        server.stop()


@pytest.mark.live("rabbitmq")
def test_rabbitmq(tmp_path: Path, server):
    restarts = [lambda: _restart(server)] * (2 if HEAVY else 1)
    with emptied(server.url):
        survive(tmp_path, server.url, restarts, kills=KILLS if HEAVY else 2, seed=2)


@pytest.mark.skipif(not HEAVY, reason="minutes: set SHINAR_HEAVY=1")
@pytest.mark.live("redis")
def test_redis(tmp_path: Path, server):
    def crash() -> None:
        server.kill()
        server.start()

    url = f"{server.url}{'&' if '?' in server.url else '?'}lease_s=30"
    with emptied(url):
        survive(tmp_path, url, [lambda: _restart(server), crash], seed=3)


@pytest.mark.skipif(not HEAVY, reason="minutes: set SHINAR_HEAVY=1")
@pytest.mark.live("elasticmq")
def test_sqs(tmp_path: Path, server):
    with emptied(server.url):
        # Ten messages a request: a batch that takes longer than its leases would spend its time on them.
        restarts = [lambda: _restart(server)] * 2
        survive(tmp_path, f"{server.url}&lease_s=120", restarts, batch=BATCH // 5, seed=4)


def _restart(server) -> None:
    server.stop()
    server.start()


@contextlib.contextmanager
def emptied(url: str) -> Iterator[None]:
    """Before and after: the server is shared with other tests."""
    for step in range(2):
        with contextlib.closing(connect(url)) as broker:
            while found := broker.reserve(QUEUE, 1000, 0.2):
                broker.ack(found)
        if step == 0:
            yield
