"""The programs in the pages about tables, marks, outbox and schemas run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["brokers/sql.md", "idempotency.md", "outbox.md", "schemas.md"]


def programs() -> list[tuple[str, str]]:
    return [
        (f"{page}-{number}", text)
        for page in PAGES
        for number, text in enumerate(
            re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
        )
    ]


@pytest.mark.parametrize(("name", "text"), programs(), ids=[name for name, _ in programs()])
def test_program(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(text, name, "exec"), {"__name__": "docs"})


def test_the_option_table_is_complete() -> None:
    from shinar.brokers import sql

    page = (DOCS / "brokers/sql.md").read_text()
    missing = [option for option in sql.OPTIONS if f"`{option}`" not in page]
    assert missing == []
