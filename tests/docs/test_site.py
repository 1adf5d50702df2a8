"""The documentation site is built strictly: every page is listed, every link and reference leads somewhere,
and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shinar import __version__

ROOT = Path(__file__).resolve().parents[2]
#: What a browser would fetch by itself; links that a reader may follow are none of it.
LOADED = re.compile(
    r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//(?!\S*canonical)'
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_there_and_searchable(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert [page for page in pages if not (site / page).is_file()] == []
    index = (site / "search" / "search_index.json").read_text()
    assert "urn:babel:orders:created" in index
    assert f"Shinar {__version__}" in (site / "index.html").read_text()


def test_the_reference_is_made_of_docstrings(site: Path) -> None:
    page = (site / "api" / "core.html").read_text()
    for name in ("Producer", "Worker", "Message", "decode", "GiveUp"):
        assert re.search(rf'id="shinar\.(\w+\.)*{name}"', page), name


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert LOADED.search(page.read_text()) is None, page.name
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(), sheet.name
