"""Where the servers that are jars lie, and how a small JVM is started on them. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from servers.process import ServerMissing, find_program

#: For two cores that other tests want too: no background compilers beyond C1, no parallel collector. Benches
#: set TEST_SERVER_JIT: they measure servers as people run them.
_QUICK_START = () if os.environ.get("TEST_SERVER_JIT") else ("-XX:TieredStopAtLevel=1",)
JVM = ("-XX:+UseSerialGC", *_QUICK_START, "-XX:-UsePerfData", "-Xshare:auto")
#: Written last by the installer, so a broken download is not taken for a server; holds the pom's digest.
STAMP = "complete"


def cache_directory() -> Path:
    """SHINAR_CACHE, else `.cache` of this checkout (ignored by git)."""
    chosen = os.environ.get("SHINAR_CACHE")
    base = Path(chosen) if chosen else Path(__file__).resolve().parents[2] / ".cache"
    return base / "servers"


def library(name: str) -> Path:
    return cache_directory() / name / "lib"


def java(name: str) -> tuple[str, str]:
    """The `java` program and the class path of a server's jars."""
    program = find_program("java")
    if program is None:
        raise ServerMissing(f"no java here; run python tests/servers/install.py {name}")
    lib = library(name)
    if not (lib.parent / STAMP).exists():
        raise ServerMissing(f"the jars of {name} are not here; run python tests/servers/install.py {name}")
    return program, f"{lib}/*"


def version_of(name: str, jar: str) -> str:
    """The version in a jar's file name."""
    found = sorted(library(name).glob(f"{jar}-[0-9]*.jar"))
    return found[0].name[len(jar) + 1 : -len(".jar")] if found else "unknown"
