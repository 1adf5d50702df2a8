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

from cases import ROWS, Case, case, embedded, with_options
from servers import start_private
from shinar.brokers import Outgoing
from shinar.envelope import build, encode

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
MESSAGES = 50_000 if HEAVY else 1_500
KILLS = 20 if HEAVY else 3
#: Before these kills the server is stopped and started, and the worker must find it again by itself.
RESTARTS = frozenset({6, 13} if HEAVY else {1})
PREFETCH = 50
#: The messages must last for all kills: few of them, or Kafka's, which come by the thousand.
HANDLE_S = 0.001
HEAVY_HANDLE_S = {"kafka": 0.0005}
#: Handled more than once by a restart of the server, at most. Pulsar writes single acks to disk about once a
#: second and forgets the last ones. Kafka stores no offsets while its coordinator is away; the worker goes on
#: for a second with what it has of the topic in memory.
AGAIN_BY_RESTART = {"pulsar": 8_000, "kafka": 6_000}
PROGRAM = Path(__file__).with_name("crash_program.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "delivery-guarantees.md"

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
    # A server that has just come back may look empty for a while: a worker to be killed must not believe it.
    handle_s = HEAVY_HANDLE_S.get(name, 0) if HEAVY else HANDLE_S
    environment = {**os.environ, "HANDLE_S": str(handle_s), "EMPTY_WAIT_S": "60" if HEAVY else "20"}
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
        idle_kills += worker.poll() is not None
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
    in_hand = 2 * PREFETCH
    assert twice <= KILLS * in_hand + restarts * AGAIN_BY_RESTART.get(case.traits.name, in_hand)


@pytest.mark.parametrize("name", [row for row in ROWS if row not in ("memory", "file")])
def test_the_figures_of_the_last_heavy_run_are_in_the_docs(name: str) -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    (figures,) = [row for row in cells if len(row) == 7]
    messages, kills, restarts, lost, _twice = map(int, figures[2:])
    assert (messages >= 50_000, kills >= 19, lost) == (True, True, 0)
    # Nothing to restart behind a file; the stand-in for Service Bus forgets everything.
    assert restarts == (0 if name in ("sqlite", "servicebus") else 2)


def wait_for_progress(handled: Path, worker: subprocess.Popen[bytes], before: int | None = None) -> None:
    """Until the worker has handled something (more than `before`), has ended, or time is up."""
    before = handled.stat().st_size if before is None else before
    deadline = time.monotonic() + 120
    while handled.stat().st_size == before and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
