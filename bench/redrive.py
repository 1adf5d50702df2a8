"""Dead letters by the command line: time and peak memory of every step, as the operating system saw them.

    python bench/redrive.py [dead letters] [broker URL without a queue]

Without a URL it uses a SQLite file. Exit code 1 when a command needs more memory than promised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from redrive_letters import plant
from shinar.brokers import connect

#: Peak memory every command must stay under, in MiB.
LIMIT_MIB = 200.0
WHERE = "exception like '%GatewayTimeout'"


def measured(name: str, words: list[str], env: dict[str, str]) -> float:
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "shinar.cli.main", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    lines = sum(1 for _ in process.stdout)
    _, status, usage = os.wait4(process.pid, 0)
    took_s = time.monotonic() - started_s
    peak = usage.ru_maxrss / 1024
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code
    print(f"{name:<28} {took_s:8.1f} s  {peak:7.1f} MiB  exit {code}  {lines:,} lines")
    if code:
        raise SystemExit(f"{name} failed")
    return peak


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite://{folder}/queue.db"
        broker = connect(url)
        dlq = f"bench{broker.traits.dlq_suffix}"
        plant(broker, dlq, "bench", count)
        reserve = [] if broker.traits.browse else ["--reserve"]
        broker.close()
        place = f"{url}{'&' if '?' in url else '?'}queue={dlq}"
        env = {**os.environ, "SHINAR_LEDGER": f"{folder}/ledger.db"}
        print(f"{count:,} dead letters on {place.partition('://')[0]}")
        peaks = [
            measured("dlq summary", ["dlq", "summary", place, *reserve], env),
            measured("dlq list --limit 100", ["dlq", "list", place, "--limit", "100", *reserve], env),
            measured("dlq export", ["dlq", "export", place, "--out", f"{folder}/x.jsonl", *reserve], env),
            measured(
                "dlq export (Parquet)",
                ["dlq", "export", place, "--out", f"{folder}/x.parquet", *reserve],
                env,
            ),
            measured("redrive --dry-run", ["redrive", place, "--dry-run", *reserve], env),
            measured("redrive --where", ["redrive", place, "--where", WHERE, "--yes", *reserve], env),
            measured("redrive all", ["redrive", place, "--yes", *reserve], env),
        ]
        print(json.dumps({"count": count, "peak_mib": round(max(peaks), 1), "limit_mib": LIMIT_MIB}))
    return 0 if max(peaks) < LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
