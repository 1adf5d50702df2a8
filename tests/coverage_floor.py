"""Branch coverage of each package against its floor: `make coverage`, after all tests ran under coverage.

    python tests/coverage_floor.py              compare .cache/coverage/report.json with the floors
    python tests/coverage_floor.py --show       print the figures only

A floor is what was measured, less a little for timing. Raise it when tests are added; lowering
one needs a reason in its line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / ".cache" / "coverage" / "report.json"

#: Package below shinar ("" for its own modules) -> least percentage of lines and branches.
FLOORS: Final[dict[str, float]] = {
    "": 90,
    "brokers": 85,
    "cli": 80,
    "conformance": 90,
    "database": 85,
    "delivery": 85,
    "envelope": 97,
    "idempotency": 90,
    "outbox": 90,
    "phpmq": 90,
    "pipeline": 85,
    "redrive": 90,
    "schemas": 95,
    "settlement": 95,
    "worker": 90,
}


def measured(report: Path) -> dict[str, float]:
    """Percentage of each package."""
    covered: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, file in json.loads(report.read_text())["files"].items():
        parts = Path(name).parts
        below = parts[parts.index("shinar") + 1 :]
        package = below[0] if len(below) > 1 else ""
        counted = file["summary"]
        covered[package] = covered.get(package, 0) + counted["covered_lines"] + counted["covered_branches"]
        total[package] = total.get(package, 0) + counted["num_statements"] + counted["num_branches"]
    return {package: 100 * covered[package] / total[package] for package in sorted(total) if total[package]}


def main() -> int:
    show = "--show" in sys.argv
    if not REPORT.is_file():
        print(f"there is no {REPORT.relative_to(ROOT)}; run `make coverage`", file=sys.stderr)
        return 2
    found = measured(REPORT)
    low = 0
    for package, percent in found.items():
        floor = FLOORS.get(package)
        verdict = "no floor: add it" if floor is None else "" if percent >= floor else f"below {floor:g} %"
        low += bool(verdict)
        print(f"shinar{'.' + package if package else '':<15} {percent:6.1f} %  {verdict}")
    return 0 if show or not low else 1


if __name__ == "__main__":
    sys.exit(main())
