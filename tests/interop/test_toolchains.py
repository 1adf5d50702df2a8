"""Fetching packages: once per pin, never half, and with the package manager's own words when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interop import toolchains


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHINAR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pin(tmp_path: Path) -> Path:
    path = tmp_path / "pom.xml"
    path.write_text("one")
    return path


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_a_pin_is_fetched_once_and_a_new_one_beside_it(pin: Path) -> None:
    fetched: list[Path] = []

    def fetch(home: Path) -> list[str]:
        fetched.append(home)
        return python("import sys, pathlib; pathlib.Path(sys.argv[1], 'jar').touch()", str(home))

    first = toolchains._fetched("java", [pin], fetch)
    assert (first / "jar").exists()
    assert toolchains._fetched("java", [pin], fetch) == first
    assert len(fetched) == 1
    pin.write_text("two")
    assert toolchains._fetched("java", [pin], fetch) != first
    assert len(fetched) == 2


def test_a_failed_fetch_says_why_and_leaves_nothing(pin: Path, tmp_path: Path) -> None:
    def fetch(home: Path) -> list[str]:
        return python(
            "import sys, pathlib; pathlib.Path(sys.argv[1], 'half').touch(); sys.exit('404')", str(home)
        )

    with pytest.raises(toolchains.NotFetched, match="404"):
        toolchains._fetched("java", [pin], fetch)
    assert list((tmp_path / "cache" / "interop").iterdir()) == []


def test_a_missing_language_is_told_apart(pin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find_program", lambda name: None)
    with pytest.raises(toolchains.NoToolchain, match="no mvn"):
        toolchains.jars(pin)
