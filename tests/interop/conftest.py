"""Programs in other languages, ready to run: their packages fetched, or the test skipped with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from interop import toolchains

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def _or_skip(fetch: Callable[[Path], Path], pin: Path) -> Path:
    try:
        return fetch(pin)
    except toolchains.NoToolchain as exc:
        pytest.skip(str(exc))
    except toolchains.NotFetched as exc:
        if IN_CI:
            pytest.fail(str(exc), pytrace=False)
        pytest.skip(str(exc))


@pytest.fixture(scope="session")
def java_command() -> list[str]:
    """`java` with the jars of tests/interop/java, for a program given as a source file."""
    lib = _or_skip(toolchains.jars, toolchains.HERE / "java" / "pom.xml")
    small = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    return [toolchains.program("java"), *small, "-cp", f"{lib}/*"]


@pytest.fixture(scope="session")
def node_folder() -> Path:
    return _or_skip(toolchains.node_modules, toolchains.HERE / "node")
