"""Every broker: the server goes away under a working worker, for a second and for a minute.

The worker says so once, waits without spinning, comes back by itself and loses nothing. The fast rows run
always for a second; all of them, for a second and a minute, with SHINAR_HEAVY=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cases import ROWS, with_options
from servers import Server, start_private
from shinar.brokers import Outgoing, connect, traits
from shinar.envelope import build, encode

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
PROGRAM = Path(__file__).with_name("outage_program.py")
#: Their servers start in a moment.
FAST = ("redis", "phpmq", "servicebus")
SERVERS = {"phpmq": ("phpmq", ""), **{row: server for row, server in ROWS.items() if server[0]}}
FIRST, SECOND = 400, 100
#: Handled twice because the server went away, at most: what handlers had begun, and what came through before
#: the worker could notice. Of the 50 in hand it drops those it has not started.
MOST_TWICE = dict.fromkeys(("phpmq", "rabbitmq", "rabbitmq-quorum", "artemis"), 25)
#: For everything to be there after the server is: longer than a worker's longest pause, and a busy machine.
BACK_S = 180.0


@pytest.fixture
def server(request: pytest.FixtureRequest, live_server: Callable[..., Server]) -> Iterator[Server]:
    name = SERVERS[request.param][0]
    if name != "phpmq":
        yield live_server(name)
        return
    with closing(start_private(name)) as own:
        yield own


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor time the process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(true: Callable[[], bool], worker: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + BACK_S
    while not true():
        assert worker.poll() is None, f"the worker ended with {worker.returncode}"
        assert time.monotonic() < deadline, f"after {BACK_S:g} s still not: {what}"
        time.sleep(0.02)


def send(url: str, queue: str, numbers: range) -> None:
    with closing(connect(url)) as broker:
        broker.publish(
            queue, [Outgoing(encode(build("urn:babel:orders:created", {"n": n}))) for n in numbers]
        )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "away_s",
    [1, pytest.param(60, marks=pytest.mark.skipif(not HEAVY, reason="a minute: set SHINAR_HEAVY=1"))],
)
@pytest.mark.parametrize(
    ("row", "server"),
    [
        pytest.param(
            row,
            row,
            marks=()
            if row in FAST
            else pytest.mark.skipif(not HEAVY, reason="slow to start: set SHINAR_HEAVY=1"),
        )
        for row in SERVERS
    ],
    indirect=["server"],
)
def test_a_server_that_was_away_is_found_again(row: str, server: Server, away_s: int, tmp_path: Path) -> None:
    url = with_options(server.url, SERVERS[row][1])
    if traits(url).lease_s is not None:
        url = with_options(url, "lease_s=5")
    queue = f"outage-{tmp_path.name[-20:]}-{away_s}-{os.getpid()}".replace("_", "-")
    handled, said = tmp_path / "handled", tmp_path / "said"
    handled.touch()
    send(url, queue, range(FIRST))
    with said.open("wb") as log:
        worker = subprocess.Popen([sys.executable, str(PROGRAM), url, queue, str(handled)], stdout=log)
    try:
        wait_until(lambda: handled.stat().st_size > 200, worker, "messages handled")
        server.stop()
        before_s = processor_s(worker)
        time.sleep(away_s)
        used_s = processor_s(worker) - before_s
        server.start()
        started = time.monotonic()
        # What a server without storage had is gone with it: there it is only to be found again.
        expected = set(range(0 if server.durable else FIRST, FIRST + SECOND))
        send(url, queue, range(FIRST, FIRST + SECOND))
        wait_until(lambda: expected <= seen(handled), worker, "everything handled")
        back_s = time.monotonic() - started
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
    twice = len(handled.read_text().split()) - len(seen(handled))
    assert twice <= MOST_TWICE.get(row, FIRST), f"{twice} messages were handled twice"
    lines = said.read_text()
    lost, back = lines.count("lost the broker"), lines.count("the broker is back")
    print(
        f"\n{row}: away {away_s} s, all handled {back_s:.1f} s after its start, {twice} of them twice; "
        f"the worker's CPU meanwhile {used_s:.2f} s; said gone {lost}, back {back}"
    )
    print(lines)
    assert [line for line in lines.splitlines() if not line.startswith("shinar.")] == [], (
        "a driver's own lines"
    )
    # A second time only if it went again while it started.
    assert lost <= 2, lines
    assert lost == back, lines


def seen(handled: Path) -> set[int]:
    return set(map(int, handled.read_text().split()))
