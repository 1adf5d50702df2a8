"""No function, class, field or constant of the package is without a user. What only looks dead, because a
framework calls it, is listed in tests/vulture_allowed.py with who does."""

from __future__ import annotations

from pathlib import Path

import shinar

ROOT = Path(__file__).resolve().parents[2]
#: Where users of the package's names are looked for.
USERS = ["src", "tests", "bench", "examples"]


def test_nothing_is_dead() -> None:
    from vulture import Vulture

    finder = Vulture()
    finder.scavenge([str(ROOT / name) for name in USERS], exclude=[str(ROOT / "tests" / "typing")])
    package = Path(shinar.__file__).parent
    dead = [
        f"{item.filename.relative_to(ROOT)}:{item.first_lineno}: {item.typ} {item.name}"
        for item in finder.get_unused_code(min_confidence=60)
        if package in item.filename.parents
    ]
    assert dead == []
