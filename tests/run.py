"""All tests, side by side: `make test`. Most of them wait for a server or a lease, so a few pytest
processes share the cores well; each starts only the servers its tests need. A handful of failures is
run once more, alone: what passes then failed for want of a core, is named as such, and does not fail the
run; what fails again does.

    python tests/run.py            every group, a few at a time, one summary
    python tests/run.py contract   only these groups
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".cache" / "test-logs"

#: group -> what pytest gets. Everything under tests/ is in exactly one group; a test checks that.
GROUPS: dict[str, list[str]] = {
    "contract": ["tests/contract", "tests/integration/test_outcomes.py"],
    "brokers": [
        "tests/integration",
        "--ignore=tests/integration/test_outcomes.py",
        "--ignore=tests/integration/test_sql_broker.py",
        "--ignore=tests/integration/test_outbox.py",
        "--ignore=tests/integration/test_idempotency_stores.py",
        "--ignore=tests/integration/test_spark_source.py",
        "--ignore=tests/integration/test_spark_source_brokers.py",
        "--ignore=tests/integration/test_pipeline.py",
        "--ignore=tests/integration/test_redrive.py",
        "--ignore=tests/integration/test_redrive_across.py",
        "--ignore=tests/integration/test_redrive_fifo.py",
        "--ignore=tests/integration/test_redrive_lake.py",
        "--ignore=tests/integration/test_servers.py",
    ],
    "spark": [
        "tests/integration/test_spark_source.py",
        "tests/integration/test_spark_source_brokers.py",
        "tests/integration/test_pipeline.py",
        "tests/integration/test_redrive_lake.py",
        "tests/chaos/test_spark_source.py",
        "tests/chaos/test_spark_cluster.py",
        "tests/docs",
    ],
    "tables": [
        "tests/unit/pipeline",
        "tests/integration/test_redrive.py",
        "tests/integration/test_redrive_across.py",
        "tests/integration/test_redrive_fifo.py",
    ],
    "chaos": [
        "tests/chaos",
        "--ignore=tests/chaos/test_spark_source.py",
        "--ignore=tests/chaos/test_spark_cluster.py",
        "--ignore=tests/chaos/test_phpmq_neighbours.py",
        "tests/integration/test_servers.py",
    ],
    "latency": ["tests/chaos/test_phpmq_neighbours.py"],
    "hostile": ["tests/hostile"],
    "soak": ["tests/soak"],
    "quick": [
        "tests/unit",
        "--ignore=tests/unit/pipeline",
        "tests/properties",
        "tests/architecture",
        "tests/conformance",
        "tests/interop",
        "tests/integration/test_sql_broker.py",
        "tests/integration/test_outbox.py",
        "tests/integration/test_idempotency_stores.py",
    ],
}
#: The longest first, so that none is left running alone at the end.
ORDER = ("spark", "chaos", "tables", "brokers", "quick", "contract", "hostile", "soak", "latency")
#: Measures how long others wait: only when nothing else runs.
ALONE = "latency"
#: Groups that run at the same time: enough to keep the cores busy while others wait for a server or a lease,
#: few enough that Spark's Python workers start within the ten seconds it gives them.
AT_ONCE = 5
#: Seconds between two lines of progress.
TELL_S = 60
#: More failures than this are no matter of load.
FEW = 4
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S.*?)(?: - .*)?$", re.M)
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected)")


def main() -> int:
    names = sys.argv[1:] or list(ORDER)
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"running {', '.join(names)}; logs in {LOGS.relative_to(ROOT)}", flush=True)
    codes = run(names, started)
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for name in names:
        text = (LOGS / f"{name}.log").read_text(errors="replace")
        print(f"\n===== {name}\n{summary_of(text, failed=bool(codes[name]))}", flush=True)
        last = text.rstrip().rpartition("\n")[2]
        for count, kind in COUNT.findall(last):
            kind = "failed" if kind.startswith("error") else kind
            totals[kind] = totals.get(kind, 0) + int(count)
    minutes = (time.monotonic() - started) / 60
    print(f"\nall groups in {minutes:.1f} minutes")
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    failed = [name for name in names if codes[name]]
    return 0 if not failed or passes_alone(failed) else 1


def passes_alone(groups: list[str]) -> bool:
    """Run what failed in these groups again with the machine to itself; False when it is too much for
    that, or a group died without naming a test."""
    found = {group: FAILED.findall((LOGS / f"{group}.log").read_text(errors="replace")) for group in groups}
    tests = [test for named in found.values() for test in named]
    if not all(found.values()) or len(tests) > FEW:
        return False
    print("\n===== again, alone: " + ", ".join(tests), flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    if passed:
        print(f"these failed beside the others and passed alone: {', '.join(tests)}", flush=True)
    return passed


def start(name: str) -> subprocess.Popen[bytes]:
    with (LOGS / f"{name}.log").open("wb") as log:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--durations=10",
            *GROUPS[name],
        ]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def run(names: list[str], started: float) -> dict[str, int]:
    """All groups, a few at a time, in the order given: exit code of each."""
    waiting = list(names)
    running: dict[str, subprocess.Popen[bytes]] = {}
    codes: dict[str, int] = {}
    told = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < (1 if waiting[0] == ALONE else AT_ONCE):
                name = waiting.pop(0)
                running[name] = start(name)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    codes[name] = process.returncode
                    del running[name]
                    verdict = "passed" if process.returncode == 0 else "FAILED"
                    print(
                        f"{name}: {verdict} after {(time.monotonic() - started) / 60:.1f} minutes", flush=True
                    )
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                minutes = (told - started) / 60
                print(f"{minutes:.0f} minutes: running {', '.join(running)}", flush=True)
            time.sleep(0.5)
    except KeyboardInterrupt:
        for process in running.values():
            process.terminate()
        raise
    return codes


def summary_of(text: str, *, failed: bool) -> str:
    """The end of a log: everything from the first failure on, or else the table of servers and skips."""
    mark = (
        "= FAILURES =" if failed and "= FAILURES =" in text else "= ERRORS =" if "= ERRORS =" in text else ""
    )
    at = text.find(mark) if mark else text.find("= brokers =")
    if at < 0:
        return text.rstrip()[-3000:]
    return text[text.rfind("\n", 0, at) + 1 :].rstrip()[-20_000:]


if __name__ == "__main__":
    sys.exit(main())
