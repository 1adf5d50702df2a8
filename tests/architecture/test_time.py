"""Only `shinar.clock` reads time: everything else asks a Clock, which tests can pin."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shinar

SOURCE = Path(shinar.__file__).parent
#: The reader itself, and a file that also runs as a process of its own, without the package.
EXCEPT = {SOURCE / "clock.py", SOURCE / "pipeline" / "process_guard.py"}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path not in EXCEPT)
#: Methods of datetime and date that read the clock.
READERS = {"now", "utcnow", "today"}


def reads_time(node: ast.AST) -> bool:
    match node:
        case ast.Import():
            return any(name.name == "time" for name in node.names)
        case ast.ImportFrom():
            return node.module == "time"
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in READERS:
            return ast.unparse(value) in ("datetime", "date", "datetime.datetime", "datetime.date")
    return False


def readings(tree: ast.AST) -> Iterator[int]:
    """Lines that read time by themselves."""
    return (
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr) and reads_time(node)
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_clock_reads_time(path: Path) -> None:
    lines = list(readings(ast.parse(path.read_text())))
    assert not lines, f"{path.relative_to(SOURCE)} reads time in lines {lines}; take a shinar.clock.Clock"


@pytest.mark.parametrize(
    "code", ["import time", "from time import monotonic", "datetime.now(UTC)", "datetime.date.today()"]
)
def test_the_check_finds_a_reading(code: str) -> None:
    assert list(readings(ast.parse(code))) == [1]
