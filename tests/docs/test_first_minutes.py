"""The README's first five minutes, typed as they stand there against a broker on a free port."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shinar.phpmq.server import serve_in_thread

ROOT = Path(__file__).resolve().parents[2]


def commands() -> list[str]:
    section = (ROOT / "README.md").read_text().partition("## First five minutes")[2]
    block = section.partition("```\n")[2].partition("```")[0]
    return [line for line in block.splitlines() if line.startswith("shinar ")]


def test_what_consumes_comes_last() -> None:
    assert commands()[-1].startswith("shinar pipeline run")
    assert "**consumes**" in (ROOT / "README.md").read_text()


def test_the_commands_do_what_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "app.py", tmp_path)
    shown: dict[str, str] = {}
    with serve_in_thread(tmp_path / "broker") as server:
        for line in commands()[1:-1]:  # the broker is running; the pipeline has tests of its own
            words = shlex.split(re.sub(r"phpmq://localhost:9100", server.url, line), comments=True)[1:]
            done = subprocess.run(
                [sys.executable, "-m", "shinar", *words],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 0, (line, done.stderr)
            shown[words[0]] = done.stdout
    assert "urn:babel:users:registered" in shown["tail"]
    assert "welcome, user 42" in shown["worker"]
    assert "an invitation needs an e-mail address" in shown["dlq"]
