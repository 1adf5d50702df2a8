"""`shinar fingerprints`: the dead letters of the tables, grouped by cause."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import Lake, add_question, add_since, moment, show


def register(commands: Any) -> None:
    parser = add_question(
        commands,
        "fingerprints",
        "group dead letters of the tables by cause",
        "shinar fingerprints --lake lake --since 24h",
        run,
    )
    add_since(parser)


def run(args: argparse.Namespace) -> int:
    since = moment(args.since)
    lake = Lake(args)
    from shinar.pipeline.analysis.fingerprints import fingerprints

    return show(args, fingerprints(lake.table("dead_letters"), since), "no dead letters")
