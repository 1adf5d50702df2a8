"""A redrive killed with SIGKILL again and again and resumed: each chosen message arrives once, the others
stay as they were, and the receipt adds up. Run as people run it, by the command."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import embedded
from redrive_letters import ROWS, Place, drained, everything, open_place, plant
from shinar.envelope import redrive_copy
from shinar.redrive.letters.held import hold_s

__all__ = ["embedded"]

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
COUNT = 50_400 if HEAVY else 1_200
KILLS = 5 if HEAVY else 3
#: Slow enough that the kills come in the middle.
RATE = 700 if HEAVY else 40
#: Two of the twelve kinds.
WHERE = "exception like '%GatewayTimeout'"
CHOSEN = (0, 1)
NAMES = ["sqlite", "phpmq", "redis", "rabbitmq", "sqs", "servicebus", "kafka"]


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path, live_server: Callable[..., Any]) -> Place:
    assert request.param in ROWS
    return open_place(request.param, tmp_path, live_server, request)


@pytest.mark.chaos
@pytest.mark.timeout(1800 if HEAVY else 240)
def test_killed_and_resumed(place: Place, tmp_path: Path) -> None:
    with place.broker() as broker:
        bodies = plant(broker, place.dlq, place.queue, COUNT)
    ledger = tmp_path / "ledger.db"
    first = ["redrive", place.redrive_url(), "--where", WHERE, "--rate", f"{RATE}/s", "--yes"]
    draw = random.Random(place.name)
    words = first
    for _ in range(KILLS):
        done = _sent(ledger)
        process = _start(words, ledger)
        deadline = time.monotonic() + 60
        while _sent(ledger) < done + 5 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        process.communicate()
        words = ["redrive", "resume", _job(ledger), "--url", place.redrive_url()]
    process = _start(words, ledger)
    out, err = process.communicate(timeout=1500 if HEAVY else 150)
    assert process.returncode == 0, err
    receipt = json.loads(out)

    chosen = [redrive_copy(body) for n, body in enumerate(bodies) if n % 12 in CHOSEN]
    assert receipt["selected"] == receipt["published"] == len(chosen), receipt
    assert receipt["skipped"] == receipt["failed"] == receipt["left"] == 0
    with place.broker() as broker:
        arrived = Counter(drained(broker, place.queue))
    assert set(arrived) == set(chosen), "lost, or something else came"
    twice = sum(count - 1 for count in arrived.values())
    if place.traits.browse or place.traits.atomic_move:
        assert twice == 0
    else:
        # Nobody can look at the target: what may have come twice is said, and nothing else did.
        assert twice <= receipt["maybe_twice"]
    _others_are_untouched(place, bodies)


def _others_are_untouched(place: Place, bodies: list[bytes]) -> None:
    others = [body for n, body in enumerate(bodies) if n % 12 not in CHOSEN]
    _wait_for_leases(place, len(others))
    found = everything(place)
    if place.traits.replayable:
        assert found == bodies[len(bodies) - len(found) :]
        assert len(found) >= len(others)
    elif place.traits.ordered and place.traits.release_to != "front":
        assert found == others
    else:
        assert sorted(found) == sorted(others)


def _wait_for_leases(place: Place, count: int) -> None:
    """What the killed ones held comes back with the end of its lease."""
    if not place.traits.lease_s:
        return
    time.sleep(place.traits.lease_s + 1)
    deadline = time.monotonic() + (hold_s(place.traits) or 0)
    with place.broker() as broker:
        while (broker.depth(place.dlq).ready or 0) < count and time.monotonic() < deadline:
            time.sleep(1)


def _start(words: list[str], ledger: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shinar.cli.main", *words, "--json", "--quiet"],
        env={**os.environ, "SHINAR_LEDGER": str(ledger)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _sent(ledger: Path) -> int:
    return _ask(ledger, "SELECT COUNT(*) FROM shinar_redrive_lines WHERE state = 'acked'", 0)


def _job(ledger: Path) -> str:
    return _ask(ledger, "SELECT id FROM shinar_redrive_jobs", "")


def _ask(ledger: Path, sql: str, otherwise: Any) -> Any:
    if not ledger.exists():
        return otherwise
    db = sqlite3.connect(ledger, timeout=30)
    try:
        row = db.execute(sql).fetchone()
    except sqlite3.OperationalError:  # its tables are not there yet
        return otherwise
    finally:
        db.close()
    return row[0] if row else otherwise
