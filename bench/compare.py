"""One benchmark of this tree and of an older commit, alternately in one run: what became faster or slower.

    python bench/compare.py REVISION core.py
    python bench/compare.py REVISION --rounds 2 spark_pipeline.py --rows 300000

Each benchmark prints ratios to a peer or a floor ("27.2x"); those are compared line by line, as medians over
the rounds. The older commit runs from a temporary worktree with the packages installed here.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RATIO = re.compile(r"(\d+(?:\.\d+)?)\s?(x|%)")
NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")


def ratios(output: str) -> dict[str, float]:
    """Every ratio of an output under the words before it; the figures in those words do not count."""
    found: dict[str, float] = {}
    for line in output.splitlines():
        for number, match in enumerate(RATIO.finditer(line.partition("goal")[0])):
            words = NUMBER.sub("#", " ".join(line[: match.start()].split()))
            found[f"{words} ({number})"] = float(match[1])
    return found


def run(tree: Path, script: str, words: list[str]) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "tests")])}
    command = [sys.executable, str(tree / "bench" / script), *words]
    done = subprocess.run(command, env=env, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} failed in {tree}:\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("script")
    args, words = parser.parse_known_args()
    samples: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        add = ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(old), args.revision]
        subprocess.run(add, check=True)
        try:
            for _ in range(args.rounds):
                for name, tree in (("before", old), ("after", ROOT)):
                    for label, value in ratios(run(tree, args.script, words)).items():
                        samples[name].setdefault(label, []).append(value)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(old)], check=True)
    print(f"{args.script}: ratios to the peer or floor, median of {args.rounds}; before = {args.revision}")
    for label in samples["after"].keys() & samples["before"].keys():
        before = statistics.median(samples["before"][label])
        after = statistics.median(samples["after"][label])
        change = f"{after / before:5.2f}" if before else "    -"
        print(f"  {before:8.2f} -> {after:8.2f}   {change} of before   {label[:100]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
