"""docs/architecture.md follows messages through functions that exist, and not through too many modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import shinar

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(shinar.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEP = re.compile(r"^\d+\. `([\w.]+)`", re.M)
#: Walk -> how many modules a reader may have to open.
LIMITS = {
    "A message is sent and handled": 15,
    "A message goes from a queue into tables": 25,
    "A dead letter goes back": 18,
}


def steps(walk: str) -> list[str]:
    return STEP.findall(PAGE.partition(f"## {walk}\n")[2].partition("\n## ")[0])


def module_of(name: str) -> tuple[Path, list[str]]:
    """The file that has it, and what is to be found in it."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = SOURCE.joinpath(*parts[:length]).with_suffix(".py")
        if path.is_file():
            return path, parts[length:]
    raise AssertionError(f"{name}: there is no such module")


@pytest.mark.parametrize("walk", LIMITS)
def test_each_step_exists(walk: str) -> None:
    named = steps(walk)
    assert len(named) > 10
    for name in named:
        path, inside = module_of(name)
        body = ast.parse(path.read_text()).body
        for part in inside:
            found = [
                node
                for node in body
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == part
            ]
            assert found, f"{walk}: {name} does not exist"
            body = found[0].body


@pytest.mark.parametrize(("walk", "limit"), LIMITS.items())
def test_a_walk_is_short(walk: str, limit: int) -> None:
    modules = {module_of(name)[0] for name in steps(walk)}
    assert len(modules) <= limit, sorted(str(path.relative_to(SOURCE)) for path in modules)


def test_the_rooms_are_those_of_the_layer_test() -> None:
    table = PAGE.partition("## Layers")[2].partition("\n## ")[0]
    for path in SOURCE.iterdir():
        name = path.stem if path.suffix == ".py" else path.name
        if name.startswith("__") or (path.is_dir() and not (path / "__init__.py").exists()):
            continue
        if path.suffix in (".py", ""):
            assert f"`{name}`" in table, f"the table of layers does not mention {name}"
