"""What is wrong with a pipeline job is said before Spark starts, in one sentence, safe for a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shinar.cli.main import main
from shinar.cli.support.lake import print_table
from shinar.cli.support.quiet_jvm import quiet_jvm


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session would take half a minute: nobody may ask for one."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("shinar.cli.commands.lake.pipeline.spark_session", started)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--archive", "none.jsonl", "--lake", "lake"], "archive: none.jsonl does not exist"),
        (["--from", "redis://localhost/orders", "--lake", "s3://bucket/lake"], "lake: must be a folder"),
        (["--from", "redis://localhost/orders", "--lake", "file"], "is a file; name a folder"),
        (["--from", "redis://localhost/orders", "--lake", "file/lake"], "is a file; name a folder"),
        (["--from", "redis://localhost", "--lake", "lake"], "queue: name one in the URL"),
        (
            ["--from", "redis://localhost/orders", "--lake", "lake", "--handlers", "nomod:f"],
            "handlers: cannot",
        ),
        (["--from", "redis://localhost/o", "--lake", "lake", "--handlers", "os:sep"], "is not a function"),
        (["--from", "redis://localhost/o", "--lake", "lake", "--registry", "none.json"], "No such file"),
        (["--from", "redis://localhost/o", "--lake", "lake", "--max-records", "0"], "max_records: must be"),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_a_wrong_job_is_refused_before_spark_starts(
    flags: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["pipeline", "run", *flags, "--once"]) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1
    assert not (tmp_path / "lake").exists()


def test_cells_are_safe_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["urn"], [["urn:\x1b[2J\n\u202eforged"]])
    assert capsys.readouterr().out == "urn\nurn:\\x1b[2J\\n\\u202eforged\n\n"


def test_the_noise_of_a_jvm_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """What a process launched inside writes to stderr, without the lines of every launch."""
    import subprocess

    script = (
        "import sys\n"
        "for line in ('WARNING: Using incubator modules: jdk.incubator.vector', \"Using Spark's default\",\n"
        "             '26/11/16 02:03:04 WARN NativeCodeLoader: x', 'something that matters'):\n"
        "    print(line, file=sys.stderr)\n"
    )
    for debug in (False, True):
        with quiet_jvm(debug):
            subprocess.run([sys.executable, "-c", script], check=True)
        os.sync()
        for _ in range(100):
            told = capfd.readouterr().err
            if told:
                break
        assert told.count("\n") == (4 if debug else 1), told
        assert "something that matters" in told
