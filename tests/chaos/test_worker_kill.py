"""A worker killed with SIGKILL at random points loses nothing and repeats no effect.

Durable queue and idempotency store on SQLite; the ledger of all messages must add up at the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shinar import Producer
from shinar.brokers import connect

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
MESSAGES = 50_000 if HEAVY else 6_000
KILLS = 20
PROGRAM = Path(__file__).with_name("worker_program.py")


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_killed_twenty_times_and_every_message_is_accounted_for(tmp_path: Path) -> None:
    queue = f"sqlite://{tmp_path}/queue.db?queue=orders&lease_s=2"
    effects = tmp_path / "effects.db"
    with sqlite3.connect(effects) as db:
        db.execute("CREATE TABLE effects (n INTEGER NOT NULL)")
    db.close()
    with Producer(queue) as producer:
        producer.send_many(("urn:babel:orders:created", {"n": n}) for n in range(MESSAGES))

    draw = random.Random(7)
    kills = 0
    for _ in range(200):
        worker = subprocess.Popen([sys.executable, str(PROGRAM), queue, f"sqlite://{effects}"])
        if kills < KILLS:
            started = _rows(effects)
            # Kill it in the middle of its work, not while Python is still starting.
            deadline = time.monotonic() + 20
            while _rows(effects) == started and worker.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.25))
            worker.send_signal(signal.SIGKILL)
            kills += worker.wait() == -signal.SIGKILL
        else:
            assert worker.wait(600) == 0
            break
    assert kills == KILLS

    broker = connect(queue)
    dead = [json.loads(d.body)["data"]["n"] for d in broker.browse("orders.dlq")]
    with sqlite3.connect(effects) as db:
        done = [n for (n,) in db.execute("SELECT n FROM effects")]
    db.close()
    left = broker.depth("orders")
    broker.close()
    assert (left.ready, left.reserved, left.delayed) == (0, 0, 0)
    assert len(done) == len(set(done)), "an effect happened twice"
    assert sorted(set(dead)) == [n for n in range(MESSAGES) if n % 100 == 0]
    assert sorted(done + sorted(set(dead))) == list(range(MESSAGES)), "a message is missing"


def _rows(effects: Path) -> int:
    db = sqlite3.connect(effects, timeout=30)
    try:
        return db.execute("SELECT count(*) FROM effects").fetchone()[0]
    finally:
        db.close()
