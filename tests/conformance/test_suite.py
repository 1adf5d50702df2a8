"""The public conformance suite, when it lies beside the project; our own vectors cover the same ground."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "conformance"


@pytest.mark.live("redis")
@pytest.mark.skipif(not BESIDE.is_dir(), reason="the suite is not beside the project")
def test_every_case_passes_with_a_live_redis(server) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(BESIDE / "conformance_runner.py"),
            *("--suite", str(BESIDE / "suite")),
            *("--adapter", shlex.join([sys.executable, "-m", "shinar.conformance"])),
            *("--redis", server.url),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_the_adapter_tells_refusals_from_mistakes() -> None:
    from shinar.conformance.__main__ import answer

    hello = answer({"call": "hello", "args": {"protocol": 1}})
    assert hello["ok"]["protocol"] == 1
    assert answer({"call": "frobnicate", "args": {}}) == {"unsupported": True}
    assert answer({"call": "project", "args": {"binding": "nats", "body_b64": "e30="}}) == {
        "unsupported": True
    }
    refused = answer({"call": "produce", "args": {"urn": "urn:x", "data": {}, "meta": {"ts": 1}}})
    assert refused["reject"]["pointer"] == "/meta/ts"
    assert "KeyError" in answer({"call": "classify", "args": {}})["error"]
