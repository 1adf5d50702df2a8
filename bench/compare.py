"""One benchmark of this tree and of an older commit, alternately in one run: what became faster or slower.

    python bench/compare.py REVISION core.py
    python bench/compare.py REVISION --rounds 2 spark_pipeline.py --rows 300000

Compared are the ratios each of them prints (to the peer or the floor of its own run), so that a busy machine
slows both sides down alike. The older commit runs from a temporary worktree with the packages installed here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from _ratios import Samples, falls, measure, spread

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("script")
    args, words = parser.parse_known_args()
    before: Samples = {}
    after: Samples = {}
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(old), args.revision], check=True)
        try:
            for _ in range(args.rounds):
                for samples, tree in ((before, old), (after, ROOT)):
                    found = measure(tree, args.script, words)
                    if found is None:
                        return 1
                    for label, value in found.items():
                        samples.setdefault(label, []).append(value)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    if not before.keys() & after.keys():
        sys.exit(f"{args.script} printed no ratio that both commits have; there is nothing to compare")
    print(f"{args.script}: median (range) of {args.rounds} rounds; before is {args.revision}")
    for label in sorted(before.keys() & after.keys()):
        print(f"  {spread(before[label]):>28} -> {spread(after[label]):>28}   {label[:90]}")
    lower = list(falls(before, after))
    print(
        "\n".join(["lower by more than noise:", *lower]) if lower else "nothing is lower by more than noise"
    )
    return 1 if lower else 0


if __name__ == "__main__":
    sys.exit(main())
