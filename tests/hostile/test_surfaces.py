"""Every surface meets the whole hostile corpus: nothing is lost, changed, executed or left uncounted, and
nothing a message holds reaches a terminal or a text log unescaped. A surface without an entry here fails
`test_every_surface_is_listed`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import pkgutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cases import Case, case, embedded
from hostile.corpus import ACCEPTED, CORPUS, DEAD, Hostile
from shinar import Limits, Policy, Worker
from shinar.brokers import Broker, Outgoing, connect
from shinar.cli.main import COMMANDS, main
from shinar.envelope import judge
from shinar.envelope.model import Kind
from shinar.errors import BodyTooLarge, ContractError, Unsupported
from shinar.redrive import Ledger, Redrive, Spec

__all__ = ["case", "embedded"]

#: Command -> the test that runs it over the corpus, or why no message ever reaches it.
COMMAND_SURFACES = {
    "publish": "test_publish_sends_every_body_as_it_is",
    "worker": "test_the_worker_ends_every_message_and_its_log_is_safe",
    "tail": "test_commands_over_a_queue_are_safe",
    "inspect": "test_inspect_is_safe",
    "bridge": "test_the_bridge_moves_every_body_as_it_is",
    "broker": "test_commands_over_the_embedded_broker_are_safe",
    "pipeline": "test_the_lake_holds_every_message_exactly",
    "dlq": "test_commands_over_a_queue_are_safe",
    "redrive": "test_redrive_sends_every_dead_letter_back",
    "traces": "test_commands_over_the_lake_are_safe",
    "fingerprints": "test_commands_over_the_lake_are_safe",
    "stuck": "test_commands_over_the_lake_are_safe",
    "drift": "test_commands_over_the_lake_are_safe",
    "rates": "test_commands_over_the_lake_are_safe",
    "propose-schemas": "test_commands_over_the_lake_are_safe",
    "report": "test_the_report_runs_no_script",
    "doctor": "no message: it checks the installation and connects",
    "config": "no message: it shows settings",
    "completion": "no message: it prints a shell script",
}
#: Bidirectional formatting: a reader sees another order than the bytes have.
_BIDI = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
#: Module of shinar.pipeline.analysis -> the test that runs it over the corpus.
ANALYSIS_SURFACES = dict.fromkeys(
    ("drift", "fields", "fingerprints", "proposals", "rates", "stuck", "traces"),
    "test_commands_over_the_lake_are_safe",
)


def unsafe(text: str) -> list[str]:
    """Characters that a terminal or a reader of lines would obey."""
    return [
        f"U+{ord(character):04X}"
        for character in text
        if character not in "\n\t"
        and (
            unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(character) in _BIDI
        )
    ]


def ids(hostile: Hostile) -> str:
    return hostile.name


# -- the list itself


def test_every_surface_is_listed() -> None:
    here = set(globals())
    assert set(COMMAND_SURFACES) >= set(COMMANDS), "a new command needs a test over the hostile corpus"
    analysis = importlib.import_module("shinar.pipeline.analysis")
    modules = {module.name for module in pkgutil.iter_modules(analysis.__path__)}
    assert set(ANALYSIS_SURFACES) >= modules, "a new analysis needs a test over the hostile corpus"
    for test in {*COMMAND_SURFACES.values(), *ANALYSIS_SURFACES.values()}:
        assert test in here or test.startswith("no message: "), test


def test_names_are_unique() -> None:
    assert max(Counter(hostile.name for hostile in CORPUS).values()) == 1


# -- judge


@pytest.mark.parametrize("hostile", CORPUS, ids=ids)
def test_judge_says_what_the_contract_says(hostile: Hostile) -> None:
    verdict = judge(hostile.body)
    assert (verdict.kind is Kind.ACCEPTED) == hostile.accepted
    if not hostile.accepted:
        assert verdict.reason


# -- brokers


def test_a_broker_carries_every_body_or_refuses_it_by_name(case: Case) -> None:
    broker = case.connect()
    sent: list[bytes] = []
    refusals: list[str] = []
    for hostile in CORPUS:
        try:
            broker.publish(case.queue, [Outgoing(hostile.body)])
        except (BodyTooLarge, ContractError, Unsupported) as exc:
            refusals.append(str(exc))
            continue
        sent.append(hostile.body)
    assert not unsafe("".join(refusals))
    assert len(sent) > len(CORPUS) // 2
    assert sorted(drained(broker, case.queue, len(sent))) == sorted(sent)


def drained(broker: Broker, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count and (batch := broker.reserve(queue, min(100, count - len(found)), 20.0)):
        found += [delivery.body for delivery in batch]
        assert broker.ack(batch) == ()
    return found


# -- producer side and bridge


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/hostile.db?queue=hostile"


def fill(url: str, queue: str, corpus: tuple[Hostile, ...] = CORPUS) -> None:
    broker = connect(url)
    broker.publish(queue, [Outgoing(hostile.body, {"x-note": "a"}) for hostile in corpus])
    broker.close()


def bodies(url: str, queue: str) -> list[bytes]:
    broker = connect(url)
    try:
        return [delivery.body for delivery in broker.browse(queue)]
    finally:
        broker.close()


def test_publish_sends_every_body_as_it_is(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [hostile.body for hostile in ACCEPTED if b"\n" not in hostile.body]
    stdin = io.TextIOWrapper(io.BytesIO(b"\n".join(lines) + b"\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["publish", place, "--lines", "--quiet"]) == 0
    assert bodies(place, "hostile") == lines
    assert not unsafe("".join(capsys.readouterr()))


def test_the_bridge_moves_every_body_as_it_is(place: str, tmp_path: Path) -> None:
    fill(place, "hostile")
    target = f"sqlite://{tmp_path}/other.db?queue=moved"
    assert main(["bridge", place, target, "--quiet"]) == 0
    assert bodies(target, "moved") == [hostile.body for hostile in CORPUS]
    assert bodies(place, "hostile") == []


# -- worker


def test_the_worker_ends_every_message_and_its_log_is_safe(place: str) -> None:
    fill(place, "hostile")
    handled: list[str] = []

    def handle(message) -> None:
        handled.append(message.meta.id)
        if len(handled) % 2:
            raise RuntimeError("\x1b[2J\r\nforged " + message.trace_id)

    lines = io.StringIO()
    with logged(lines):
        report = Worker(
            place,
            {"urn:babel:hostile:sent": handle},
            queue="hostile",
            policy=Policy(max_attempts=1),
            limits=Limits(until_empty=True),
        ).run()
    counts = report.counts
    dead = counts["dead_letter"] + counts["dead_letter_raw"]
    assert report.received == len(CORPUS) == counts["handled"] + dead
    assert bodies(place, "hostile") == []
    assert len(bodies(place, "hostile.dlq")) == dead
    assert not unsafe(lines.getvalue())
    assert "\nforged" not in lines.getvalue()


@contextlib.contextmanager
def logged(stream: io.StringIO):
    handler = logging.StreamHandler(stream)
    root = logging.getLogger("shinar")
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


# -- commands


@pytest.fixture
def shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command for a person to read; its output, once it is known to be safe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHINAR_LEDGER", str(tmp_path / "ledger.db"))

    def run(*words: str) -> str:
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        assert code in (0, 1), err
        assert not unsafe(out + err), words
        assert "Traceback" not in err
        return out

    return run


def test_commands_over_a_queue_are_safe(place: str, shown: Callable[..., str]) -> None:
    fill(place, "hostile")
    many = str(len(CORPUS))
    assert "key-quote" in shown("tail", place, "--limit", many)
    fill(place, "hostile.dlq")
    dead = place.replace("queue=hostile", "queue=hostile.dlq")
    assert shown("dlq", "summary", dead)
    assert shown("dlq", "list", dead, "--limit", many)
    assert shown("dlq", "show", dead, "--limit", many)
    assert shown("redrive", dead, "--dry-run", "--include-poison")
    exported = [json.loads(line) for line in shown("dlq", "export", dead).splitlines()]
    assert len(exported) == len(CORPUS)


def test_inspect_is_safe(tmp_path: Path, shown: Callable[..., str]) -> None:
    for number, hostile in enumerate(CORPUS):
        (tmp_path / f"{number}.json").write_bytes(hostile.body)
        assert shown("inspect", str(tmp_path / f"{number}.json")), hostile.name


def test_commands_over_the_embedded_broker_are_safe(embedded: str, shown: Callable[..., str]) -> None:
    queue = "hostile"
    fill(embedded, queue)
    server = embedded.rstrip("/")
    assert shown("broker", "show", f"{server}/{queue}", "--limit", str(len(CORPUS)))
    assert shown("broker", "search", f"{server}/{queue}", "hostile")
    assert shown("broker", "queues", server)


# -- redrive


def test_redrive_sends_every_dead_letter_back(place: str, tmp_path: Path) -> None:
    fill(place, "hostile.dlq")
    ledger = Ledger(tmp_path / "ledger.db")
    dead = place.replace("queue=hostile", "queue=hostile.dlq")
    receipt = Redrive(dead, Spec(include_poison=True, to_queue="hostile"), ledger=ledger).run()
    ledger.close()
    assert receipt.adds_up
    assert receipt.published + receipt.skipped + receipt.failed == receipt.selected == len(CORPUS)
    assert len(bodies(place, "hostile")) == receipt.published
    assert len(bodies(place, "hostile.dlq")) == len(CORPUS) - receipt.published
    assert receipt.published >= len(CORPUS) - len(DEAD)


# -- the pipeline

pipeline = pytest.mark.spark


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from shinar.pipeline import Pipeline
    from unit.pipeline.lakes import rows, spark

    folder = tmp_path_factory.mktemp("hostile") / "lake"
    job = Pipeline(spark(), lake=str(folder), job="hostile")
    seen: list[int] = []

    @job.handler("urn:babel:hostile:*")
    def totals(messages):
        seen.append(messages.count())
        return messages.groupBy("lang").count()

    # As they came, and once more: every accepted one is a duplicate then, every other one quarantined again.
    queues = ["hostile.dlq" if hostile in DEAD else "hostile" for hostile in CORPUS]
    for _ in range(2):
        job.process(rows([hostile.body for hostile in CORPUS], queue=queues))
    assert seen
    return folder


@pipeline
def test_the_lake_holds_every_message_exactly(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shinar.pipeline.lake.store import existing_store
    from unit.pipeline.lakes import table

    store = existing_store(str(lake))
    messages = {row["id"]: row for row in table(store, "messages")}
    assert set(messages) == {hostile.id for hostile in ACCEPTED}
    for hostile in ACCEPTED:
        planted = json.loads(messages[hostile.id]["data"], parse_int=str, parse_float=str)
        assert planted == hostile.data, hostile.name
    quarantined = Counter(row["body"] for row in table(store, "quarantine"))
    assert quarantined == Counter({h.body: 2 for h in CORPUS if not h.accepted})
    assert main(["pipeline", "status", "--lake", str(lake), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["balanced"], told["received"]) == (True, 2 * len(CORPUS))


@pipeline
def test_commands_over_the_lake_are_safe(lake: Path, shown: Callable[..., str], tmp_path: Path) -> None:
    at = ("--lake", str(lake))
    for command in ("traces", "fingerprints", "stuck", "drift", "rates"):
        shown(command, *at, "--limit", "500")
    shown("propose-schemas", *at, "--out", str(tmp_path / "schemas"))
    shown("pipeline", "status", *at)
    shown("dlq", "list", *at, "--limit", "500")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []
        self.addresses: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag in ("script", "iframe", "object", "embed")
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        found = dict(attrs)
        if tag == "meta" and (found.get("http-equiv") or "").lower() == "content-security-policy":
            self.policy = found.get("content") or ""


@pipeline
def test_the_report_runs_no_script(lake: Path, tmp_path: Path, shown: Callable[..., str]) -> None:
    out = tmp_path / "report.html"
    shown("report", "--lake", str(lake), "--out", str(out))
    page = _Page()
    page.feed(out.read_text())
    assert (page.scripts, page.handlers) == (0, [])
    assert all(address.startswith("#") for address in page.addresses)
    assert "default-src 'none'" in page.policy
