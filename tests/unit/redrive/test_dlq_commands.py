"""`shinar dlq` and `shinar redrive` at the edges: hostile text, closed pipes, files, a lake, PHP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redrive_letters import body, plant
from shinar.brokers import Broker, Outgoing, connect
from shinar.cli.main import main
from shinar.pipeline.lake import store as tables

Run = Callable[..., tuple[int, list[Any], str]]

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\u202egnp.exe\x9b31m\u2028forged"
PHP_EMPTY = (
    b'{"job":"urn:babel:orders:created","trace_id":"t-1","data":[],"meta":{"id":"php-1","queue":"orders","lang":"php",'
    b'"schema_version":1,"created_at":1763172600000},"attempts":3,"dead_letter":{"reason":"failed","error":"boom",'
    b'"exception":"App\\\\Boom","failed_at":1763172600000,"original_queue":"orders","attempts":3,"lang":"php"}}'
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/q.db?queue=orders.dlq"


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


def publish(url: str, *bodies: bytes, queue: str = "orders.dlq") -> None:
    with_broker(url, lambda broker: broker.publish(queue, [Outgoing(one) for one in bodies]))


def with_broker(url: str, use: Callable[[Broker], Any]) -> Any:
    broker = connect(url)
    try:
        return use(broker)
    finally:
        broker.close()


def bodies_of(url: str, queue: str) -> list[bytes]:
    return with_broker(url, lambda broker: [delivery.body for delivery in broker.browse(queue)])


def planted(url: str, count: int) -> list[bytes]:
    return with_broker(url, lambda broker: plant(broker, "orders.dlq", "orders", count))


def hostile() -> bytes:
    document = json.loads(body(0, "orders"))
    document["job"] = f"urn:babel:{HOSTILE}"
    document["data"] = {"note": HOSTILE}
    block = {"error": HOSTILE, "exception": f"E{HOSTILE}", "original_queue": f"orders{HOSTILE}"}
    document["dead_letter"] |= block
    return json.dumps(document, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "list"],
        ["dlq", "show"],
        ["dlq", "summary"],
        ["redrive", "--dry-run"],
        ["redrive", "--dry-run", "--set", "data.more = data.note || 'x'"],
    ],
)
def test_text_of_a_message_is_escaped(
    words: list[str], url: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(url, hostile(), hostile()[:-1])
    assert main([*words[:2], url, *words[2:]] if words[0] == "dlq" else [words[0], url, *words[1:]]) == 0
    shown = "".join(capsys.readouterr())
    assert "\\x1b" in shown
    unsafe = {one for one in shown if one != "\n" and (ord(one) < 32 or 0x7F <= ord(one) < 0xA0)}
    assert not unsafe
    assert not set("\u202e\u2028\r") & set(shown)


@pytest.mark.parametrize("view", ["list", "show", "export"])
def test_a_reader_that_leaves_is_no_error(view: str, url: str) -> None:
    planted(url, 1500)
    words = [sys.executable, "-m", "shinar.cli.main", "dlq", view, url, "--limit", "1500", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline()
        command.stdout.close()
        assert (command.wait(60), command.stderr.read()) == (0, b"")


@pytest.mark.parametrize("file", ["dead.jsonl", "dead.parquet"])
def test_export_and_import_are_the_same_bytes(file: str, url: str, run: Run, tmp_path: Path) -> None:
    sent = [*planted(url, 24), b"\xff\x00 not text", hostile()]
    publish(url, *sent[24:])
    assert main(["dlq", "export", url, "--out", file, "--quiet"]) == 0
    target = f"sqlite://{tmp_path}/other.db"
    code, (figures,), _ = run("dlq", "import", file, "--to", target)
    assert (code, figures) == (0, {"read": 26, "skipped": 0, "published": 26})
    assert bodies_of(target, "orders.dlq") == sent
    headers = with_broker(
        target, lambda broker: [dict(one.headers) for one in broker.browse("orders.dlq", 3)]
    )
    assert headers == [{"x-n": str(n)} for n in range(3)]
    code, (figures,), _ = run("dlq", "import", file, "--to", f"{target}?queue=again", "--skip", "20")
    assert (figures["skipped"], figures["published"]) == (20, 6)
    assert bodies_of(target, "again") == sent[20:]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-40], "line 12 of dead.jsonl is damaged"),
        (lambda text: text.replace(b'"body_encoding"', b'"encoding"', 1), "line 1 of dead.jsonl"),
        (lambda text: text.replace(b'"headers": {', b'"headers": {"a": 5, ', 1), "/headers"),
        (lambda text: text + b"[1]\n", "line 13"),
        (lambda text: text + b"\xff\n", "line 13"),
    ],
)
def test_a_damaged_file_sends_nothing(
    damage: Callable[[bytes], bytes], says: str, url: str, run: Run, tmp_path: Path
) -> None:
    planted(url, 12)
    main(["dlq", "export", url, "--out", "dead.jsonl", "--quiet"])
    file = tmp_path / "dead.jsonl"
    file.write_bytes(damage(file.read_bytes()))
    code, out, err = run("dlq", "import", "dead.jsonl", "--to", f"sqlite://{tmp_path}/other.db")
    assert (code, out) == (2, [])
    assert says in err
    assert "nothing was sent" in err
    assert bodies_of(f"sqlite://{tmp_path}/other.db", "orders.dlq") == []


def test_half_a_parquet_file_sends_nothing(url: str, run: Run, tmp_path: Path) -> None:
    planted(url, 12)
    main(["dlq", "export", url, "--out", "dead.parquet", "--quiet"])
    file = tmp_path / "dead.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    code, _, err = run("dlq", "import", "dead.parquet", "--to", f"sqlite://{tmp_path}/other.db")
    assert (code, "is damaged" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["dlq", "export", "URL", "--out", "x.csv"], "cannot write .csv files; use .jsonl or .parquet"),
        (["dlq", "import", "nosuch.jsonl", "--to", "URL"], "there is no file nosuch.jsonl"),
        (["dlq", "import", "x.jsonl"], "dlq import FILE --to URL"),
        (["redrive", "URL", "--yes", "--patch", "nomod:f"], "--patch: there is no module 'nomod'"),
        (["redrive", "URL", "--yes", "--patch", "json:nothing"], "--patch: module json has no 'nothing'"),
        (["redrive", "URL", "--rehearse", "nomod:f"], "--rehearse: there is no module 'nomod'"),
        (["redrive", "status"], "name the redrive: shinar redrive status ID"),
        (["redrive", "URL"], "add --yes"),
        (["redrive", "--lake", "x"], "name the broker with --to URL"),
        (["redrive", "URL", "--lake", "x", "--to", "URL"], "a queue or a lake, not both"),
        (["redrive", "URL", "--yes", "--rate", "abc"], "'abc' is not a rate"),
    ],
)
def test_sentences_that_say_what_to_do(words: list[str], says: str, url: str, run: Run) -> None:
    planted(url, 1)
    code, _, err = run(*(url if word == "URL" else word for word in words))
    assert code == 2
    assert says in err


def test_the_dry_run_shows_before_and_after(url: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    planted(url, 3)
    words = ("redrive", url, "--dry-run", "--set", "data.amount = data.amount + 0.5")
    _, (plan,), _ = run(*words)
    first = plan["sample"][1]
    assert (first["before"], first["after"]) == (
        '{"n":1,"amount":10,"kind":1}',
        '{"n":1,"amount":10.5,"kind":1}',
    )
    assert main(list(words)) == 0
    out = capsys.readouterr().out
    assert 'data before  {"n":1,"amount":10,"kind":1}' in out
    assert 'data after   {"n":1,"amount":10.5,"kind":1}' in out
    _, (plan,), _ = run("redrive", url, "--dry-run")
    assert {(one["before"], one["after"]) for one in plan["sample"]} == {("", "")}


def test_where_errors(url: str, run: Run) -> None:
    planted(url, 12)
    odd = json.loads(body(0, "orders"))
    odd["data"]["amount"] = "many"
    publish(url, json.dumps(odd).encode())
    code, out, err = run("dlq", "list", url, "--where", "data.amount >= 50")
    assert (code, odd["meta"]["id"] in err, "--where-errors skip" in err) == (2, True, True)
    code, out, err = run("dlq", "list", url, "--where", "data.amount >= 50", "--where-errors", "skip")
    assert (code, len(out)) == (0, 5)
    assert "--where raised an error for 1 dead letter; they were left out" in err
    code, _, err = run("redrive", url, "--where", "data.amount >= 50", "--yes")
    assert (code, odd["meta"]["id"] in err) == (2, True)
    assert bodies_of(url, "orders") == []
    code, (receipt,), err = run(
        "redrive", url, "--where", "data.amount >= 50", "--where-errors", "skip", "--yes"
    )
    assert (code, receipt["published"]) == (0, 5)
    assert "--where raised an error for 1 dead letter;" in err


def test_empty_payloads_of_php(url: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    publish(url, PHP_EMPTY)
    _, (row,), _ = run("dlq", "list", url)
    assert (row["id"], row["urn"], row["nature"]) == ("php-1", "urn:babel:orders:created", "poison")
    _, (plan,), _ = run("redrive", url, "--dry-run")
    assert plan["why_skipped"] == {"poison": 1}
    _, (plan,), _ = run("redrive", url, "--dry-run", "--repair", "php-empty-data")
    assert (plan["sendable"], plan["sample"][0]["before"], plan["sample"][0]["after"]) == (1, "[]", "{}")
    code, (receipt,), _ = run("redrive", url, "--repair", "php-empty-data", "--yes", "--quiet")
    assert (code, receipt["published"]) == (0, 1)
    expected = PHP_EMPTY[: PHP_EMPTY.index(b',"dead_letter"')].replace(b'"data":[]', b'"data":{}') + b"}"
    assert bodies_of(url, "orders") == [expected.replace(b'"attempts":3', b'"attempts":0')]
    assert bodies_of(url, "orders.dlq") == []


def test_the_repair_leaves_other_poison_alone(url: str, run: Run) -> None:
    publish(
        url,
        PHP_EMPTY.replace(b'"data":[]', b'"data":[1]'),
        PHP_EMPTY.replace(b"created_at", b"created"),
        b"{",
    )
    _, (plan,), _ = run("redrive", url, "--dry-run", "--repair", "php-empty-data")
    assert (plan["sendable"], plan["why_skipped"]) == (1, {"poison": 2})


@pytest.mark.live("redis")
def test_messages_that_cannot_be_browsed_are_mentioned(live_server: Callable[..., Any], run: Run) -> None:
    """A reservation is not shown until its lease has ended."""
    server, name = live_server("redis").url, f"unseen-{uuid.uuid4().hex[:8]}.dlq"
    publish(f"{server}/{name}", *(body(n, "orders") for n in range(12)), queue=name)
    broker = connect(f"{server}/{name}?lease_s=60")
    try:
        held = broker.reserve(name, 5, 1.0)
        _, _, err = run("dlq", "summary", f"{server}/{name}")
        assert "5 more messages cannot be browsed now" in err
        _, (plan,), _ = run("redrive", f"{server}/{name}", "--dry-run")
        assert (plan["looked"], plan["reserved"]) == (7, 5)
        broker.extend(held, 0.2)
        time.sleep(0.5)
        _, (plan,), _ = run("redrive", f"{server}/{name}", "--dry-run")
        assert (plan["looked"], plan["reserved"]) == (12, 0)
    finally:
        broker.close()


@pytest.mark.parametrize("table", ["dead_letters", "quarantine"])
def test_dead_letters_of_a_lake_go_to_a_broker_once(table: str, run: Run, tmp_path: Path) -> None:
    write_table(tmp_path / "lake", table, [body(n, "orders") for n in range(24)])
    target = f"sqlite://{tmp_path}/target.db"
    words = ("redrive", "--lake", "lake", "--to", target, "--where", "lang = 'php'", "--table", table)
    _, (plan,), _ = run(*words, "--dry-run")
    assert (plan["selected"], plan["targets"]) == (6, {"orders": 6})
    code, (receipt,), _ = run(*words, "--yes", "--quiet")
    assert (code, receipt["published"], len(bodies_of(target, "orders"))) == (0, 6, 6)
    _, (plan,), _ = run(*words, "--dry-run")
    assert (plan["selected"], plan["already"]) == (0, 6)
    code, (again,), _ = run("redrive", "resume", receipt["job"])
    assert (code, again["published"], len(bodies_of(target, "orders"))) == (0, 6, 6)
    _, (status,), _ = run("redrive", "status", receipt["job"])
    assert status["source"] == f"lake://{tmp_path}/lake?queue={table}"


def test_a_redrive_of_a_lake_is_resumed(run: Run, tmp_path: Path) -> None:
    from shinar.redrive import Ledger, Redrive
    from shinar.redrive.lake import LakeSource, lake_url

    write_table(tmp_path / "lake", "dead_letters", [body(n, "orders") for n in range(24)])
    target = f"sqlite://{tmp_path}/target.db"
    ledger, url = Ledger(tmp_path / "ledger.db"), lake_url(str(tmp_path / "lake"))
    job, plan = Redrive(url, to=target, ledger=ledger, source=LakeSource(url)).prepare()
    ledger.close()
    assert (plan.sendable, bodies_of(target, "orders")) == (20, [])
    code, (receipt,), _ = run("redrive", "resume", job.id, "--to", target)
    assert (code, receipt["published"], len(bodies_of(target, "orders"))) == (0, 20, 20)


def write_table(lake: Path, name: str, bodies: list[bytes]) -> None:
    """A table as the pipeline leaves it behind, with what a redrive reads of it."""
    store = tables.open_store(lake)
    shape = tables.CORE[name]
    folder = store.data_dir(name, "attempt")
    folder.mkdir(parents=True)
    known: dict[str, list[Any]] = {"body": bodies, "queue": ["orders.dlq"] * len(bodies)}
    known["received_at"] = [datetime(2026, 11, 15, tzinfo=UTC)] * len(bodies)
    columns = {one.name: pa.array(known.get(one.name, [None] * len(bodies)), one.type) for one in shape}
    pq.write_table(pa.table(columns), folder / "part.parquet")
    files = tables.describe(store.root / name, [folder / "part.parquet"])
    assert store.commit(tables.Commit(name, "job", 0, files, tables.packed(shape)))


def test_byte_identical_rows_of_a_lake_are_counted(run: Run, tmp_path: Path) -> None:
    """Redis gives no position: three equal dead letters are three, however many redrives it takes."""
    write_table(tmp_path / "lake", "dead_letters", [body(0, "orders")] * 3 + [body(1, "orders")])
    target = f"sqlite://{tmp_path}/target.db"
    words = ("redrive", "--lake", "lake", "--to", target)
    _, (first,), _ = run(*words, "--limit", "1", "--yes", "--quiet")
    _, (plan,), _ = run(*words, "--dry-run")
    _, (rest,), _ = run(*words, "--yes", "--quiet")
    _, (after,), _ = run(*words, "--dry-run")
    assert (first["published"], plan["already"], plan["sendable"]) == (1, 1, 3)
    assert (rest["published"], after["already"], after["selected"]) == (3, 4, 0)
    assert len(bodies_of(target, "orders")) == 4


def test_the_ledger_knows_a_repaired_message_by_its_id(url: str, run: Run) -> None:
    for _ in range(2):
        publish(url, PHP_EMPTY)
        _, (receipt,), _ = run("redrive", url, "--repair", "php-empty-data", "--yes", "--quiet")
        assert receipt["published"] == 1
    publish(url, PHP_EMPTY)
    _, (plan,), _ = run("redrive", url, "--repair", "php-empty-data", "--dry-run")
    assert plan["why_skipped"] == {"loop": 1}
