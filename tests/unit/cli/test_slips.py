"""What goes wrong at a command line: slips, pipes that close, full disks. One sentence each, no secrets."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.phpmq.server import serve_in_thread

COMMAND = [sys.executable, "-m", "shinar.cli.main"]
TOKEN = "S3CRET-S3CRET-S3CRET"
FLAT = '{"urn":"urn:a","data":{"n":%d}}\n'
WHOLE = (
    b'{"urn":"urn:b","trace_id":"t","data":{"n": 2.50},"meta":{"id":"i-1","schema_version":1},"attempts":0}'
)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SHINAR_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # as for a user
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "app.py").write_text("handlers = {}\n")
    (tmp_path / "broken.py").write_text("open('no-such-settings.json')\n")
    (tmp_path / "file").write_bytes(b"\xff\n")
    return f"sqlite://{tmp_path}/q.db?queue=emails"


def run(*words: str, stdin: bytes | Path = b"") -> subprocess.CompletedProcess[str]:
    if isinstance(stdin, Path):
        with stdin.open("rb") as source:
            return subprocess.run(
                [*COMMAND, *words], stdin=source, capture_output=True, text=True, check=False, timeout=60
            )
    done = subprocess.run([*COMMAND, *words], input=stdin, capture_output=True, check=False, timeout=60)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def bodies(url: str) -> list[bytes]:
    broker = connect(url)
    try:
        return [delivery.body for delivery in broker.browse("emails")]
    finally:
        broker.close()


# -- secrets


@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "summary", "--json", "redis://:S3CRET@127.0.0.1:1/q"],
        ["dlq", "redis://:S3CRET@h/q"],
        ["tail", "redis://h/q", "redis://:S3CRET@h/q?password=S3CRET"],
        ["tail", "redis:/:S3CRET@h/q"],
        ["tail", "redis:/:S3?CRET@h/q"],
    ],
)
def test_no_password_in_an_error(url: str, words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert "S3" not in done.stderr + done.stdout
    assert "127.0.0.1" in done.stderr or "***@h/q" in done.stderr


def test_no_password_in_the_settings(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHINAR_URL", "redis:/:S3CRET@h/q")
    done = run("config", "show", "--origin")
    assert (done.returncode, "S3CRET" in done.stdout, "SHINAR_URL" in done.stdout) == (0, False, True)


# -- words and settings


def test_flags_and_words_in_any_order(url: str) -> None:
    assert run("publish", url, "--header", "a=b", "urn:x", '{"n":1}').returncode == 0
    assert run("tail", "--json", url).stdout.count("urn:x") == 1
    assert run("dlq", "list", "--limit", "3", url).returncode == 0
    assert "begins with 'ID'" in run("redrive", "status", "--json", "ID").stderr


def test_the_url_from_elsewhere(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("publish", "--url", url, "urn:a").returncode == 0
    assert run("publish", url, "urn:a", "--url", url).returncode == 2
    monkeypatch.setenv("SHINAR_BROKER_DATA", "/somewhere")
    monkeypatch.setenv("SHINAR_URL", url)
    assert run("publish", "urn:b", '{"n":1}').returncode == 0
    assert [json.loads(body)["data"] for body in bodies(url)] == [{}, {"n": 1}]


# -- publish --lines


def test_lines_are_checked_and_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "registry.json").write_text('{"schemas": [{"urn": "urn:a", "schema": "a.json"}]}')
    (tmp_path / "a.json").write_text('{"type": "object", "required": ["id"]}')
    for flag in (["--key", "k"], ["--trace-id", "t"], ["urn:x"]):
        assert run("publish", url, "--lines", *flag, stdin=(FLAT % 1).encode()).returncode == 2
    for flag in (["--registry", "registry.json"], ["--strict"]):
        text = b'{"urn":"urn:a","data":{"big":12345678901234567890}}\n'
        done = run("publish", url, "--lines", *flag, stdin=text)
        assert (done.returncode, "line 1" in done.stderr) == (2, True), done.stderr
    for bad in (b'{"urn":"urn:a","dta":{}}', b'{"urn":"urn:a","data":{"x":"\xff"}}', b'{"meta":{}}'):
        assert "line 2" in run("publish", url, "--lines", stdin=b"\n" + bad).stderr
    assert bodies(url) == []
    assert run("publish", url, "--lines", stdin=(FLAT % 1).encode() + WHOLE).returncode == 0
    flat, whole = bodies(url)
    assert json.loads(flat)["meta"]["queue"] == "emails"
    assert whole == WHOLE


def test_a_bad_line_says_how_many_went_before_it(url: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(FLAT % n for n in range(600)) + "{nonsense\n")
    done = run("publish", url, "--lines", stdin=lines)
    assert (done.returncode, len(bodies(url))) == (2, 0)
    assert "line 601" in done.stderr
    done = run("publish", url, "--lines", stdin=lines.read_bytes())
    assert (done.returncode, len(bodies(url))) == (2, 500)
    assert "500 messages were sent" in done.stderr


# -- pipes and disks


@pytest.mark.parametrize("words", [["tail", "URL", "--json"], ["--help"]])
def test_a_pipe_nobody_reads(url: str, words: list[str]) -> None:
    broker = connect(url)
    broker.publish("emails", [Outgoing(WHOLE)])
    broker.close()
    reads, writes = os.pipe()
    os.close(reads)
    command = [*COMMAND, *(url if word == "URL" else word for word in words)]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["tail", "URL"], ["inspect", "many.jsonl", "--lines"]])
def test_a_reader_that_leaves_after_one_line(url: str, tmp_path: Path, words: list[str]) -> None:
    """More than fits into the pipe and Python's buffer, so that a print in the middle fails."""
    broker = connect(url)
    broker.publish("emails", [Outgoing(WHOLE)] * 3000)
    broker.close()
    (tmp_path / "many.jsonl").write_bytes((WHOLE + b"\n") * 3000)
    command = [*COMMAND, *(url if word == "URL" else word for word in words)]
    shown = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    assert shown.stderr is not None
    assert "urn:b" in shown.stdout.readline()
    shown.stdout.close()
    assert (shown.stderr.read(), shown.wait(timeout=60)) == ("", 0)
    shown.stderr.close()


