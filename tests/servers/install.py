"""Install the servers of the tests: `python tests/servers/install.py [--strict] [names]`.

Distribution packages where there are any (apt-get, as root), else pinned jars by Maven (pom.xml). What is
there already is left alone. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from servers.jars import STAMP, library
from servers.process import find_program

POM = Path(__file__).with_name("pom.xml")
#: apt-get runs this before it starts a fresh package's service; 101 means "no".
POLICY = Path("/usr/sbin/policy-rc.d")
#: Another installation may be under way: wait for it.
APT = ("-qq", "-o", "DPkg::Lock::Timeout=300")


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package, and the programs (names or patterns) of which one shows that it is there."""

    name: str
    programs: tuple[str, ...]

    def found(self) -> str | None:
        off_path = (str(path) for name in self.programs for path in Path("/").glob(name.lstrip("/")))
        return find_program(*self.programs) or next(off_path, None)


#: The compiler, too: the launcher of Artemis is run from its source.
JAVA = Package("openjdk-17-jdk-headless", ("javac",))
MAVEN = Package("maven", ("mvn",))

PACKAGES: dict[str, Package] = {
    "redis": Package("redis-server", ("redis-server", "valkey-server")),
    "rabbitmq": Package("rabbitmq-server", ("rabbitmq-server",)),
    "postgresql": Package("postgresql", ("initdb", "/usr/lib/postgresql/*/bin/initdb")),
    "mariadb": Package("mariadb-server", ("mariadbd",)),
    # Not servers, but what some tests drive ours with: a PHP client, and certificates.
    "php": Package("php-cli", ("php",)),
    "openssl": Package("openssl", ("openssl",)),
}
JARS = ("elasticmq", "kafka", "artemis", "pulsar")


class Unavailable(Exception):
    """Could not be installed here; the text says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the servers of the tests.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"{', '.join((*PACKAGES, *JARS))}; default: all"
    )
    parser.add_argument("--strict", action="store_true", help="fail if one cannot be installed")
    chosen = parser.parse_args()
    names = chosen.names or [*PACKAGES, *JARS]
    unknown = [name for name in names if name not in PACKAGES and name not in JARS]
    if unknown:
        parser.error(f"no server {unknown[0]!r}; there are {', '.join((*PACKAGES, *JARS))}")
    failed = 0
    for name in names:
        try:
            done = install_package(PACKAGES[name]) if name in PACKAGES else install_jars(name)
        except Unavailable as exc:
            failed += 1
            done = f"UNAVAILABLE: {exc}"
        print(f"{name:<11} {done}", flush=True)
    return 1 if failed and chosen.strict else 0


def install_package(package: Package) -> str:
    if found := package.found():
        return f"there already ({found})"
    apt = find_program("apt-get")
    if apt is None:
        raise Unavailable(f"no apt-get here; install {package.name} by your system's means")
    if os.geteuid() != 0:
        raise Unavailable(f"not root; run: apt-get install {package.name}")
    with services_kept_down():
        # A fresh image has no package lists.
        run([apt, *APT, "update"])
        run([apt, *APT, "install", "-y", "--no-install-recommends", package.name])
    if not package.found():
        raise Unavailable(f"{package.name} is installed, but there is no {package.programs[0]}")
    return f"installed {package.name}"


def install_jars(name: str) -> str:
    target = library(name)
    stamp = target.parent / STAMP
    pinned = pin(name)
    if stamp.exists() and stamp.read_text() == pinned:
        return f"there already ({len(list(target.glob('*.jar')))} jars)"
    for tool in (JAVA, MAVEN):
        if not tool.found():
            print(f"{name:<11} {install_package(tool)}", flush=True)
    maven = find_program("mvn")
    assert maven is not None
    # Beside the old ones: jars of two pins must not meet on one class path, and a failure costs nothing.
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as fresh:
        command = [maven, "-q", "-B", "-f", str(POM), "-P", name, "dependency:copy-dependencies"]
        run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={fresh}/lib"])
        jars = len(list(Path(fresh).glob("lib/*.jar")))
        if not jars:
            raise Unavailable("maven copied no jar")
        stamp.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(f"{fresh}/lib", target)
    stamp.write_text(pinned)
    return f"installed ({jars} jars)"


def pin(name: str) -> str:
    """A digest of what the pom asks for that server, and of nothing else in it."""
    root = ElementTree.parse(POM).getroot()
    profile = root.find(f"profiles/profile[id='{name}']")
    assert profile is not None
    asked = ElementTree.tostring(profile, encoding="unicode")
    for setting in root.iterfind("properties/*"):
        asked = asked.replace(f"${{{setting.tag}}}", setting.text or "")
    return hashlib.sha256(asked.encode()).hexdigest()


@contextlib.contextmanager
def services_kept_down() -> Iterator[None]:
    """Debian starts a service when it is installed; the tests start their own, on other ports."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


def run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # Maven says the cause first and advice last; apt-get the other way round.
        told = next((line for line in said if line.startswith("[ERROR]")), said[-1] if said else "")
        raise Unavailable(f"{Path(command[0]).name} failed: {told[:500]}")


if __name__ == "__main__":
    sys.exit(main())
