"""The ledger's file and its jobs: made once, private, brought up to date, claimed by one job at a time."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from redrive_letters import body, plant
from shinar.brokers import Outgoing, connect, parse
from shinar.errors import ConfigError, StoreError, UsageError
from shinar.redrive import Job, JobState, Ledger, Line, LineState, Redrive, Spec
from shinar.redrive.ledger.lines import reopened
from shinar.redrive.model import endpoint

#: The tables as version 1 made them.
VERSION_1 = (
    "CREATE TABLE shinar_redrive_jobs (id TEXT PRIMARY KEY, who TEXT NOT NULL, created_ms INTEGER NOT NULL, "
    "source TEXT NOT NULL, queue TEXT NOT NULL, target TEXT NOT NULL, spec TEXT NOT NULL, "
    "state TEXT NOT NULL, planned INTEGER NOT NULL, anchor TEXT NOT NULL, marks TEXT NOT NULL, "
    "runner TEXT NOT NULL, "
    "seen_ms INTEGER NOT NULL, note TEXT NOT NULL)",
    "CREATE TABLE shinar_redrive_lines (job TEXT NOT NULL, digest TEXT NOT NULL, n INTEGER NOT NULL, "
    "id TEXT NOT NULL, position TEXT NOT NULL, target TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL, "
    "bytes INTEGER NOT NULL, new_id TEXT NOT NULL, generation INTEGER NOT NULL, copy TEXT NOT NULL, "
    "at_ms INTEGER NOT NULL, PRIMARY KEY (job, digest, n))",
    "CREATE INDEX shinar_redrive_lines_state ON shinar_redrive_lines (job, state)",
    "CREATE TABLE shinar_redrive_version (version TEXT PRIMARY KEY)",
    "INSERT INTO shinar_redrive_version VALUES ('1')",
)


def job(id_: str, **changes: object) -> Job:
    plain = Job(id_, "me", 1, "list://x", "orders.dlq", "list://x", "{}", source_key="list://x")
    return msgspec.structs.replace(plain, **changes)


def test_many_first_users_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.db"
    code = f"from shinar.redrive import Ledger; Ledger({str(path)!r}).close()"
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(6)]
    for process in started:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()


def test_a_first_user_who_looked_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the tables between this one's look and its own attempt."""
    Ledger(tmp_path / "ledger.db").close()
    monkeypatch.setattr("shinar.database.session.Database._has", lambda *_: False)
    ledger = Ledger(tmp_path / "ledger.db")
    assert ledger.jobs() == []
    ledger.close()


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ledger.db"
    ledger = Ledger(path)
    ledger.create(job("j1"))
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, *path.parent.iterdir())]
    ledger.close()
    assert modes[:2] == [0o600, 0o700]
    assert set(modes[2:]) == {0o600}


def test_a_ledger_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    path, url = tmp_path / "old.db", f"sqlite://{tmp_path}/q.db?queue=orders.dlq&lease_s=9"
    broker = connect(url)
    plant(broker, "orders.dlq", "orders", 3)
    broker.close()
    new = Ledger(tmp_path / "new.db")
    made, _ = Redrive(url, ledger=new).prepare()
    rows = [msgspec.structs.astuple(line) for line in new.lines_in(made.id, LineState.PLANNED)]
    new.close()
    db = sqlite3.connect(path)
    for sql in VERSION_1:
        db.execute(sql)
    old = [int(v) if isinstance(v, bool) else v for v in msgspec.structs.astuple(made)[:-1]]
    db.execute(f"INSERT INTO shinar_redrive_jobs VALUES ({', '.join('?' * len(old))})", old)
    db.executemany(
        f"INSERT INTO shinar_redrive_lines VALUES (?, {', '.join('?' * len(rows[0]))})",
        [(made.id, *row) for row in rows],
    )
    db.commit()
    db.close()
    for _ in range(2):
        ledger = Ledger(path)
        assert ledger.job(made.id).source_key == endpoint(parse(url))
        ledger.close()
    ledger = Ledger(path)
    assert Redrive(url, ledger=ledger).resume(made.id).published == 3
    ledger.close()


def test_a_newer_or_damaged_ledger_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE shinar_redrive_version SET version = '9'")
    db.commit()
    db.close()
    with pytest.raises(ConfigError, match=r"ledger\.db has layout 9.*newer shinar"):
        Ledger(path)
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    with pytest.raises(StoreError, match=r"ledger\.db"):
        Ledger(path)


