"""docs/errors.md is made of the error classes: their codes, docstrings and remedies.

python tests/docs/test_errors.py     writes the table of the page anew
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import shinar
from shinar import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
HEAD = "| code | class | means | do |\n|---|---|---|---|\n"


def classes() -> list[type[errors.ShinarError]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    return sorted((k for k in found if issubclass(k, errors.ShinarError)), key=lambda kind: kind.code)


def row(kind: type[errors.ShinarError]) -> str:
    meaning = " ".join((kind.__doc__ or "").split())
    return f"| {kind.code} | `{kind.__name__}` | {meaning} | {kind.remedy} |\n"


def elsewhere() -> dict[str, str]:
    """Codes of errors that are defined next to what raises them."""
    found = {}
    for path in Path(shinar.__file__).parent.rglob("*.py"):
        if path.name == "errors.py" and path.parent.name == "shinar":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                        value = line.value.value
                        if isinstance(value, str) and value.startswith("SH-"):
                            found[node.name] = value
    return found


def test_the_page_says_what_the_classes_say() -> None:
    text = PAGE.read_text()
    for kind in classes():
        assert row(kind) in text, f"write it anew: python {Path(__file__).relative_to(ROOT)}"
    for name, code in elsewhere().items():
        assert f"| {code} | `{name}` |" in text


def test_every_class_has_a_code_a_meaning_and_a_remedy_of_its_own() -> None:
    codes = [kind.code for kind in classes()] + list(elsewhere().values())
    assert len(set(codes)) == len(codes)
    for kind in classes():
        assert "remedy" in vars(kind), kind
        assert kind.__doc__, kind


def test_the_tree_on_top_is_the_tree() -> None:
    drawn = []
    parents: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.strip("│├└─ ").split("  ")[0]
        if isinstance(getattr(errors, name, None), type):
            depth = len(line) - len(line.lstrip("│├└─ "))
            parents = [(d, n) for d, n in parents if d < depth]
            drawn.append((name, parents[-1][1] if parents else "Exception"))
            parents.append((depth, name))
    assert sorted(drawn) == sorted((kind.__name__, kind.__bases__[0].__name__) for kind in classes())


def write() -> None:
    before, _, rest = PAGE.read_text().partition(HEAD)
    old, _, after = rest.partition("\n\n")
    own = {kind.__name__ for kind in classes()}
    kept = [line + "\n" for line in old.splitlines() if line.split("`")[1] not in own]
    rows = sorted([*map(row, classes()), *kept])
    PAGE.write_text(before + HEAD + "".join(rows) + "\n" + after)


if __name__ == "__main__":
    write()
