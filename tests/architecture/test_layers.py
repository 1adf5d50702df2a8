"""Imports go downwards only; modules and functions stay readable; what is exported exists."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import shinar

SOURCE = Path(shinar.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

#: Layer of a package or module, longest prefix first. A module imports from its own layer or below.
LAYERS = {
    "errors": 0,
    "clock": 0,
    "observe": 0,
    "durable": 0,
    "pace": 0,
    "envelope": 1,
    "phpmq.protocol": 1,
    "settlement": 1,
    "brokers": 2,
    "idempotency": 2,
    "phpmq.server": 3,
    "phpmq": 2,
    "outbox": 3,
    "producer": 3,
    "telemetry": 3,
    "bridge": 3,
    "worker": 3,
    "schemas": 4,
    "pipeline": 4,
    "redrive": 4,
    "web": 5,
    "cli": 6,
    "conformance": 6,
    "__init__": 6,
}

#: Imports no layer allows, whoever asks: (importer, imported).
FORBIDDEN = [
    ("envelope", "settlement"),
    ("pipeline", "worker"),
    ("worker", "phpmq"),
    ("producer", "phpmq"),
]

#: Larger on purpose; each with its reason.
LONG_MODULES: dict[str, str] = {}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def layer_of(module: str) -> int:
    for prefix in sorted(LAYERS, key=len, reverse=True):
        if module == prefix or module.startswith(prefix + "."):
            return LAYERS[prefix]
    raise AssertionError(f"{module} has no layer: add it to LAYERS")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("shinar"):
            yield node.module.removeprefix("shinar").lstrip("."), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("shinar."):
                    yield alias.name.removeprefix("shinar."), node.lineno


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downwards(path: Path) -> None:
    module = name_of(path)
    for imported, line in imports(path):
        if not imported:
            continue
        assert layer_of(imported) <= layer_of(module), f"{module}:{line} imports {imported}, which lies above"
        for importer, target in FORBIDDEN:
            crossed = module.split(".")[0] == importer and imported.split(".")[0] == target
            assert not crossed, f"{module}:{line} must not know {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_but_the_registry_names_a_broker_module(path: Path) -> None:
    module = name_of(path)
    general = {"brokers", "brokers.contract", "brokers.registry", "brokers.url", "brokers.projection"}
    if module.startswith(("brokers", "conformance")):
        return
    # The table queue's database layer also serves the other things kept in tables; the embedded
    # broker's own command talks to the embedded broker.
    tables = {"brokers.sql_dialects", "brokers.sql_session", "brokers.sql_table"}
    allowed = {
        **dict.fromkeys(("idempotency", "outbox", "redrive"), tables),
        "cli.broker": {"brokers.phpmq"},
    }
    general |= allowed.get(module, allowed.get(module.split(".")[0], set()))
    for imported, line in imports(path):
        if imported.startswith("brokers"):
            assert imported in general, f"{module}:{line} names the broker module {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    module = name_of(path)
    lines = len(text.splitlines())
    assert lines <= 400 or module in LONG_MODULES, f"{module} has {lines} lines; split it"
    tree = ast.parse(text)
    if path.name != "__init__.py" or tree.body:
        assert ast.get_docstring(tree) is not None, f"{module} does not say what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body_lines = (node.end_lineno or 0) - node.lineno + 1
            assert body_lines <= 60, f"{module}.{node.name} has {body_lines} lines"
            given = node.args.posonlyargs + node.args.args
            assert len([a for a in given if a.arg not in ("self", "cls")]) <= 6, (
                f"{module}.{node.name}: parameters"
            )


@pytest.mark.parametrize("path", [p for p in MODULES if "__all__" in p.read_text()], ids=name_of)
def test_exports_exist_and_are_sorted(path: Path) -> None:
    name = name_of(path)
    module = importlib.import_module("shinar" if name == "__init__" else f"shinar.{name}")
    assert list(module.__all__) == sorted(
        module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )
    for exported in module.__all__:
        assert hasattr(module, exported), f"{name} exports {exported}, which it does not have"


def test_nothing_catches_everything() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path.name}:{node.lineno}: a bare except"


def test_the_command_line_starts_without_the_heavy_imports() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from shinar.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'pyarrow', 'msgspec', 'asyncio', 'redis', 'pika', 'boto3'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