def claimed(ledger: Ledger, job_: Job, *lines: Line) -> list[str]:
    return [line.state for line in ledger.claim(job_, lines, Counter())]


def test_a_letter_belongs_to_one_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    first, second = job("j1"), job("j2")
    other_queue, other_server = job("j3", queue="x.dlq"), job("j4", source_key="list://y")
    for one in (first, second, other_queue, other_server):
        ledger.create(one)
    assert claimed(ledger, first, Line("d"), Line("d"), Line("e", position="1")) == ["planned"] * 3
    assert claimed(ledger, second, Line("d"), Line("d"), Line("d")) == ["skipped", "skipped", "planned"]
    assert claimed(ledger, second, Line("e", position="1")) == ["skipped"]
    assert claimed(ledger, second, Line("e", position="2")) == ["planned"]
    assert claimed(ledger, other_queue, Line("d")) == claimed(ledger, other_server, Line("d")) == ["planned"]
    receipt = ledger.receipt("j2")
    assert (receipt.claimed, receipt.adds_up) == (3, False)
    assert "j1" in receipt.examples["claimed"]
    ledger.cancel("j1")
    ledger.retry(second)
    assert ledger.receipt("j2").claimed == 0
    ledger.close()


def test_a_failed_line_that_was_not_refused_may_have_arrived() -> None:
    refused = Line("d", state=LineState.FAILED, why="SH-1204: too large")
    unknown = Line("d", state=LineState.FAILED, why="unconfirmed: SH-1206: no answer")
    assert [line and line.state for line in map(reopened, (refused, unknown))] == ["planned", "intent"]
    assert reopened(Line("d", state=LineState.SKIPPED, why="loop: died again after redrive 2")) is None


def test_of_two_jobs_on_one_queue_the_second_says_what_it_left(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/orders.dlq"
    broker = connect(url)
    broker.publish("orders.dlq", [Outgoing(body(0, "orders"))] * 3)
    ledger = Ledger(tmp_path / "ledger.db")
    first, _ = Redrive(url, Spec(limit=2), ledger=ledger).prepare()
    assert Redrive(url, ledger=ledger).dry_run().why_skipped == {"claimed": 2}
    second = Redrive(url, ledger=ledger).run()
    assert (second.published, second.claimed, second.adds_up) == (1, 2, False)
    assert Redrive(url, Spec(limit=2), ledger=ledger).run(first).published == 2
    last = Redrive(url, ledger=ledger).resume(second.job)
    assert (last.state, last.published, last.claimed) == (JobState.DONE, 1, 0)
    assert last.why_skipped == {"already sent": 2}
    assert len(list(broker.browse("orders"))) == 3
    ledger.close()
    broker.close()


def test_half_a_plan_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as done with the lines that were written before the kill."""
    url = f"memory://{uuid.uuid4().hex}/orders.dlq"
    broker = connect(url)
    plant(broker, "orders.dlq", "orders", 300)
    ledger = Ledger(tmp_path / "ledger.db")
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "planned", lambda *_: None)  # killed before that
        half, _ = Redrive(url, ledger=ledger).prepare()
    with pytest.raises(UsageError, match="not planned to its end"):
        Redrive(url, ledger=ledger).resume(half.id)
    assert ledger.job(half.id).state == JobState.PLANNING
    ledger.cancel(half.id)
    assert Redrive(url, ledger=ledger).run().published == 250
    ledger.close()
    broker.close()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("kafka://h/orders.dlq?group=a", "kafka://h:9092/orders.dlq?group=b&partitions=3", True),
        ("redis://:secret@h/0/orders.dlq?lease_s=3", "redis://h:6379/0/other", True),
        ("redis://h/0/orders.dlq", "redis://h/orders.dlq", True),
        ("redis://h/0/orders.dlq", "redis://h/1/orders.dlq", False),
        ("redis://h/0/orders.dlq?layout=laravel", "redis://h/0/orders.dlq", False),
        ("sqlite:///a/q.db?prefix=x_", "sqlite:///a/q.db?prefix=y_", False),
    ],
)
def test_urls_that_mean_the_same_messages(one: str, other: str, same: bool) -> None:
    assert (endpoint(parse(one)) == endpoint(parse(other))) is same
    assert "secret" not in endpoint(parse(one))
