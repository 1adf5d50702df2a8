"""Every rule of docs/contract-rules.md names a test that exists, and every rule the code cites exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import shinar

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contract-rules.md"
RULE = re.compile(r"^- \*\*(?P<number>\d+\.\d+)\*\* (?P<text>.+?) — (?P<tests>`.+`)$", re.M)
CITED = re.compile(r"contract (rules?|chapters?) (\d+(?:\.\d+)?)(?: (?:and|to) (\d+(?:\.\d+)?))?")
RULES = {match["number"]: match for match in RULE.finditer(PAGE.read_text())}


def test_the_page_is_a_list_of_numbered_rules() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("- ")]
    assert len(lines) == len(RULES), "a rule has no number, no test, or a number twice"
    chapters = re.findall(r"^## (\d+)\. ", PAGE.read_text(), re.M)
    assert {number.partition(".")[0] for number in RULES} == set(chapters)
    assert [int(chapter) for chapter in chapters] == list(range(1, len(chapters) + 1))


@pytest.mark.parametrize("number", RULES)
def test_each_rule_has_a_test(number: str) -> None:
    named = re.findall(r"`([^`]+)`", RULES[number]["tests"])
    assert named
    for name in named:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in found, f"rule {number}: {path} has no {function}"


def test_rules_that_the_code_cites_exist() -> None:
    chapters = {number.partition(".")[0] for number in RULES}
    cited = 0
    for path in Path(shinar.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for kind, first, last in CITED.findall(text):
            for number in filter(None, (first, last)):
                cited += 1
                known = chapters if kind.startswith("chapter") else RULES
                assert number in known, f"{path.name}: no contract {kind} {number}"
    assert cited > 5
