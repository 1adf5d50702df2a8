"""Fetches what other languages need, by their own package managers, into the cache; pinned, once per pin."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from servers.jars import STAMP, cache_directory
from servers.process import find_program

HERE = Path(__file__).resolve().parent
#: A package manager on a busy machine; it says itself when a registry does not answer.
FETCH_TIMEOUT_S = 240
#: One message each way takes a second or two; a JVM on a busy machine takes some more to come up.
RUN_TIMEOUT_S = 60


class NoToolchain(Exception):
    """The language is not installed here."""


class NotFetched(Exception):
    """The language is here, its packages are not to be had."""


def program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise NoToolchain(f"no {name} here")
    return found


def jars(pom: Path) -> Path:
    """The directory with the jars a pom asks for."""
    maven, _ = program("mvn"), program("javac")

    def fetch(home: Path) -> list[str]:
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        return [*command, "-DincludeScope=runtime", f"-DoutputDirectory={home}/lib"]

    return _fetched("java", [pom], fetch) / "lib"


def node_modules(folder: Path) -> Path:
    """A copy of a package's folder with its dependencies beside it: Node looks for them there."""
    npm, _ = program("npm"), program("node")
    sources = sorted(path for path in folder.rglob("*") if path.is_file())

    def fetch(home: Path) -> list[str]:
        shutil.copytree(folder, home, dirs_exist_ok=True)
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--install-links"]
        return [npm, "install", "--loglevel=error", *flags, "--prefix", str(home)]

    return _fetched("node", sources, fetch)


def run(command: Sequence[str], lines: Iterable[str] = ()) -> list[str]:
    """What a program wrote, by lines; its own complaint when it failed."""
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
        timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout.splitlines()


def _fetched(name: str, pins: Sequence[Path], fetch) -> Path:
    pinned = hashlib.sha256(b"\0".join(path.read_bytes() for path in pins)).hexdigest()
    home = cache_directory().parent / "interop" / f"{name}-{pinned[:12]}"
    if (home / STAMP).exists():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    # Made beside and then renamed: a download cut short, or one by a neighbour's run, is never met half done.
    with tempfile.TemporaryDirectory(dir=home.parent) as fresh:
        made = Path(fresh) / "made"
        made.mkdir()
        try:
            done = subprocess.run(
                fetch(made), capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as exc:
            raise NotFetched(f"{name}: nothing after {exc.timeout} s") from exc
        if done.returncode != 0:
            raise NotFetched(f"{name}: {(done.stderr or done.stdout).strip()[:500]}")
        (made / STAMP).touch()
        try:
            made.rename(home)
        except OSError:
            if not (home / STAMP).exists():
                raise
    return home
