"""Every durable broker: the worker is killed with SIGKILL under load and the server restarted in between.

No message is lost; what is handled twice is counted and stays within what was in hand at a kill.
The figures of a heavy run (SHINAR_HEAVY=1) are the table in docs/delivery-guarantees.md.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from cases import Case, case, embedded, with_options
from servers import start_private
from shinar.brokers import Outgoing
from shinar.envelope import build, encode

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
MESSAGES = 50_000 if HEAVY else 1_500
KILLS = 20 if HEAVY else 3
#: Before these kills the server is stopped and started, and the worker must find it again by itself.
RESTARTS = frozenset({6, 13} if HEAVY else {1})
PREFETCH = 50
#: A few messages must last for all kills.
HANDLE_S = 0 if HEAVY else 0.001
#: Pulsar writes individual acks to disk about once a second: a restart of the server forgets the last ones.
#: Kafka takes no commits while its coordinator is away, and records fetched before are handled meanwhile.
LATE_ACKS = {"pulsar": 8, "kafka": 8}
PROGRAM = Path(__file__).with_name("crash_program.py")

__all__ = ["case", "embedded"]


@pytest.mark.chaos
@pytest.mark.timeout(1800 if HEAVY else 900)
def test_a_killed_worker_and_a_restarted_server_lose_nothing(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["case"]
    if name == "phpmq":  # as a process of its own, which can be stopped
        server = start_private("phpmq")
        request.addfinalizer(server.stop)
        case = Case(server.url, server)
    if not case.traits.shared:
        pytest.skip("another process cannot see this queue")
    lease = () if case.traits.lease_s is None else ("lease_s=3",)
    broker = case.connect(*lease)
    for start in range(0, MESSAGES, 500):
        numbers = range(start, start + 500)
        broker.publish(
            case.queue, [Outgoing(encode(build("urn:babel:orders:created", {"n": n}))) for n in numbers]
        )
    broker.close()

    handled = tmp_path / "handled"
    handled.touch()
    command = [sys.executable, str(PROGRAM), with_options(case.url, *lease), case.queue, str(handled)]
    environment = {**os.environ, "HANDLE_S": str(HANDLE_S)}
    draw = random.Random(11)
    restarts = idle_kills = 0
    for kill in range(KILLS):
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        wait_for_progress(handled, worker)
        time.sleep(draw.uniform(0, 0.1))
        if kill in RESTARTS and case.server is not None and case.server.durable:
            case.server.stop()
            before = handled.stat().st_size
            case.server.start()
            restarts += 1
            wait_for_progress(handled, worker, before)
        # It ends by itself only when there is nothing left; any other end would be an error of its own.
        assert worker.poll() in (None, 0)
        idle_kills += worker.poll() == 0
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    for _ in range(3):  # a server that has just come back may look empty for a moment
        subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
        if len(set(handled.read_text().split())) == MESSAGES:
            break

    counts = Counter(map(int, handled.read_text().split()))
    twice = sum(count - 1 for count in counts.values())
    version = case.server.version if case.server is not None else ""
    cells = (name, version, MESSAGES, KILLS - idle_kills, restarts, MESSAGES - len(counts), twice)
    print("\n| " + " | ".join(map(str, cells)) + " |")
    assert sorted(counts) == list(range(MESSAGES)), "a message was lost"
    # A kill repeats what was handled but not yet acknowledged; a restart of the server, what was in hand.
    assert twice <= (KILLS + restarts) * 2 * PREFETCH * LATE_ACKS.get(case.traits.name, 1)


def wait_for_progress(handled: Path, worker: subprocess.Popen[bytes], before: int | None = None) -> None:
    """Until the worker has handled something (more than `before`), has ended, or time is up."""
    before = handled.stat().st_size if before is None else before
    deadline = time.monotonic() + 120
    while handled.stat().st_size == before and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
