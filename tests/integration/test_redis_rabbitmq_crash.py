"""Workers that are killed under load, and a server that goes away in between: every message is handled,
and the repeats are no more than what the killed workers held."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import servers
from shinar.brokers import Outgoing, connect

HEAVY = os.environ.get("SHINAR_HEAVY") == "1"
KILLS = 20 if HEAVY else 4
MESSAGES = 20_000 if HEAVY else 2_000
BATCH = 20

WORKER = """
import os, sys, time
from shinar.brokers import connect
from shinar.errors import BrokerError
url, queue, path, batch = sys.argv[1:5]
out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
broker = None
while True:
    try:
        broker = broker or connect(url)
        got = broker.reserve(queue, int(batch), 1.0)
        for delivery in got:
            os.write(out, delivery.body + b"\\n")
            time.sleep(0.0005)
        broker.ack(got)
    except BrokerError:
        time.sleep(0.1)
"""

#: broker -> (server, options)
ROWS = {
    "redis": ("redis", "lease_s=2"),
    "redis-laravel": ("redis", "lease_s=2&layout=laravel"),
    "rabbitmq": ("rabbitmq", ""),
    "rabbitmq-quorum": ("rabbitmq", "queue_type=quorum"),
}


@pytest.mark.chaos
@pytest.mark.timeout(900 if HEAVY else 300)
@pytest.mark.parametrize("row", ROWS)
def test_killed_workers_lose_nothing(row: str, tmp_path: Path) -> None:
    name, options = ROWS[row]
    try:
        own = servers.start_private(name)
    except servers.ServerMissing as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(exc.reason)
    queue, handled = f"t-{uuid.uuid4().hex[:8]}", tmp_path / "handled"
    url = f"{own.url}?{options}"
    draw = random.Random(11)
    try:
        with closing(connect(url)) as broker:
            broker.publish(queue, [Outgoing(b'{"attempts":0,"n":%d}' % n) for n in range(MESSAGES)])
        for kill in range(KILLS):
            before = handled.stat().st_size if handled.exists() else 0
            worker = start(url, queue, handled)
            progress(handled, before)
            time.sleep(draw.uniform(0.0, 0.2))
            worker.kill()
            worker.wait()
            if kill == KILLS // 2:
                own.stop()
                own.start()
        worker = start(url, queue, handled)
        try:
            drained(url, queue, handled)
        finally:
            worker.kill()
            worker.wait()
        counts = Counter(number(line) for line in handled.read_bytes().split())
        assert sorted(counts) == list(range(MESSAGES))
        repeats = sum(counts.values()) - MESSAGES
        assert repeats <= (KILLS + 1) * BATCH, f"{repeats} repeats"
    finally:
        own.stop()


def number(line: bytes) -> int:
    return int(line.rpartition(b":")[2].rstrip(b"}"))


def start(url: str, queue: str, handled: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, url, queue, str(handled), str(BATCH)])


def progress(handled: Path, before: int) -> None:
    deadline = time.monotonic() + 60
    while not handled.exists() or handled.stat().st_size <= before:
        assert time.monotonic() < deadline, "the worker handles nothing"
        time.sleep(0.02)


def drained(url: str, queue: str, handled: Path) -> None:
    """Until every message was handled and the queue stays empty."""
    deadline = time.monotonic() + (600 if HEAVY else 120)
    while time.monotonic() < deadline:
        seen = {number(line) for line in handled.read_bytes().split()}
        with closing(connect(url)) as broker:
            depth = broker.depth(queue)
        if len(seen) == MESSAGES and not depth.ready and not depth.reserved:
            return
        time.sleep(0.5)
    raise AssertionError(f"{len(seen)} of {MESSAGES} handled, {depth}")
