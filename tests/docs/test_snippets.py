"""Every Python block of the README and the docs runs, file by file, top to bottom, as a reader would.

A block that cannot run here says why in a comment above it: `<!-- not run: needs an AWS account -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<note><!-- not run: [^>]+ -->\s*\n)?```python\n(?P<code>.*?)```", re.S)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")


def code_of(page: Path) -> str:
    return "\n".join(m["code"] for m in BLOCK.finditer(page.read_text()) if not m["note"])


@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_of(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code_of(page))
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_the_readme_program_is_short_and_its_commands_exist() -> None:
    text = (ROOT / "README.md").read_text()
    program = BLOCK.search(text)
    assert program is not None
    assert len([line for line in program["code"].splitlines() if line.strip()]) <= 12
    targets = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", text, re.M):
        assert f"\n{command}:" in targets
