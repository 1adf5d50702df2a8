"""The completion script for bash is run by bash; those for zsh and fish by these shells where they are."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from shinar.cli.main import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        (["shinar", ""], "publish", "serve"),
        (["shinar", "ins"], "inspect", "tail"),
        (["shinar", "broker", "s"], "serve", "--json"),
        (["shinar", "broker", "serve", "--li"], "--listen", "--json"),
        (["shinar", "tail", "redis://h/q", "--f"], "--follow", "--limit"),
        (["shinar", "completion", ""], "fish", "publish"),
    ],
)
def test_bash_completes(
    typed: list[str], offered: str, not_offered: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(f"'{word}'" for word in typed)
    asked = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _shinar; printf '%s\\n' "
    program = script("bash", capsys) + asked + '"${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    found = done.stdout.splitlines()
    assert offered in found
    assert not_offered not in found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert [command for command in COMMANDS if command not in text] == []
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
