"""Commands as a new user types them: output, exit codes, and errors that say what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shinar.cli.main import COMMANDS, main

APP = """
from shinar import Handlers
handlers = Handlers()

@handlers.handler("urn:babel:users:registered")
def welcome(message):
    print("welcome", message.data["user_id"], flush=True)

@handlers.handler("urn:babel:users:slow")
def slow(message):
    import time
    print("started", flush=True)
    time.sleep(message.data["s"])
    print("finished", flush=True)
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SHINAR_")]:
        monkeypatch.delenv(name)
    (tmp_path / "app.py").write_text(APP)
    return f"sqlite://{tmp_path}/q.db?queue=emails"


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shinar.cli.main", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)


def test_publish_work_and_look(url: str) -> None:
    sent = run("publish", url, "urn:babel:users:registered", '{"user_id": 42}', "--json")
    assert (sent.returncode, json.loads(sent.stdout)["queue"]) == (0, "emails")
    shown = run("tail", url, "--json")
    assert json.loads(shown.stdout)["envelope"]["data"] == {"user_id": 42}
    assert run("publish", url, "urn:babel:nobody").returncode == 0
    worked = run("worker", "app:handlers", "--url", url, "--until-empty", "--backoff-base-s", "0", "--json")
    assert "welcome 42" in worked.stdout
    assert json.loads(worked.stdout.splitlines()[-1])["outcomes"] == {
        "handled": 1,
        "retry": 2,
        "dead_letter": 1,
    }
    dead = run("tail", url.replace("emails", "emails.dlq"), "--json")
    assert json.loads(dead.stdout)["envelope"]["dead_letter"]["reason"] == "unknown_urn"


def test_publish_lines_and_bridge(url: str, tmp_path: Path) -> None:
    lines = (
        '{"urn":"urn:a","data":{"n":1}}\n\n'
        + '{"job":"urn:b","trace_id":"t","data":{"n": 2.50},"meta":{"schema_version":1},"attempts":0}\n'
    )
    assert run("publish", url, "--lines", "--json", stdin=lines).stdout == '{"sent": 2}\n'
    shown = [json.loads(line) for line in run("tail", url, "--json").stdout.splitlines()]
    assert [row["envelope"]["job"] for row in shown] == ["urn:a", "urn:b"]
    target = f"sqlite://{tmp_path}/other.db"
    assert json.loads(run("bridge", url, target, "--copy", "--json").stdout)["sent"] == 2
    moved = run("bridge", url, target, "--json")
    assert (moved.returncode, json.loads(moved.stdout)) == (
        0,
        {"received": 2, "sent": 2, "refused": 0, "lapsed": 0},
    )
    assert run("tail", url).stdout == ""
    assert len(run("tail", target + "?queue=emails", "--json").stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["publish", "redsi://x/q", "urn:x"], "did you mean redis"),
        (["publish", "{url}", "urn:x", "[1]"], "must be a JSON object"),
        (["publish", "{url}", " "], "needs a URN"),
        (["publish"], "give a broker URL"),
        (["publish", "memory://x", "urn:x"], "--queue"),
        (["worker", "app", "--url", "{url}"], "module:name"),
        (["worker", "nowhere:handlers", "--url", "{url}"], "no module 'nowhere'"),
        (["worker", "app:nothing", "--url", "{url}"], "has no 'nothing'"),
        (["worker", "app:handlers", "--url", "{url}", "--on-unknown-urn", "ignore"], "is not one of"),
        (["inspect", "no-such-file"], "cannot be read"),
    ],
)
def test_bad_calls_exit_2_and_say_what_to_do(url: str, words: list[str], text: str) -> None:
    done = run(*(word.format(url=url) for word in words))
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_inspect_judges(url: str, tmp_path: Path) -> None:
    archive = tmp_path / "archive.jsonl"
    archive.write_bytes(b'{"job":"urn:x"}\n\xff\n{"job":5}\n')
    done = run("inspect", str(archive), "--lines", "--json")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["verdict"] for row in rows] == ["accepted", "poison", "no_identity"]
    assert run("inspect", "-", stdin='{"job":"urn:x"}').returncode == 0


