"""A real PHP process against the embedded broker, in both forms of the protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.phpmq.server import Listener, ServerThread, serve_in_thread

SCRIPT = Path(__file__).parent / "php" / "phpmq.php"
PHP = shutil.which("php")

pytestmark = pytest.mark.skipif(
    PHP is None and not os.environ.get("CI"), reason="php is not installed (apt-get install php-cli)"
)


@pytest.fixture(params=["legacy", "ttl"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(tmp_path: Path, form: str) -> Iterator[ServerThread]:
    with serve_in_thread(tmp_path, listeners=(Listener(port=0, dispatch_form=form),)) as running:
        yield running


def php(server: ServerThread, form: str, *words: str) -> list[dict[str, object]]:
    address = server.url.partition("://")[2]
    done = subprocess.run(
        [PHP or "php", str(SCRIPT), address, form, *words], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_php_sends_and_python_reads(server: ServerThread, form: str) -> None:
    php(server, form, "send", "orders", "300")
    with closing(connect(server.url)) as broker:
        got = []
        while len(got) < 300 and (batch := broker.reserve("orders", 300, 10)):
            got += batch
        assert [d.body.decode() for d in got] == [f"php {n} größe ✓" for n in range(300)]
        assert broker.ack(got) == ()


def test_python_sends_and_php_consumes_and_acknowledges(server: ServerThread, form: str) -> None:
    with closing(connect(server.url)) as broker:
        sent = [f"n {n} größe ✓" + "x" * (n * 37 % 2000) for n in range(500)]
        broker.publish("orders", [Outgoing(text.encode()) for text in sent])
        got = php(server, form, "work", "orders", "50", "500")
        assert [row["body"] for row in got] == sent
        assert {row["ttl"] for row in got} == ({"0"} if form == "ttl" else {None})
        assert len({row["id"] for row in got}) == 500
        # The last acknowledgements race with the hang-up; the server reads them first.
        assert broker.reserve("orders", 10, 1.0) == []


def test_what_php_leaves_unacknowledged_comes_back(server: ServerThread, form: str) -> None:
    with closing(connect(server.url)) as broker:
        broker.publish("orders", [Outgoing(b"%d" % n) for n in range(5)])
        php(server, form, "work", "orders", "5", "3", "leave")
        again = broker.reserve("orders", 5, 5)
        while len(again) < 5 and (more := broker.reserve("orders", 5, 2)):
            again += more
        assert sorted(d.body for d in again) == [b"%d" % n for n in range(5)]
        assert {d.native_count for d in again} == {1}


def test_requeue_and_dead_letter_from_php(server: ServerThread, form: str) -> None:
    with closing(connect(server.url)) as broker:
        broker.publish("orders", [Outgoing(b"first"), Outgoing(b"second")])
        rows = php(server, form, "work", "orders", "1", "3", "requeue")
        assert [row["body"] for row in rows] == ["first", "second", "first"]
        if form == "ttl":
            assert rows[2]["ttl"] in ("899", "900")
        rows = php(server, form, "work", "orders", "1", "2", "dead")
        assert [row["body"] for row in rows] == ["second", "first"]
        dead = broker.reserve("orders.dlq", 5, 5)
        dead += broker.reserve("orders.dlq", 5, 0.5)
        assert [d.body for d in dead] == [b"second", b"first"]


def test_four_php_senders_keep_their_own_order(server: ServerThread, form: str) -> None:
    address = server.url.partition("://")[2]
    senders = [
        subprocess.Popen([PHP or "php", str(SCRIPT), address, form, "send", f"q{n % 2}", "500"])
        for n in range(4)
    ]
    assert [sender.wait(60) for sender in senders] == [0] * 4
    with closing(connect(server.url)) as broker:
        for queue in ("q0", "q1"):
            found = [int(d.body.split()[1]) for d in broker.browse(queue)]
            assert sorted(found) == sorted([*range(500)] * 2)
