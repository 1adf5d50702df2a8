"""`shinar broker` as its users run it: a process, its output and its exit codes."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.phpmq.schema import DATA_FILE

COMMAND = [sys.executable, "-m", "shinar.cli.main", "broker"]


def broker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def url(data: Path) -> Iterator[str]:
    with subprocess.Popen(
        [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--data", str(data), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert started["pid"] == process.pid
        yield started["urls"][0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def publish(url: str, queue: str, *texts: str) -> None:
    with closing(connect(url)) as opened:
        opened.publish(queue, [Outgoing(text.encode(), {"n": text}) for text in texts])


def test_figures_and_messages(url: str) -> None:
    publish(url, "orders", "alpha", "beta", "gamma")
    (row,) = rows(broker("queues", url, "--json"))
    assert (row["queue"], row["ready"], row["published"]) == ("orders", 3, 3)
    assert rows(broker("status", url, "--json"))[0]["ready"] == 3
    assert "orders" in broker("queues", url).stdout
    assert [row["body"] for row in rows(broker("show", f"{url}/orders", "--limit", "2", "--json"))] == [
        "alpha",
        "beta",
    ]
    assert [row["body"] for row in rows(broker("search", f"{url}/orders", "amm", "--json"))] == ["gamma"]
    assert "gamma" in broker("search", f"{url}/orders", "n=gam").stdout
    assert broker("search", f"{url}/orders", "nothing like it").returncode == 1
    for words in (["show", f"{url}/absent"], ["search", f"{url}/absent", "x"], ["flush", f"{url}/absent"]):
        absent = broker(*words)
        assert (absent.returncode, "no such queue" in absent.stderr) == (2, True)
    assert len(rows(broker("monitor", url, "--json", "--rounds", "2", "--interval-s", "0.1"))) == 2
    assert broker("monitor", url, "--rounds", "2", "--interval-s", "0.1").stdout.count("orders") == 2


def test_the_metrics_add_up_and_fit_a_terminal(url: str) -> None:
    long_name = "a-queue-with-a-rather-long-name-that-nobody-would-type"
    publish(url, long_name, *map(str, range(1500)))
    with closing(connect(url)) as opened:
        opened.ack(opened.reserve(long_name, 100, 5))
        opened.move("other", [(one, Outgoing(b"x")) for one in opened.reserve(long_name, 10, 5)])
        opened.release(opened.reserve(long_name, 5, 5), 60)
        assert broker("move", f"{url}/{long_name}", "other", "--limit", "20").returncode == 0
        opened.reserve(long_name, 7, 5)
        row = next(row for row in rows(broker("queues", url, "--json")) if row["queue"] == long_name)
        assert (row["published"], row["acked"], row["removed"], row["delayed"]) == (1500, 110, 20, 5)
        parts = ("ready", "reserved", "delayed", "acked", "expired", "dead", "removed")
        assert row["published"] == sum(int(str(row[name])) for name in parts)
        shown = [broker("queues", url), broker("status", url)]
        shown.append(broker("monitor", url, "--rounds", "2", "--interval-s", "0.2"))
        for done in shown:
            assert done.returncode == 0, done.stderr
            lines = [line for line in done.stdout.splitlines() if not line.startswith("data ")]
            assert max(map(len, lines)) <= 80, done.stdout
    status = dict(line.split(maxsplit=1) for line in shown[1].stdout.splitlines())
    assert status["pid"].isdecimal()
    assert "{}" not in shown[1].stdout


def test_what_messages_hold_cannot_move_the_cursor(url: str) -> None:
    with closing(connect(url)) as opened:
        opened.publish("evil", [Outgoing("\x1b[2J\u202eevil\r\n".encode(), {"n\x1b]52;": "\x9b1m\n"})])
    for words in (["show", f"{url}/evil"], ["search", f"{url}/evil", "evil"]):
        text = broker(*words).stdout
        assert "\\x1b[2J\\u202eevil\\r\\n" in text
        assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(text)


def test_move_and_flush(url: str) -> None:
    publish(url, "orders.dlq", *map(str, range(10)))
    assert rows(broker("move", f"{url}/orders.dlq", "orders", "--limit", "4", "--json"))[0]["moved"] == 4
    refused = broker("flush", f"{url}/orders.dlq")
    assert refused.returncode == 1
    assert "6 messages" in refused.stderr
    assert rows(broker("flush", f"{url}/orders.dlq", "--yes", "--json"))[0]["deleted"] == 6
    assert {row["queue"]: row["ready"] for row in rows(broker("queues", url, "--json"))} == {
        "orders": 4,
        "orders.dlq": 0,
    }
    assert broker("flush", f"{url}/nope", "--yes").returncode == 2


def test_backup_and_fsck_beside_a_running_server(url: str, data: Path, tmp_path: Path) -> None:
    publish(url, "orders", "kept")
    copy = tmp_path / "copy.sqlite"
    assert broker("backup", "--data", str(data), str(copy)).returncode == 0
    assert broker("backup", "--data", str(data), str(copy)).returncode == 2, "never overwrites"
    assert broker("fsck", "--data", str(data)).returncode == 0
    assert broker("fsck", "--data", str(data), "--repair").returncode == 2, "the folder is in use"
    assert broker("serve", "--listen", "127.0.0.1:0", "--data", str(data)).returncode == 2
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT body FROM message").fetchall() == [(b"kept",)]


def test_fsck_finds_and_mends(data: Path, tmp_path: Path) -> None:
    from shinar.phpmq.store import BrokerStore

    store = BrokerStore(data)
    queue = store.create_queue("orders")
    store.insert([(queue.next + n, b"%d" % n, None, 1, 0) for n in range(3)])
    queue.next, queue.messages = queue.next + 3, 3
    store.commit([queue], [(queue.next - 1, 2)])
    store.close()
    with closing(sqlite3.connect(data / DATA_FILE)) as db, db:
        db.execute("UPDATE queue SET messages = 99, delayed = 5")
        db.execute("INSERT INTO delivery VALUES (123, 1)")
    found = broker("fsck", "--data", str(data), "--json")
    assert found.returncode == 1
    assert len(json.loads(found.stdout)["findings"]) == 3
    assert broker("fsck", "--data", str(data), "--repair", "--compact").returncode == 0
    assert broker("fsck", "--data", str(data)).returncode == 0
    (data / DATA_FILE).write_bytes(b"not a database, but long enough to look at" * 100)
    assert broker("fsck", "--data", str(data)).returncode == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["serve", "--listen", "0.0.0.0:0"], "add ,tls or a token"),
        (["serve", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"], "add a token"),
        (["serve", "--listen", "127.0.0.1:0,tls"], "--tls-cert"),
        (["serve", "--listen", "nonsense"], "HOST:PORT"),
        (["serve", "--listen", "127.0.0.1:0,form=odd"], "form=legacy"),
        (["serve", "--max-body-mib", "0"], "between 1 and 512"),
        (["serve", "--tls-cert", "missing.pem", "--listen", "127.0.0.1:0,tls"], "certificate"),
        (["serve", "--token-file", "missing", "--listen", "127.0.0.1:0"], "token-file"),
        (["status", "redis://127.0.0.1:1"], "not the embedded broker"),
        (["status", "phpmq://127.0.0.1:1"], "shinar broker serve"),
        (["show", "phpmq://127.0.0.1:1/q"], "cannot reach"),
        (["fsck", "--compact"], "--repair"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_calls_say_what_to_do(words: list[str], reason: str, data: Path) -> None:
    extra = ["--data", str(data)] if words[0] in ("serve", "fsck") else []
    done = broker(*words, *extra)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_interrupt_is_130_and_a_public_listener_with_token_is_served(data: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-token\n")
    with subprocess.Popen(
        [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--data", str(data), "--token-file", str(token)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        publish(f"{url}/q?token=0123456789abcdef-token", "q", "x")
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "0123456789abcdef" not in log
