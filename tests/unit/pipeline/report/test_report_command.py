"""The commands over a lake: output, exit codes, and refusals that say what to do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shinar.cli.main import main
from shinar.cli.support.lake import moment, span_s
from shinar.errors import ConfigError
from shinar.pipeline.pipeline import Pipeline
from unit.pipeline.lakes import NOON, envelope, rows, spark, table

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Thirty orders, all but one paid; two dead letters of one cause; one broken body."""
    folder = tmp_path_factory.mktemp("lake")
    job = Pipeline(spark(), lake=str(folder), job="job", typed=False)
    bodies, received = [], []
    for n in range(30):
        at = NOON + timedelta(minutes=n)
        steps = ("created", "paid") if n != 7 else ("created",)
        for place, name in enumerate(steps):
            urn, when = f"urn:babel:shop:{name}", at + timedelta(seconds=place)
            bodies.append(envelope(n * 10 + place, urn, {"n": n}, at=when, trace=f"t{n}"))
            received.append(when + timedelta(seconds=1))
    dead = {"exception": "GatewayTimeout", "error": "timeout after 3 s"}
    bodies += [envelope(n, dead=dead, trace=f"d{n}") for n in (901, 902)] + [b"{"]
    received += [NOON] * 3
    job.process(rows(bodies, received=received))
    return str(folder)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_fingerprints(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fingerprints", "--lake", lake, "--json"]) == 0
    (found,) = lines(capsys)
    assert (found["exception"], found["dead_letters"]) == ("GatewayTimeout", 2)
    assert found["first_seen"] == "2026-11-15T12:00:00.000Z"


def test_stuck_is_a_finding(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stuck", "--lake", lake, "--json"]) == 1
    assert [row["id"] for row in lines(capsys)] == ["id-70"]


def test_traces_as_a_table(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["traces", "--lake", lake, "--limit", "3"]) == 0
    told = capsys.readouterr()
    assert told.out.count("urn:babel:shop:created > urn:babel:shop:paid") == 3
    assert "--limit shows more" in told.err
    assert main(["traces", "--lake", lake, "--trace", "t7", "--json"]) == 0
    assert [row["id"] for row in lines(capsys)] == ["id-70"]


def test_proposals(lake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schemas"
    assert main(["propose-schemas", "--lake", lake, "--urn", "urn:babel:shop:paid", "--out", str(out)]) == 0
    assert json.loads((out / "shop_paid.json").read_text())["required"] == ["n"]
    assert main(["propose-schemas", "--lake", lake, "--out", str(out)]) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_status_adds_up(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", "--lake", lake, "--json"]) == 0
    (told,) = lines(capsys)
    assert (told["received"], told["messages"], told["quarantine"]) == (62, 61, 1)
    assert told["balanced"]
    assert main(["pipeline", "status", "--lake", lake]) == 0
    assert "62 received = 61 messages + 1 quarantine + 0 duplicates: yes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pipeline", "status"], "--lake"),
        (["pipeline", "status", "--lake", "/nowhere"], "has no Shinar tables"),
        (["pipeline", "run", "--lake", "x"], "--from URL"),
        (["pipeline", "run", "none.toml"], "none.toml"),
        (["traces"], "--lake"),
    ],
)
def test_refusals(
    words: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('quue = "orders"', "did you mean queue?"),
        ('once = "yes"', "must be a bool"),
        ("= 1", "is not TOML"),
    ],
)
def test_job_files(content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text(content)
    assert main(["pipeline", "run", str(file)]) == 2
    assert text in capsys.readouterr().err


def test_spans_and_moments() -> None:
    assert span_s("90d", "keep") == 90 * 86_400
    with pytest.raises(ConfigError, match="write 30m"):
        span_s("soon", "keep")
    assert moment(None) is None
    assert moment("2026-11-15") == datetime(2026, 11, 15, tzinfo=UTC)
    ago = moment("24h")
    assert ago is not None
    assert timedelta(hours=23) < datetime.now(UTC) - ago < timedelta(hours=25)
    with pytest.raises(ConfigError, match="neither a span"):
        moment("yesterday")


def test_spans_and_limits_beyond_reason(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "retention", "--lake", lake, "--keep", "9999999d", "--yes"]) == 2
    assert "more than a thousand years" in capsys.readouterr().err
    assert main(["drift", "--lake", lake, "--since", "99999999d"]) == 2
    with pytest.raises(SystemExit) as refused:
        main(["traces", "--lake", lake, "--limit", "-1"])
    assert refused.value.code == 2


def test_pending_batches_are_listed_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frame: object) -> None:
        raise ValueError("the warehouse is away")

    job = Pipeline(spark(), lake=str(tmp_path / "lake"), job="job", typed=False)
    job.handler("*", name="ids")(broken)
    job.process(rows([envelope(1)]))
    command = ["pipeline", "handlers", "--lake", str(tmp_path / "lake")]
    assert main(command) == 1
    assert "pending for handler ids: job-" in capsys.readouterr().out
    assert main([*command, "--retry"]) == 2
    (tmp_path / "mended_handlers.py").write_text(
        'def register(job):\n    job.handler("*", name="ids")(lambda frame: frame.select("id"))\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main([*command, "--retry", "--job", "job", "--handlers", "mended_handlers:register"]) == 0
    assert "no batch is pending for a handler" in capsys.readouterr().out
    assert [row["id"] for row in table(job.store, "handled/ids")] == ["id-1"]