def test_settings_have_an_order_and_an_origin(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shinar.toml").write_text('concurrency = 4\nurl = "redis://u:hidden@h/q"\nmax_attempts = 5\n')
    (tmp_path / "secret").write_text("amqp://u:hidden@h/q\n")
    monkeypatch.setenv("SHINAR_CONCURRENCY", "8")
    monkeypatch.setenv("SHINAR_URL_FILE", str(tmp_path / "secret"))
    rows = {r["setting"]: r for r in map(json.loads, run("config", "show", "--json").stdout.splitlines())}
    assert (rows["concurrency"]["value"], rows["concurrency"]["origin"]) == (8, "env SHINAR_CONCURRENCY")
    assert rows["max_attempts"]["origin"] == "file shinar.toml"
    assert rows["log_level"]["origin"] == "default"
    assert (rows["backoff_max_s"]["value"], rows["url"]["origin"]) == (60.0, "env SHINAR_URL_FILE")
    assert rows["url"]["value"] == "amqp://u:***@h/q"
    assert "hidden" not in run("config", "show", "--origin").stdout
    (tmp_path / "shinar.toml").write_text("concurency = 4\n")
    wrong = run("config", "show")
    assert (wrong.returncode, "did you mean concurrency" in wrong.stderr) == (2, True)
    (tmp_path / "shinar.toml").write_text('max_attempts = "five"\n')
    assert (
        "max_attempts (from shinar.toml): must be a whole number, not a text" in run("config", "show").stderr
    )
    monkeypatch.setenv("SHINAR_CONCURRENCY", "many")
    assert (
        "concurrency (from SHINAR_CONCURRENCY): must be a whole number, not 'many'"
        in run("config", "show").stderr
    )


def test_doctor_tells_a_broken_connection(url: str) -> None:
    good, bad = run("doctor", url), run("doctor", "redis://127.0.0.1:1/q")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "SH-1201" in bad.stdout


def test_one_signal_finishes_what_is_in_hand(url: str) -> None:
    run("publish", url, "urn:babel:users:slow", '{"s": 1.5}')
    command = [sys.executable, "-m", "shinar.cli.main", "worker", "app:handlers", "--url", url]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "started\n"
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=30)
    assert (worker.returncode, out) == (0, "finished\n"), err
    assert "1 handled" in err


def test_a_second_signal_hands_it_back_at_once(url: str) -> None:
    run("publish", url, "urn:babel:users:slow", '{"s": 600}')
    command = [sys.executable, "-m", "shinar.cli.main", "worker", "app:handlers", "--url", url]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "started\n"
    worker.send_signal(signal.SIGINT)
    time.sleep(0.3)
    worker.send_signal(signal.SIGINT)
    _, err = worker.communicate(timeout=30)
    assert "1 handed_back" in err
    assert run("tail", url, "--json").stdout != ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert "usage: shinar" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["tail", "inspect", "completion", "doctor", "config", "config show"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "examples:\n" in shown
    assert f"shinar {command}" in shown.partition("examples:")[2]


def test_python_dash_m() -> None:
    from shinar import __version__

    done = subprocess.run(
        [sys.executable, "-m", "shinar", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"shinar {__version__}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["tail", "--folow"], "did you mean --follow?"),
        (["tail", "--limt=5"], "did you mean --limit?"),
        (["config", "show", "--orign"], "did you mean --origin?"),
        (["config", "shwo"], "did you mean show?"),
        (["pubish"], "did you mean publish?"),
        (["completion", "bsh"], "did you mean bash?"),
        (["tail", "--limit", "0"], "at least 1"),
        (["tail", "--interval-s", "-1"], "not a number of seconds"),
    ],
)
def test_typing_errors_get_a_suggestion(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broker", "form"),
    [
        ("mysql://localhost/orders", "mysql://localhost/shop/orders"),
        ("sqlite:///q.db", "sqlite:///var/lib/app/queue.db?queue=orders"),
        ("redis://localhost", "redis://localhost/orders"),
    ],
)
def test_a_missing_queue_is_told_in_the_brokers_own_form(
    url: str, broker: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", broker]) == 2
    assert form in capsys.readouterr().err


def test_tail_of_nothing_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    from shinar.brokers import Outgoing, connect

    assert main(["tail", url.replace("emails", "emials")]) == 0
    out, err = capsys.readouterr()
    assert (out, "no such queue, or it is empty: 'emials'" in err) == ("", True)
    shared = "memory://tail-of-nothing/emails"
    broker = connect(shared)
    broker.publish("emails", [Outgoing(b"{}")] * 2)
    assert len(broker.reserve("emails", 2, 0)) == 2
    assert main(["tail", shared]) == 0
    assert "no message of 'emails' is ready: 2 reserved" in capsys.readouterr().err
    assert main(["tail", shared, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    broker.close()
