"""A class name means one thing across the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import shinar

SOURCE = Path(shinar.__file__).parent

#: Names that several rooms use, each for its own thing. To become fewer, never more.
SEVERAL_MEANINGS = frozenset(
    {
        "Address",
        "Batch",
        "Column",
        "Consumer",
        "Depth",
        "Engine",
        "Figures",
        "Held",
        "Item",
        "Limits",
        "Line",
        "Outbox",
        "Outcome",
        "Pass",
        "Place",
        "Plan",
        "Planner",
        "Reader",
        "Receipt",
        "Route",
        "Sender",
        "Settings",
        "Statements",
        "Status",
        "Store",
        "Stream",
        "Summary",
        "Watch",
        "Write",
        "Written",
    }
)
#: The same thing on two levels: the contract's block, and its form on the embedded broker's wire.
SAME_THING = frozenset({"DeadLetter"})


def test_no_new_class_name_has_two_meanings() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SOURCE)))
    twice = {name: homes for name, homes in found.items() if len(homes) > 1}
    assert {name: twice[name] for name in twice.keys() - SEVERAL_MEANINGS - SAME_THING} == {}
