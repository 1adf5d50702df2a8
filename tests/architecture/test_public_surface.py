"""`from shinar import …`: what is exported, that nothing else leaks, and what type checkers make of it.

The programs under tests/typing are checked, not run: `program.py` must have no error, `mistakes.py` exactly
those it marks.
"""

from __future__ import annotations

import builtins
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "typing"
#: Packages whose names programs import.
PACKAGES = ["shinar.envelope", "shinar.schemas", "shinar.worker", "shinar.brokers", "shinar.idempotency"]


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_namespace_is_what_is_exported() -> None:
    shown = in_a_fresh_python(
        "import json, types, shinar\n"
        "for name in shinar.__all__: getattr(shinar, name)\n"
        "own = [n for n, v in vars(shinar).items() if not n.startswith('_')]\n"
        "modules = [n for n in own if isinstance(vars(shinar)[n], types.ModuleType)]\n"
        "print(json.dumps([sorted(set(own) - set(modules)), dir(shinar), shinar.__all__]))"
    )
    leaked, listed, exported = json.loads(shown)
    assert leaked == []
    assert listed == sorted([*exported, "__version__"])


def test_the_lazy_table_and_the_type_checkers_view_agree() -> None:
    import shinar

    text = Path(shinar.__file__).read_text()
    block = text.partition("if TYPE_CHECKING:")[2].partition("__version__")[0]
    seen = re.findall(r"[A-Za-z]+", re.sub(r"from [\w.]+ import", "", block))
    assert sorted(seen) == sorted(shinar.__all__)
    assert sorted(shinar._HOMES) == sorted(set(shinar.__all__) - {"errors"})


def test_importing_the_package_imports_nothing_else() -> None:
    shown = in_a_fresh_python(
        "import sys, shinar; print([m for m in sys.modules if m.startswith('shinar.')])"
    )
    assert shown == "[]\n"


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import shinar

    with pytest.raises(AttributeError, match="Prodcuer"):
        _ = shinar.Prodcuer  # type: ignore[attr-defined]


def test_a_missing_extra_is_named_with_its_command() -> None:
    shown = in_a_fresh_python(
        "import sys; sys.modules['pyspark'] = None\n"
        "import shinar\n"
        "try: shinar.Pipeline\n"
        "except shinar.errors.MissingExtra as exc: print(exc)"
    )
    assert shown == "shinar.Pipeline needs the package pyspark: pip install 'shinar[spark]'\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_export_shadows_a_builtin_or_the_standard_library(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert name not in vars(builtins), f"{package}.{name} shadows a builtin"
        home = getattr(getattr(module, name), "__module__", package)
        assert str(home).startswith(("shinar", "typing", "collections", "builtins", "types")), (
            f"{package}.{name}"
        )


# -- type checkers


def marked(word: str) -> set[int]:
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(f"# {word}")}


def mypy_errors() -> dict[str, set[int]]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "pyproject.toml"), *map(str, sorted(PROGRAMS.glob("*.py")))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found: dict[str, set[int]] = {"program.py": set(), "mistakes.py": set()}
    for name, line in re.findall(r"(\w+\.py):(\d+): error:", done.stdout):
        found[name].add(int(line))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return found


def pyright_errors() -> dict[str, set[int]]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(
        [*command, *map(str, sorted(PROGRAMS.glob("*.py")))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        pytest.skip(f"pyright did not start: {(done.stderr or done.stdout)[-200:]}")
    found: dict[str, set[int]] = {"program.py": set(), "mistakes.py": set()}
    for one in answer["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"]).name].add(one["range"]["start"]["line"] + 1)
    return found


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_accept_a_program_and_find_its_mistakes(checker: str) -> None:
    if checker == "pyright" and shutil.which("node") is None:
        pytest.skip("pyright needs node")
    found = mypy_errors() if checker == "mypy" else pyright_errors()
    assert found["program.py"] == set()
    later = marked("wrong later")
    assert found["mistakes.py"] - later == marked("wrong")
    assert not found["mistakes.py"] & later, "found by now: mark the line as `# wrong`"
