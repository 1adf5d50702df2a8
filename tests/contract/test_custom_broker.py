"""A broker of another distribution is found by its entry point, and then by everything that takes a URL.

That it fulfils the contract is shown where all brokers show it: it is the row `file` of tests/cases.py.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cases import FILE_BROKER, take
from shinar.brokers import Outgoing, connect, parse, registry
from shinar.envelope import build, encode
from shinar.errors import ConfigError, UnknownScheme
from shinar.pipeline.source.options import stream_options


def shinar(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shinar.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_is_one_package_and_one_row() -> None:
    files = {path.relative_to(FILE_BROKER).as_posix() for path in FILE_BROKER.rglob("*") if path.is_file()}
    assert {f for f in files if "__pycache__" not in f} == {
        "file_broker/__init__.py",
        "file_broker/broker.py",
        "file_broker-0.1.dist-info/METADATA",
        "file_broker-0.1.dist-info/entry_points.txt",
    }
    assert registry.rows()["file"].label == "files"
    assert "file" not in registry.ROWS


def test_the_bridge_moves_to_and_from_it(tmp_path: Path) -> None:
    body = encode(build("urn:babel:orders:created", {"n": 1}))
    connect(f"file://{tmp_path}/spool").publish("orders", [Outgoing(body, {"x-why": "because"})])
    target = f"sqlite://{tmp_path}/queue.db?queue=orders"
    done = shinar("bridge", f"file://{tmp_path}/spool?queue=orders", target)
    assert "received 1 = moved 1" in done.stderr, done.stderr
    (got,) = take(connect(target), "orders", 1)
    assert (got.body, dict(got.headers)) == (body, {"x-why": "because"})
    itself = shinar(
        "bridge", f"file://{tmp_path}/spool?queue=orders", f"file://{tmp_path}/./spool?queue=orders"
    )
    assert "is the source itself" in itself.stderr


def test_the_doctor_lists_it_and_connects(tmp_path: Path) -> None:
    connect(f"file://{tmp_path}/spool").publish("orders", [Outgoing(b"{}")])
    done = shinar("doctor", "--json", f"file://{tmp_path}/spool?queue=orders")
    checks = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert checks["file://"]["ok"]
    assert checks["broker"]["ok"]
    assert "1 ready in orders" in checks["broker"]["text"]


def test_spark_takes_its_url_and_its_options(tmp_path: Path) -> None:
    given = {"queue": "orders", "landing": str(tmp_path / "landing")}
    options = stream_options({**given, "url": f"file://{tmp_path}/spool?lease_s=30"})
    assert options.url.traits().lease_s == 30
    assert options.queues == ("orders",)
    options.url.connect_lasting().publish("orders", [Outgoing(b"{}")])
    with pytest.raises(ConfigError, match="did you mean lease_s"):
        stream_options({**given, "url": f"file://{tmp_path}/spool?lease_z=30"}).url.connect()


def test_an_error_suggests_its_scheme() -> None:
    with pytest.raises(UnknownScheme, match="file"):
        parse("fil:///spool")


@pytest.mark.parametrize(
    ("value", "told"), [("no_such_package:ROW", "cannot be loaded"), ("json:loads", "is not a")]
)
def test_a_broken_one_is_told_and_stops_nobody_else(
    value: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = importlib.metadata.EntryPoint("broken", value, registry.ENTRY_POINTS)
    found: Callable[[], dict[str, importlib.metadata.EntryPoint]] = lambda: {"broken": broken}  # noqa: E731
    monkeypatch.setattr(registry, "_entry_points", found)
    with pytest.raises(ConfigError, match=told):
        parse("broken://x/q")
    assert told in registry.plugins()["broken"]
    assert set(registry.rows()) == set(registry.ROWS)
