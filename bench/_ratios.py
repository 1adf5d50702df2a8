"""The ratios a benchmark prints, and whether they fell. Runs nothing itself."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: "27.2x", "83 %" or "0.57 of the bare client": a ratio to the peer or the floor of the same run. Higher is
#: better in all of them; what follows "goal" was not measured.
_RATIO = re.compile(r"(\d+(?:\.\d+)?)(?:\s?(?:x\b|%)| of the bare)")
_NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")

Samples = dict[str, list[float]]


def ratios(output: str) -> dict[str, float]:
    """Every ratio of an output under the words before it; figures in those words differ from run to run."""
    found: dict[str, float] = {}
    for line in output.splitlines():
        if line[:1].isdigit():  # says what was measured with: "300,000 bodies, 2 % broken"
            continue
        for number, match in enumerate(_RATIO.finditer(line.partition("goal")[0])):
            words = _NUMBER.sub("#", " ".join(line[: match.start()].split()))
            found[f"{words} ({number})"] = float(match[1])
    return found


def measure(
    tree: Path, script: str, words: Sequence[str] = (), *, show: bool = False
) -> dict[str, float] | None:
    """Run one benchmark of a tree with the packages installed here; None when it failed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "tests")])}
    command = [sys.executable, str(tree / "bench" / script), *words]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, check=False)
    if show or done.returncode:
        print(done.stdout, done.stderr[-3000:] if done.returncode else "", sep="", flush=True)
    return None if done.returncode else ratios(done.stdout)


def falls(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """What is lower than before by more than the spread of both: their ranges do not touch, and the medians
    differ by a tenth."""
    for label in sorted(before.keys() & after.keys()):
        old, new = statistics.median(before[label]), statistics.median(after[label])
        if new < 0.9 * old and max(after[label]) < min(before[label]):
            yield f"{label}: {spread(before[label])} -> {spread(after[label])}"


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
