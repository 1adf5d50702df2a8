"""`shinar stuck`: messages that should have led to another one and did not."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import Lake, add_question, show


def register(commands: Any) -> None:
    add_question(
        commands,
        "stuck",
        "find messages that were produced and never finished",
        "shinar stuck --lake lake --json",
        run,
    )


def run(args: argparse.Namespace) -> int:
    lake = Lake(args)
    from pyspark.sql import functions as F

    from shinar.pipeline.analysis.stuck import stuck
    from shinar.pipeline.analysis.traces import hops

    found = stuck(hops(lake.table("messages")).cache(), lake.table("dead_letters"))
    return show(args, found.orderBy(F.desc("age_ms"), "id"), "nothing is stuck", findings=True)
