"""`shinar dlq` and `shinar redrive` as people type them: output, exit codes, the typed count."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive_letters import kill, plant
from shinar.brokers import Outgoing, connect
from shinar.cli.main import main

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 48)
    broker.close()
    return place


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHINAR_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest's own handlers stay

    def call(*words: str) -> tuple[int, list[Any], str]:
        code = main([*words, "--json"])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return call


def count(url: str, queue: str) -> int:
    broker = connect(url)
    try:
        return broker.depth(queue).ready or 0
    finally:
        broker.close()


def test_see(url: str, run: Run, tmp_path: Path) -> None:
    code, rows, _ = run("dlq", "summary", url)
    assert (code, len(rows), sum(row["count"] for row in rows)) == (0, 12, 48)
    _, listed, _ = run("dlq", "list", url, "--where", "lang = 'go' and exception is not null", "--limit", "2")
    assert [row["exception"] for row in listed] == ["*net.OpError"] * 2
    _, shown, _ = run("dlq", "show", url, "--where", "reason = 'poison'", "--limit", "1")
    assert shown[0]["raw_text"] == '{"broken":10'
    _, exported, _ = run("dlq", "export", url)
    broker = connect(url)
    before = list(broker.browse("orders.dlq"))
    broker.close()
    assert [row["body"].encode() for row in exported] == [delivery.body for delivery in before]
    assert exported[3]["headers"] == {"x-n": "3"}
    main(["dlq", "export", url, "--out", str(tmp_path / "dead.parquet"), "--quiet"])
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "dead.parquet").to_pylist()
    assert [row["body"].encode() for row in table] == [delivery.body for delivery in before]
    assert not (tmp_path / "ledger.db").exists(), "looking made a ledger"


def test_people_can_read_it(url: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", "summary", url, "--new-since", "2020-01-01"]) == 0
    out = capsys.readouterr().out
    assert "48 dead letters of 12 kinds" in out
    assert "NEW" in out
    assert main(["dlq", "show", url, "--limit", "12"]) == 0
    assert "GatewayTimeout" in capsys.readouterr().out
    assert main(["redrive", url, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "40 would go to orders" in out
    assert "4 skipped: poison" in out
    assert "nothing was changed" in out


def test_without_spark_it_stays_here(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected, _ = run("dlq", "summary", url)
    monkeypatch.setattr("shinar.cli.commands.dead_letters.summary.find_spec", lambda _name: None)
    code, rows, err = run("dlq", "summary", url, "--spark-above", "47")
    assert (code, rows) == (0, expected)
    assert err.count("counted in plain Python") == 1
    assert "shinar[spark]" in err
    assert run("dlq", "summary", url, "--spark-above", "48")[2] == ""
    code, rows, err = run("dlq", "summary", url, "--engine", "spark")
    assert (code, rows) == (2, [])
    assert "shinar[spark]" in err


def test_send_status_list_and_undo_plan(url: str, run: Run) -> None:
    code, (plan,), _ = run("redrive", url, "--dry-run")
    assert (code, plan["selected"], plan["sendable"]) == (0, 48, 40)
    assert count(url, "orders.dlq") == 48
    code, (receipt,), _ = run("redrive", url, "--where", "lang = 'php'", "--yes", "--quiet")
    assert (code, receipt["published"], count(url, "orders")) == (0, 12, 12)
    code, (status,), _ = run("redrive", "status", receipt["job"][:17])
    assert (code, status["state"], status["spec"]["where"]) == (0, "done", "lang = 'php'")
    assert status["receipt"]["selected"] == 12
    _, jobs, _ = run("redrive", "list")
    assert [job["id"] for job in jobs] == [receipt["job"]]
    _, plan_rows, _ = run("redrive", "undo-plan", receipt["job"])
    assert {row["queue"] for row in plan_rows} == {"orders"}
    assert len(plan_rows) == 12
    code, _, err = run("redrive", "cancel", receipt["job"])
    assert (code, "is done" in err) == (2, True)
    code, (again,), _ = run("redrive", "resume", receipt["job"])
    assert (code, again["published"]) == (0, 12)


def test_the_count_must_be_typed(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    code, _, err = run("redrive", url)
    assert (code, "--yes" in err) == (2, True)
    assert count(url, "orders") == 0
    for typed, expected in (("39\n", 130), ("40\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr("builtins.input", lambda _prompt, typed=typed: typed)
        assert run("redrive", url)[0] == expected
    assert count(url, "orders") == 40
    _, jobs, _ = run("redrive", "list")
    assert sorted(job["state"] for job in jobs) == ["cancelled", "done"]
    assert all(job["receipt"]["left"] == 0 for job in jobs)


def test_a_killed_runner_is_told(
    url: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from shinar.redrive import Ledger, Redrive, Spec

    ledger = Ledger(tmp_path / "ledger.db")
    job, _ = Redrive(url, Spec(where="lang = 'php'", limit=5), ledger=ledger).prepare()
    kill(ledger, job.id)
    ledger.close()
    assert main(["redrive", "status", job.id]) == 1
    out, err = capsys.readouterr()
    assert f"redrive {job.id}: interrupted" in out
    assert "where lang = 'php', limit 5\n" in out
    assert f"shinar redrive resume {job.id}" in err
    code, (cancelled,), _ = run("redrive", "cancel", job.id)
    assert (code, cancelled["state"], cancelled["receipt"]["left"]) == (0, "cancelled", 0)


def test_a_function_that_fails_is_told(url: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "mend_badly.py").write_text("def mend(data):\n    return data['nosuch']\n")
    code, (plan,), _ = run("redrive", url, "--dry-run", "--patch", "mend_badly:mend", "--limit", "3")
    assert (code, plan["why_skipped"], plan["complete"]) == (0, {"patch": 3}, False)
    assert "KeyError" in plan["examples"]["patch"]
    code, (receipt,), _ = run(
        "redrive", url, "--yes", "--patch", "mend_badly:mend", "--limit", "3", "--quiet"
    )
    assert (code, receipt["published"], receipt["why_skipped"]) == (0, 0, {"patch": 3})
    assert count(url, "orders.dlq") == 48


@pytest.mark.parametrize(
    "words",
    [
        ["redrive", "URL", "--limit", "0", "--yes"],
        ["redrive", "URL", "--max-failure-ratio", "3", "--yes"],
    ],
)
def test_numbers_out_of_range(
    words: list[str], url: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*[url if word == "URL" else word for word in words])
    assert ended.value.code == 2
    assert "is no" in capsys.readouterr().err
    assert count(url, "orders.dlq") == 48


@pytest.mark.parametrize(
    "words",
    [
        ["redrive", "status"],
        ["redrive", "status", "nosuch"],
        ["redrive", "URL", "--where", "nosuch = 1", "--yes"],
        ["redrive", "URL", "--rate", "fast", "--yes"],
        ["redrive", "URL", "--ids", "nosuch.txt", "--yes"],
        ["redrive", "URL", "--since", "soon", "--yes"],
        ["dlq", "summary"],
        ["dlq", "summary", "--lake", "nosuch"],
    ],
)
def test_mistakes_are_usage_errors(words: list[str], url: str, run: Run) -> None:
    code, out, err = run(*[url if word == "URL" else word for word in words])
    assert (code, out) == (2, [])
    assert err.startswith("shinar: ")
    assert count(url, "orders.dlq") == 48


def test_ids_patch_and_rehearsal(url: str, run: Run, tmp_path: Path) -> None:
    _, listed, _ = run("dlq", "list", url, "--limit", "3")
    (tmp_path / "ids.txt").write_text("\n".join(row["id"] for row in listed[:2]))
    (tmp_path / "mend_orders.py").write_text(
        "def mend(data):\n    return data | {'mended': True}\n\n\n"
        "def handle(message):\n    assert message.data['kind'] == 0, 'odd'\n\n\n"
        "handlers = {'urn:babel:orders:created': handle}\n"
    )
    words = ("redrive", url, "--ids", "ids.txt")
    code, (result,), _ = run("redrive", url, "--rehearse", "mend_orders:handlers", "--limit", "5")
    assert (code, result["failed"] > 0, result["passed"]) == (1, True, 4)
    code, (receipt,), _ = run(*words, "--patch", "mend_orders:mend", "--yes", "--quiet")
    assert (code, receipt["published"]) == (0, 2)
    broker = connect(url)
    sent = [json.loads(delivery.body) for delivery in broker.browse("orders")]
    broker.close()
    assert all(message["data"]["mended"] for message in sent)
    assert not {message["meta"]["id"] for message in sent} & {row["id"] for row in listed}


def test_half_an_emoji_stops_nobody(url: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """JavaScript cuts a text in the middle of a surrogate pair, and JSON carries it."""
    place = url.replace("orders.dlq", "cut.dlq")
    broker = connect(place)
    plant(broker, "orders.dlq", "orders", 1)
    (plain,) = [one.body for one in broker.browse("orders.dlq", 1)]
    said = b'"dead_letter":{"error":"cut \\ud83d","exception":"E \\ud83d","original_queue":"orders"}'
    in_error = re.sub(rb'"dead_letter":\{[^}]*\}', lambda _: said, plain)
    in_data = plain.replace(b'"data":{', b'"data":{"note":"cut \\ud83d",')
    in_id = re.sub(rb'"id":"', rb'"id":"\\ud83d', plain)
    assert len({plain, in_error, in_data, in_id}) == 4
    broker.publish("cut.dlq", [Outgoing(body) for body in (plain, in_error, in_data, in_id)])
    broker.close()
    code, rows, _ = run("dlq", "summary", place)
    assert (code, sum(row["count"] for row in rows)) == (0, 4)
    assert main(["dlq", "summary", place]) == main(["dlq", "show", place]) == main(["tail", place]) == 0
    assert "cut \\ud83d" in capsys.readouterr().out
    for words in (["dlq", "list", place], ["dlq", "show", place], ["dlq", "export", place], ["tail", place]):
        assert len(run(*words)[1]) == 4
    assert len(run("dlq", "list", place, "--where", "error like 'cut%' or data.note like 'cut%'")[1]) == 2
    code, (receipt,), _ = run("redrive", place, "--yes", "--quiet", "--any-target")
    assert (code, receipt["published"]) == (0, 4)
    code, (again,), _ = run("redrive", place, "--dry-run")
    assert again["looked"] == 0


def test_the_prompt_left_with_ctrl_c_or_ctrl_d(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def leave(error: type[BaseException]) -> Any:
        def prompt(_text: str) -> str:
            raise error

        return prompt

    monkeypatch.setattr(sys, "stdin", Terminal())
    for error in (EOFError, KeyboardInterrupt):
        monkeypatch.setattr("builtins.input", leave(error))
        assert run("redrive", url)[0] == 130
    _, jobs, _ = run("redrive", "list")
    assert [(job["state"], job["receipt"]["left"]) for job in jobs] == [("cancelled", 0)] * 2
    assert count(url, "orders.dlq") == 48


@pytest.mark.timeout(60)
def test_ctrl_c_ends_with_130_and_a_paused_job(url: str, run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shinar.cli.main", "redrive", url, "--yes", "--rate", "2/s", "--json"]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while count(url, "orders") < 2:
        time.sleep(0.1)
    (job,) = run("redrive", "list")[1]
    code, _, err = run("redrive", "resume", job["id"])
    assert (code, "is being run by" in err) == (2, True)
    runner.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    out, err = runner.communicate(timeout=30)
    assert time.monotonic() - asked_s < 5
    assert runner.returncode == 130, err
    receipt = json.loads(out)
    assert (receipt["state"], receipt["published"] + receipt["left"]) == ("paused", 40)
    assert (count(url, "orders"), count(url, "orders.dlq")) == (
        receipt["published"],
        48 - receipt["published"],
    )


def test_resume_takes_the_same_server_with_another_lease(url: str, run: Run, tmp_path: Path) -> None:
    from shinar.redrive import Ledger, Redrive, Spec

    ledger = Ledger(tmp_path / "ledger.db")
    job, _ = Redrive(f"{url}&lease_s=5", Spec(limit=5), ledger=ledger).prepare()
    ledger.close()
    other = url.replace("q.db", "other.db")
    code, _, err = run("redrive", "resume", job.id, "--url", other)
    assert (code, "is another server" in err) == (2, True)
    code, (receipt,), _ = run("redrive", "resume", job.id, "--url", f"{url}&lease_s=9", "--quiet")
    assert (code, receipt["published"], receipt["maybe_twice"]) == (0, 5, 0)


def test_resume_remembers_what_succeeded(url: str, run: Run, tmp_path: Path) -> None:
    from shinar.idempotency import open_store
    from shinar.redrive import Ledger

    broker = connect(url)
    done = [json.loads(delivery.body)["meta"]["id"] for delivery in broker.browse("orders.dlq", 2)]
    broker.close()
    store = f"sqlite://{tmp_path}/done.db"
    open_store(store).remember(done)
    words = ("redrive", url, "--limit", "6", "--skip-succeeded", store, "--yes", "--quiet")
    code, (receipt,), _ = run(*words)
    assert (code, receipt["why_skipped"]) == (0, {"succeeded": 2})
    ledger = Ledger(tmp_path / "ledger.db")
    assert json.loads(ledger.job(receipt["job"]).spec)["skip_succeeded"] == store
    lines = list(ledger.lines_in(receipt["job"], "skipped"))
    ledger.record_unsent(receipt["job"], lines)  # as if the run had been killed before it looked at them
    kill(ledger, receipt["job"])
    ledger.close()
    code, (again,), _ = run("redrive", "resume", receipt["job"], "--quiet")
    assert (code, again["published"], again["why_skipped"]) == (0, 4, {"succeeded": 2})


def test_a_broker_that_dies_leaves_a_receipt(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shinar.errors import BrokerUnavailable

    class Dying:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def move(self, queue: str, copies: Any) -> Any:
            raise BrokerUnavailable("it hung up", broker="sqlite", queue=queue)

    with monkeypatch.context() as patched:
        patched.setattr("shinar.redrive.send.route.connect", lambda *given: Dying(connect(*given)))
        assert main(["redrive", url, "--limit", "4", "--yes"]) == 1
    out, err = capsys.readouterr()
    job = re.search(r"redrive (\S+): paused", out)
    assert job is not None
    assert "4 not done yet" in out
    assert "it hung up" in err
    assert f"shinar redrive resume {job[1]}" in err
    code, (receipt,), _ = run("redrive", "resume", job[1], "--quiet")
    assert (code, receipt["published"]) == (0, 4)


def test_a_second_redrive_of_the_same_letters_is_told(url: str, run: Run, tmp_path: Path) -> None:
    from shinar.redrive import Ledger, Redrive, Spec

    ledger = Ledger(tmp_path / "ledger.db")
    job, _ = Redrive(url, Spec(limit=5), ledger=ledger).prepare()
    ledger.close()
    code, (receipt,), _ = run("redrive", url, "--limit", "5", "--yes")
    assert (code, receipt["claimed"], receipt["published"]) == (1, 5, 0)
    code, (cancelled,), _ = run("redrive", "cancel", job.id)
    assert (code, cancelled["receipt"]["left"]) == (0, 0)
    code, (again,), _ = run("redrive", "resume", receipt["job"], "--quiet")
    assert (code, again["published"]) == (0, 5)
