"""`shinar doctor`: checks what Shinar needs to run: Python, extras, Java, and the brokers given."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from typing import Any, NamedTuple

from shinar.cli.support.output import add_output, emit, settings_of, with_token
from shinar.cli.support.settings import Settings
from shinar.errors import ShinarError

#: Extras that are not a broker's -> distribution that must be installed for it
EXTRAS = {
    "schemas": "jsonschema",
    "crypto": "cryptography",
    "otel": "opentelemetry-api",
    "spark": "pyspark",
}


class Check(NamedTuple):
    name: str
    ok: bool
    text: str
    #: False: optional, so a failed check does not fail the command.
    needed: bool = True


EXAMPLES = """examples:
  shinar doctor
  shinar doctor redis://localhost/orders phpmq://localhost:9100
The exit code is 1 when a check fails that something needs; a missing extra alone is not a failure.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check Java, Spark, extras and connections",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="*", help="brokers to connect to")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(argparse.Namespace())
    checks = [_python(), *_extras(), _java(), *(_broker(url, settings) for url in args.url)]
    for check in checks:
        if args.json:
            emit(check._asdict())
        else:
            mark = "ok  " if check.ok else ("MISS" if check.needed else "-   ")
            print(f"{mark} {check.name:<14} {check.text}")
    return 1 if any(check.needed and not check.ok for check in checks) else 0


def _python() -> Check:
    return Check("python", sys.version_info >= (3, 11), platform.python_version())


def _extras() -> list[Check]:
    from shinar.brokers.registry import ROWS, plugins

    found = []
    brokers = {row.extra: row.distribution for row in ROWS.values() if row.extra}
    for extra, package in {**brokers, **EXTRAS}.items():
        try:
            found.append(Check(extra, True, f"{package} {importlib.metadata.version(package)}", needed=False))
        except importlib.metadata.PackageNotFoundError:
            found.append(Check(extra, False, f"pip install 'shinar[{extra}]'", needed=False))
    for scheme, problem in plugins().items():
        found.append(Check(f"{scheme}://", not problem, problem or "a broker of another distribution"))
    return found


def _java() -> Check:
    java = shutil.which("java")
    if java is None:
        return Check("java", False, "Spark needs Java 17: install openjdk-17-jre-headless", needed=False)
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    match = re.search(r'version "(\d+)', shown)
    major = int(match[1]) if match else 0
    text = shown.splitlines()[0] if shown else "unknown"
    return Check("java", major >= 17, text if major >= 17 else f"{text}: Spark 4.3 needs 17", needed=False)


def _broker(text: str, settings: Settings) -> Check:
    from shinar.brokers import connect, parse

    try:
        url = with_token(parse(text), settings, named_by=None)
        broker = connect(url)
        try:
            depth = broker.depth(url.queue) if url.queue else None
        finally:
            broker.close()
    except ShinarError as exc:
        return Check("broker", False, f"{exc} [{exc.code}]")
    ready = "" if depth is None or depth.ready is None else f", {depth.ready} ready in {url.queue}"
    return Check("broker", True, f"{url}{ready}")
