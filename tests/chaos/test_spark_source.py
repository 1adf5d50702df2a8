"""Kill the driver, the JVM or a Python worker with SIGKILL at random points: nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode, judge

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
KILLS = 20 if HEAVY else 5
MESSAGES = 200_000 if HEAVY else 12_000
DRIVER = Path(__file__).with_name("spark_driver.py")

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(3600 if HEAVY else 600)]


def planted(count: int, rng: random.Random) -> list[bytes]:
    """Good messages, with duplicates (same bytes) and poison among them."""
    bodies: list[bytes] = []
    for n in range(count):
        dice = rng.random()
        if dice < 0.02:
            bodies.append(b'{"job":"urn:babel:orders:created","n":%d,"attempts":"x"}' % n)
        elif dice < 0.04 and bodies:
            bodies.append(rng.choice(bodies))
        else:
            bodies.append(encode(build("urn:babel:orders:created", {"n": n})))
    return bodies


def start(url: str, folder: Path, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), url, str(folder), mode]
    with open(folder / "driver.log", "a") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )


@contextlib.contextmanager
def running(url: str, folder: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    driver = start(url, folder, mode)
    try:
        yield driver
    finally:
        finish(driver)


def await_ready(driver: subprocess.Popen[str]) -> None:
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.strip() == "ready":
            return
    raise AssertionError("the driver ended before its query started; see driver.log")


def processes(driver: subprocess.Popen[str]) -> dict[str, list[int]]:
    """The driver's session by kind: java, and the Python workers that read."""
    found: dict[str, list[int]] = {"java": [], "worker": []}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) != driver.pid:
                continue
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if b"SparkSubmit" in command:
            found["java"].append(int(folder.name))
        elif b"pyspark.daemon" in command:
            found["worker"].append(int(folder.name))
    return found


def kill(driver: subprocess.Popen[str], rng: random.Random) -> str:
    """One of: everything at once; the JVM only (its Python workers live on); one Python worker."""
    kind = rng.choice(["all", "java", "worker"])
    victims = processes(driver)
    if kind == "worker" and victims["worker"]:
        os.kill(rng.choice(victims["worker"]), signal.SIGKILL)
        time.sleep(rng.uniform(0.2, 1.5))
        kind, victims = "worker, then java", processes(driver)
    if kind != "all" and victims["java"]:
        os.kill(victims["java"][0], signal.SIGKILL)
    else:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    return kind


def finish(driver: subprocess.Popen[str]) -> None:
    """Only now end what outlived a killed JVM: until here its Python workers were free to do harm."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    if driver.stdout is not None:
        driver.stdout.close()
    driver.wait()


def written(folder: Path) -> list[dict[str, object]]:
    """The rows the sink committed: files of killed tasks are not in its log."""
    paths = set()
    for log in (folder / "out" / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            paths |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
    rows: list[dict[str, object]] = []
    for path in sorted(paths):
        table = pq.read_table(unquote(urlsplit(path).path), columns=["body", "verdict", "position", "id"])
        rows += table.to_pylist()
    return rows


def survive(
    url: str, folder: Path, kills: int = KILLS, restart: Callable[[], None] | None = None
) -> list[dict[str, object]]:
    with contextlib.ExitStack() as stack:
        return _survive(url, folder, kills, restart, stack)


def _survive(url, folder, kills, restart, stack) -> list[dict[str, object]]:
    rng = random.Random(kills)
    bodies = planted(MESSAGES, rng)
    broker = connect(url)
    half = len(bodies) // 2
    for at in range(0, half, 1000):
        broker.publish("orders", [Outgoing(body=body) for body in bodies[at : min(at + 1000, half)]])

    def produce() -> None:
        mine = connect(url)
        for at in range(half, len(bodies), 50):
            mine.publish("orders", [Outgoing(body=body) for body in bodies[at : at + 50]])
            time.sleep(0.01)
        mine.close()

    producer = threading.Thread(target=produce)
    if restart is None:
        producer.start()
    for number in range(kills):
        driver = stack.enter_context(running(url, folder, "on"))
        await_ready(driver)
        time.sleep(rng.uniform(0.1, 5.0))
        kill(driver, rng)
        if restart is not None and number in (kills // 3, 2 * kills // 3):
            restart()
    if restart is not None:
        producer.start()
    producer.join()
    for _ in range(3):  # a run takes what is there when it starts; leases of the dead may end after that
        driver = stack.enter_context(running(url, folder, "once"))
        await_ready(driver)
        assert driver.wait(timeout=600) == 0
        depth = broker.depth("orders")
        if not depth.ready and not depth.reserved:
            break
    assert (depth.ready, depth.reserved or 0) == (0, 0), "the broker is empty"
    broker.close()
    rows = written(folder)
    assert Counter(row["body"] for row in rows).keys() == Counter(bodies).keys(), (
        "nothing lost, nothing made up"
    )
    assert all(row["verdict"] == judge(row["body"]).kind.value for row in rows)
    assert not Counter(bodies) - Counter(row["body"] for row in rows), "every copy arrived"
    return rows


def test_a_sqlite_queue_survives_sigkill(tmp_path: Path):
    rows = survive(f"sqlite://{tmp_path}/queue.db?lease_s=40", tmp_path)
    again = {place: count for place, count in Counter(row["position"] for row in rows).items() if count > 1}
    assert again == {}, "receipts travel here, so not even a redelivery is seen twice"


@pytest.mark.live("redis")
def test_a_redis_list_survives_sigkill_and_restarts(tmp_path: Path, server):
    def restart() -> None:
        server.stop()
        server.start()

    url = f"{server.url}?lease_s=30"
    rows = survive(url, tmp_path, KILLS if HEAVY else 2, restart if HEAVY else None)
    assert len(rows) >= MESSAGES