def test_a_follower_is_heard_at_once(url: str) -> None:
    run("publish", url, "urn:x")
    tail = subprocess.Popen([*COMMAND, "tail", url, "--follow", "--json"], stdout=subprocess.PIPE, text=True)
    assert tail.stdout is not None
    try:
        assert select.select([tail.stdout], [], [], 20)[0], "nothing came"
        assert "urn:x" in tail.stdout.readline()
    finally:
        tail.kill()
        tail.communicate(timeout=10)


def test_a_full_disk(url: str) -> None:
    run("publish", url, "urn:x")
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "tail", url]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left" in done.stderr


# -- one sentence each


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dlq", "export", "{url}", "--out", "/dev/full"], "No space left"),
        (["dlq", "export", "{url}", "--out", "file/x"], "Not a directory"),
        (["redrive", "list", "--ledger", "file/x.db"], "ledger"),
        (["dlq", "list", "{url}", "--ids", "file"], "not UTF-8"),
        (["dlq", "list", "{url}", "--since", "99999999999d"], "years"),
        (["dlq", "list", "{url}", "--where", "exception"], "not a condition"),
        (["worker", "app:handlers", "--url", "{url}", "--log-level", "foo"], "not one of debug"),
        (["worker", "app:__name__", "--url", "{url}"], "is a str"),
        (["worker", "app:handlers", "--url", "{url}", "--prefetch", "-1", "--until-empty"], "prefetch"),
        (["worker", "app:handlers", "--url", "{url}", "--metrics-port", "{busy}"], "in use"),
        (["broker", "monitor", "--interval-s", "0"], "more than 0"),
        (["publish", "{url}", "urn:x", "--delay-s", "inf"], "not a number of seconds"),
        (["broker", "serve", "--data", "file"], "is a file"),
    ],
)
def test_mistakes_are_one_sentence(url: str, words: list[str], text: str) -> None:
    run("publish", url, "urn:x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = taken.getsockname()[1]
        done = run(*(word.format(url=url, busy=busy) for word in words))
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_ones_own_code_keeps_its_traceback(url: str) -> None:
    done = run("worker", "broken:handlers", "--url", url)
    assert (done.returncode, "Traceback" in done.stderr, "broken.py" in done.stderr) == (1, True, True)


def test_a_time_in_nanoseconds_is_shown_as_it_is(url: str) -> None:
    body = b'{"job":"urn:x","data":{},"meta":{"created_at":1763172600000000000}}'
    done = run("inspect", "-", "--json", stdin=body)
    assert json.loads(done.stdout)["created_at"] == "1763172600000000000"


# -- the embedded broker


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    from shinar.phpmq.server import Listener, access

    listeners = (Listener(port=0, token=True),)
    opened = serve_in_thread(tmp_path / "guarded", listeners=listeners, access=access.from_token(TOKEN))
    with opened as server:
        yield server.url


def test_the_token_from_the_settings(guarded: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"{guarded}/orders"
    assert run("publish", place, "urn:x").returncode == 2
    monkeypatch.setenv("SHINAR_TOKEN", TOKEN)
    assert run("publish", place, "urn:x").returncode == 0
    assert "urn:x" in run("broker", "show", place).stdout
    assert run("broker", "queues", guarded).stdout.count("orders") == 1
    sent = run("redrive", place, "--to", "other", "--yes", "--json")
    assert json.loads(sent.stdout)["published"] == 1, sent.stderr
    again = run("redrive", "resume", json.loads(sent.stdout)["job"], "--json")
    assert (again.returncode, TOKEN in again.stdout + again.stderr) == (0, False), again.stderr
    wrong = run("publish", f"{place}?token=other", "urn:x")
    assert (wrong.returncode, "SH-1203" in wrong.stderr) == (2, True)


def test_a_token_goes_nowhere_by_a_file_that_lies_about(
    guarded: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write shinar.toml into a folder must not get the token of those who work there."""
    (tmp_path / "shinar.toml").write_text(f'url = "{guarded}/orders"\n')
    monkeypatch.setenv("SHINAR_TOKEN", TOKEN)
    for words in (["publish", "urn:x"], ["tail"], ["broker", "queues"]):
        done = run(*words)
        assert (done.returncode, "is not sent to" in done.stderr) == (2, True), done.stderr
        assert TOKEN not in done.stderr
    assert run("publish", f"{guarded}/orders", "urn:x").returncode == 0
    assert run("doctor", f"{guarded}/orders").returncode == 0
    monkeypatch.setenv("SHINAR_CONFIG", str(tmp_path / "shinar.toml"))
    assert run("publish", "urn:x").returncode == 0, "the file was named by the user"
    monkeypatch.delenv("SHINAR_CONFIG")
    monkeypatch.delenv("SHINAR_TOKEN")
    (tmp_path / "shinar.toml").write_text(f'url = "{guarded}/orders"\ntoken = "{TOKEN}"\n')
    assert run("publish", "urn:x").returncode == 0, "the token is the file's own"


def test_nor_by_a_ledger_that_lies_about(
    guarded: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHINAR_TOKEN", TOKEN)
    queue = f"{guarded}/orders"
    assert run("publish", queue, "urn:x").returncode == 0
    sent = run("redrive", queue, "--to", "other", "--yes", "--json", "--ledger", "jobs.db")
    job = json.loads(sent.stdout)["job"]
    assert run("redrive", "resume", job, "--ledger", "jobs.db", "--json").returncode == 0
    (tmp_path / "shinar.toml").write_text('ledger = "jobs.db"\n')
    done = run("redrive", "resume", job, "--json")
    assert (done.returncode, "is not sent to" in done.stderr) == (2, True), done.stderr


def test_a_slip_in_a_queues_name_is_told(url: str, tmp_path: Path) -> None:
    with serve_in_thread(tmp_path / "broker") as server:
        assert run("publish", f"{server.url}/orders", "urn:x").returncode == 0
        for words in (["dlq", "summary"], ["redrive", "--dry-run"], ["redrive", "--yes"]):
            done = run(words[0], *words[1:], f"{server.url}/ordres")
            assert (done.returncode, "no such queue: 'ordres'" in done.stderr) == (0, True), done.stderr
        assert "no queue" not in run("dlq", "summary", f"{server.url}/orders").stderr
        assert "ordres" not in run("broker", "queues", server.url).stdout
