"""The same on a standalone cluster of two workers, made from the pip package: an executor dies mid-way."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from chaos.test_spark_source import DRIVER, await_ready, finish, planted, written
from shinar.brokers import Outgoing, connect

pytestmark = [
    pytest.mark.spark,
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SHINAR_HEAVY"), reason="six JVMs: set SHINAR_HEAVY=1"),
]

HOME = Path(pyspark.__file__).parent
PACKAGE = "org.apache.spark.deploy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def java(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        **os.environ,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with open(folder / f"{name}.log", "w") as log:
        command = [str(HOME / "bin" / "spark-class"), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_line(path: Path, text: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while text not in path.read_text():
        assert time.monotonic() < end, f"{path.name} never said {text!r}"
        time.sleep(0.2)


def executors(workers: list[subprocess.Popen[bytes]]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            ours = os.getsid(int(folder.name)) in {worker.pid for worker in workers}
            if ours and b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_an_executor_dies_in_the_middle(tmp_path: Path):
    url = f"sqlite://{tmp_path}/queue.db?lease_s=60"
    bodies = planted(20_000, random.Random(3))
    broker = connect(url)
    for start in range(0, len(bodies), 1000):
        broker.publish("orders", [Outgoing(body=body) for body in bodies[start : start + 1000]])
    port = free_port()
    with contextlib.ExitStack() as stack:
        master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(java(tmp_path, "master", f"{PACKAGE}.master.Master", *master))
        until_line(tmp_path / "master.log", "I have been elected leader")
        workers = []
        for host in ("127.0.0.2", "127.0.0.3"):  # apart, as Spark sees it
            place = (
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                f"{tmp_path}/{host}",
            )
            name = f"worker-{host}"
            workers.append(
                stack.enter_context(
                    java(tmp_path, name, f"{PACKAGE}.worker.Worker", *place, f"spark://127.0.0.1:{port}")
                )
            )
            until_line(tmp_path / f"{name}.log", "Successfully registered")
        with open(tmp_path / "driver.log", "w") as log:
            command = [sys.executable, str(DRIVER), url, str(tmp_path), "once", f"spark://127.0.0.1:{port}"]
            driver = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        stack.callback(finish, driver)
        await_ready(driver)
        commits = tmp_path / "checkpoint" / "commits"
        end = time.monotonic() + 200
        while not (commits.is_dir() and len(list(commits.glob("[0-9]*"))) >= 2):
            assert time.monotonic() < end
            time.sleep(0.1)
        os.kill(executors(workers)[0], signal.SIGKILL)
        assert driver.wait(timeout=600) == 0
    depth = broker.depth("orders")
    assert (depth.ready, depth.reserved) == (0, 0)
    rows = written(tmp_path)
    assert Counter(row["body"] for row in rows) == Counter(bodies)
    assert len({row["position"] for row in rows}) == len(rows)
    broker.close()
