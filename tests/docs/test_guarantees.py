"""The tables of brokers in the docs are what the registry and the brokers' traits say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cases import FILE_BROKER
from shinar.brokers.registry import ROWS, rows

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "broker_tables.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("broker_tables", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_table_is_noticed(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "delivery-guarantees.md").read_text()
    assert "| memory | 60 s |" in page
    changed = page.replace("| memory | 60 s |", "| memory | 61 s |")
    assert tool.current(changed) == page


def test_every_broker_has_a_row_and_a_page(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "brokers" / "index.md").read_text()
    for row in ROWS.values():
        assert row.label in page
        assert not row.page or (ROOT / "docs" / "brokers" / row.page).exists()


def test_a_broker_of_another_distribution_gets_its_row(tool: ModuleType) -> None:
    assert FILE_BROKER.is_dir()
    assert "| files | `file:///var/spool/shinar?queue=orders` |" in tool.urls(rows())
    assert "| files | 60 s | max | yes |" in tool.guarantees(rows())
