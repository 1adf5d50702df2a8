"""`make test` runs every test file, and none twice."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_file_is_in_exactly_one_group() -> None:
    spec = importlib.util.spec_from_file_location("run_groups", ROOT / "tests" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.ORDER) == sorted(module.GROUPS)
    found: Counter[Path] = Counter()
    for words in module.GROUPS.values():
        ignored = [ROOT / word.partition("=")[2] for word in words if word.startswith("--ignore=")]
        for path in (ROOT / word for word in words if not word.startswith("-")):
            assert path.exists(), path
            files = [path] if path.is_file() else path.rglob("test_*.py")
            found.update(f for f in files if not any(f == i or i in f.parents for i in ignored))
    assert found == Counter({path: 1 for path in (ROOT / "tests").rglob("test_*.py")})
