"""Text from messages reaches a terminal escaped, however it is printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shinar.brokers import Outgoing, connect
from shinar.cli.main import main

#: ESC, OSC 52 (clipboard), C1's CSI, carriage return, a forged line, a bidirectional override.
EVIL = "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b2J\rforged\nline\u202e"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


def hostile(urn: str = EVIL) -> bytes:
    document = {
        "job": f"urn:{urn}",
        "trace_id": urn,
        "data": {urn: urn},
        "meta": {"id": urn, "schema_version": 1, "max_retries": 1},
        "attempts": 0,
    }
    return json.dumps(document, ensure_ascii=False).encode()


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("body", [hostile(), EVIL.encode(), b'{"job":"u","data":{"\x9b":[' + EVIL.encode()])
def test_tail_and_inspect_escape_what_a_message_holds(
    tmp_path: Path, body: bytes, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/q.db?queue=q"
    broker = connect(url)
    broker.publish("q", [Outgoing(body, headers={"x": EVIL})])
    broker.close()
    (tmp_path / "message").write_bytes(body)
    main(["tail", url, *flags])
    main(["inspect", str(tmp_path / "message"), *flags])
    shown = capsys.readouterr().out
    assert shown
    assert UNSAFE.search(shown) is None
    assert not [line for line in shown.splitlines() if line.startswith(("forged", "line"))]
    if flags:
        described = json.loads(shown.splitlines()[0])
        assert described["headers"] == {"x": EVIL}


@pytest.mark.parametrize("levels", [300, 898, 900, 950, 990])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_deep_message_is_shown(tmp_path: Path, levels: int, flags: list[str]) -> None:
    nested = b"[" * levels + b"]" * levels
    body = (
        b'{"job":"urn:x","trace_id":"t","data":{"a":' + nested + b'},"meta":{"id":"i","queue":"q",'
        b'"lang":"php","schema_version":1,"created_at":1},"attempts":0}'
    )
    (tmp_path / "message").write_bytes(body)
    command = [sys.executable, "-m", "shinar", "inspect", str(tmp_path / "message"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (int(levels > 898), "")
    assert ("too_deep" in done.stdout) == (levels > 898)
