"""The page about the table queue names every option. (That its programs run is tested for all pages.)"""

from __future__ import annotations

from pathlib import Path

from shinar.brokers.sql import broker as sql

PAGE = Path(__file__).parents[2] / "docs" / "brokers" / "sql.md"


def test_the_option_table_is_complete() -> None:
    text = PAGE.read_text()
    assert [option for option in sql.OPTIONS if f"`{option}`" not in text] == []
