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

#: Layer of a package or module, longest prefix first. A module imports from its own layer or below; the
#: numbers inside a package are the order of its rooms.
LAYERS = {
    "errors": 0,
    "clock": 0,
    "observe": 0,
    "printable": 0,
    "durable_files": 0,
    "envelope": 10,
    "phpmq.protocol": 10,
    "settlement": 11,
    "brokers.url": 12,
    "database": 20,
    "brokers": 20,
    "idempotency": 20,
    "phpmq": 20,
    "delivery": 30,
    "phpmq.server": 30,
    "outbox": 40,
    "producer": 40,
    "telemetry": 40,
    "bridge": 40,
    "worker": 40,
    "schemas": 45,
    "pipeline.rows": 50,
    "pipeline.spark_errors": 50,
    "pipeline.typed": 50,
    "pipeline.source.options": 50,
    "pipeline.source.wal": 51,
    "pipeline.source": 52,
    "pipeline.lake": 52,
    "pipeline.batch": 53,
    "pipeline.config": 54,
    "pipeline.checkpoint": 54,
    "pipeline.handlers": 54,
    "pipeline.metrics": 54,
    "pipeline.process_guard": 50,
    "pipeline.session": 54,
    "pipeline.run_summary": 54,
    "pipeline.analysis": 54,
    "pipeline.maintenance": 55,
    "pipeline.report": 55,
    "pipeline.pipeline": 55,
    "pipeline": 56,
    "redrive.model": 60,
    "redrive.letters": 61,
    "redrive.select": 62,
    "redrive.ledger": 63,
    "redrive.eligibility": 64,
    "redrive.send": 65,
    "redrive.plan": 66,
    "redrive.spark": 66,
    "redrive.job": 67,
    "redrive.rehearse": 68,
    "redrive": 69,
    "console": 70,
    "cli.support": 80,
    "cli.commands": 81,
    "cli": 82,
    "conformance": 80,
    "__main__": 90,
    "__init__": 90,
}

#: Imports no layer allows, whoever asks: (importer, imported).
FORBIDDEN = [
    ("envelope", "settlement"),
    ("pipeline", "worker"),
    ("worker", "phpmq"),
    ("producer", "phpmq"),
    ("pipeline.source", "pipeline.lake"),
    ("pipeline.lake", "pipeline.source"),
    ("pipeline.batch", "pipeline.source"),
    ("pipeline.source.wal", "pyspark"),
    ("redrive", "cli"),
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


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """What a module imports of Shinar, and of Spark, and where."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            top, _, rest = node.module.partition(".")
            if top == "pyspark":
                yield node.module, node.lineno
            elif top == "shinar":
                for alias in node.names:
                    inner = f"{rest}.{alias.name}".lstrip(".")
                    yield (inner if inner in NAMES else rest), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("shinar."):
                    yield alias.name.removeprefix("shinar."), node.lineno
                elif alias.name.split(".")[0] == "pyspark":
                    yield alias.name, node.lineno


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_downwards(path: Path) -> None:
    module = name_of(path)
    for imported, line in imports(path):
        if not imported:
            continue
        if imported.split(".")[0] != "pyspark":
            above = f"{module}:{line} imports {imported}, which lies above"
            assert layer_of(imported) <= layer_of(module), above
        for importer, target in FORBIDDEN:
            crossed = within(module, importer) and within(imported, target)
            assert not crossed, f"{module}:{line} must not know {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nobody_but_the_registry_names_a_broker_module(path: Path) -> None:
    module = name_of(path)
    general = {
        "brokers",
        "brokers.contract",
        "brokers.registry",
        "brokers.rows",
        "brokers.url",
        "brokers.projection",
    }
    if module.startswith(("brokers", "conformance")):
        return
    # The embedded broker's own command talks to the embedded broker.
    if within(module, "cli.commands.broker") or module == "cli.support.embedded":
        general.add("brokers.phpmq")
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


def test_producer_and_worker_load_no_server_and_no_database() -> None:
    import subprocess
    import sys

    code = (
        "import sys, shinar\n"
        "shinar.Producer, shinar.Worker, shinar.Handlers, shinar.Limits, shinar.Policy\n"
        "with shinar.Producer('memory://a/b') as producer: producer.send('urn:babel:a:b', {})\n"
        "shinar.Worker('memory://a/b', {}, limits=shinar.Limits(max_messages=0)).run()\n"
        "loaded = {'http.server', 'socketserver', 'sqlite3'} & set(sys.modules)\n"
        "sys.exit(f'imported {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_folder_is_a_drawer() -> None:
    for folder in {path.parent for path in MODULES}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 14, f"{folder.relative_to(SOURCE)} has {len(modules)} modules; give it rooms"
