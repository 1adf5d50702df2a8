"""`shinar worker` and `shinar publish` as programs: logs, queues, signals, metrics, slips."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

APP = """
import asyncio, logging, os, sys, time
from shinar import Handlers

handlers = Handlers()
log = logging.getLogger("shop.emails")


@handlers.handler("urn:babel:users:logs")
def logs(message):
    log.info("sending to %s", message.data["to"])


@handlers.handler("urn:babel:users:fails")
def fails(message):
    raise KeyError("nope")


@handlers.handler("urn:babel:users:blocks")
async def blocks(message):
    print("started", flush=True)
    time.sleep(600)


@handlers.handler("urn:babel:users:hangs")
def hangs(message):
    print("started", flush=True)
    time.sleep(600)


@handlers.handler("urn:babel:*")
def rest(message):
    print(message.urn, message.data.get("n"), flush=True)
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SHINAR_")]:
        monkeypatch.delenv(name)
    (tmp_path / "app.py").write_text(APP)
    return f"sqlite://{tmp_path}/queue.db?queue=users"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "shinar.cli.main", *words]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=60)


def publish(url: str, urn: str, data: str = "{}", *words: str) -> None:
    done = run("publish", url, urn, data, *words)
    assert done.returncode == 0, done.stderr


def work(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run("worker", "app:handlers", "--url", url, "--until-empty", "--backoff-base-s", "0", *words)


def test_what_a_handler_logs_comes_as_json_with_the_fields_of_its_message(url: str) -> None:
    publish(url, "urn:babel:users:logs", '{"to": "ada"}', "--trace-id", "trace-7")
    done = work(url, "--log-format", "json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    (own,) = [line for line in lines if line["logger"] == "shop.emails"]
    assert (own["message"], own["level"]) == ("sending to ada", "info")
    assert (own["trace_id"], own["urn"], own["queue"]) == ("trace-7", "urn:babel:users:logs", "users")
    assert lines[-1]["message"] == "received 1: 1 handled (stopped by empty)"
    assert "trace_id" not in lines[-1]


def test_the_text_log_has_them_too_and_nothing_in_it_forges_a_line(url: str) -> None:
    publish(url, "urn:babel:users:logs", '{"to": "ada\\n12:00:00 error   forged \\u001b[2J"}')
    done = work(url)
    (line,) = [line for line in done.stderr.splitlines() if "sending to" in line]
    assert r"ada\n12:00:00 error   forged \x1b[2J  trace_id=" in line
    assert "\x1b" not in done.stderr


def test_a_failure_is_logged_with_its_class_and_a_traceback_on_request(url: str) -> None:
    publish(url, "urn:babel:users:fails")
    plain = work(url, "--max-attempts", "1")
    assert "failed: KeyError: 'nope'" in plain.stderr
    assert "Traceback" not in plain.stderr
    publish(url, "urn:babel:users:fails")
    shown = work(url, "--max-attempts", "1", "--tracebacks")
    assert 'raise KeyError("nope")' in shown.stderr
    publish(url, "urn:babel:users:fails")
    assert "Traceback" in work(url, "--max-attempts", "1", "--log-level", "debug").stderr


def test_several_queues_and_a_pattern(url: str) -> None:
    for queue in ("a", "b"):
        publish(url, "urn:babel:orders:created", f'{{"n": "{queue}"}}', "--queue", queue)
    done = work(url, "--queue", "a", "--queue", "b=3")
    assert sorted(done.stdout.split("\n")) == ["", "urn:babel:orders:created a", "urn:babel:orders:created b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--queue", "a,b"], "for several queues write --queue a --queue b"),
        (["--queue", "a", "--queue", "a"], "write a=2"),
        (["--queue", "a=0"], "from 1 to 100"),
    ],
)
def test_odd_queues_are_refused(url: str, words: list[str], said: str) -> None:
    done = work(url, *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("urn", ["hangs", "blocks"])
def test_a_second_signal_ends_it_with_130_whatever_the_handler_does(url: str, urn: str) -> None:
    publish(url, f"urn:babel:users:{urn}")
    worker = started(url)
    for _ in range(2):
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 130, err
    assert "1 handed_back" in err


def test_a_third_signal_does_not_wait_for_anything(url: str) -> None:
    publish(url, "urn:babel:users:blocks")
    worker = started(url)
    begun = time.monotonic()
    for _ in range(3):
        worker.send_signal(signal.SIGINT)
        time.sleep(0.3)
    worker.communicate(timeout=20)
    assert worker.returncode == 130
    assert time.monotonic() - begun < 2, "it waited for the event loop"


def started(url: str) -> subprocess.Popen[str]:
    words = command("worker", "app:handlers", "--url", url)
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "started\n"
    return worker


def test_metrics_are_served_on_the_address_that_was_given(url: str) -> None:
    publish(url, "urn:babel:users:hangs")
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    words = command(
        "worker", "app:handlers", "--url", url, "--metrics-host", "127.0.0.2", "--metrics-port", str(port)
    )
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=10) as answer:
            assert b'shinar_received_total{queue="users"} 1' in answer.read()
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
    finally:
        worker.kill()
        worker.communicate()


def test_data_in_place_of_the_urn_is_refused(url: str) -> None:
    done = run("publish", url, '{"a": 1}')
    assert (done.returncode, "the URN is missing" in done.stderr) == (2, True)
    assert run("tail", url, "--json").stdout == ""


def test_publish_warns_where_the_message_ends_with_the_process() -> None:
    done = run("publish", "memory://shop/orders", "urn:babel:orders:created")
    assert (done.returncode, "lives in this process only" in done.stderr) == (0, True)
