"""Every benchmark here, one after the other, its ratios kept and compared with the baseline: `make bench`.

    python bench/run.py                     all of them, once
    python bench/run.py --rounds 3 core     these, three times: the spread tells noise from a change
    python bench/run.py --save-baseline     what is measured now becomes bench/baseline.json

Ratios are kept in .cache/bench/<commit>.json. Exit code 1: a benchmark failed or fell by more than noise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from _ratios import Samples, falls, measure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BASELINE = HERE / "baseline.json"
#: Not benchmarks themselves.
TOOLS = {"run.py", "compare.py"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="without .py; all if none is given")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--save-baseline", action="store_true")
    args = parser.parse_args()
    scripts = [path.name for path in sorted(HERE.glob("[!_]*.py")) if path.name not in TOOLS]
    chosen = [f"{name}.py" for name in args.names] or scripts
    results: dict[str, Samples] = {}
    failed = []
    for script in chosen:
        print(f"\n== {script}", flush=True)
        for _ in range(args.rounds):
            found = measure(ROOT, script, show=True)
            if found is None:
                failed.append(script)
                break
            if not found:
                print(f"{script} prints no ratio: a slide back does not show in it")
            for label, value in found.items():
                results.setdefault(script, {}).setdefault(label, []).append(value)
    document = {
        "commit": _commit(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "ratios": results,
    }
    path = ROOT / ".cache" / "bench" / f"{document['commit']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"\nratios of {len(results)} benchmarks: {path.relative_to(ROOT)}")
    lower = _against_baseline(results)
    if args.save_baseline:
        kept = json.loads(BASELINE.read_text())["ratios"] if BASELINE.exists() else {}
        BASELINE.write_text(
            json.dumps({**document, "ratios": {**kept, **results}}, indent=1, sort_keys=True) + "\n"
        )
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or (lower and not args.save_baseline) else 0


def _against_baseline(results: dict[str, Samples]) -> bool:
    if not BASELINE.exists():
        print("there is no bench/baseline.json; --save-baseline writes one")
        return False
    before = json.loads(BASELINE.read_text())
    print(f"against the baseline of {before['commit']}:")
    lower = [
        f"  {script}: {fall}"
        for script, now in results.items()
        for fall in falls(before["ratios"].get(script, {}), now)
    ]
    print("\n".join(lower) if lower else "  nothing is lower by more than noise")
    return bool(lower)


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
