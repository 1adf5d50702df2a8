"""`shinar drift`: where producers drift from each other and from the contract."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import Lake, add_question, add_since, moment, show


def register(commands: Any) -> None:
    parser = add_question(
        commands,
        "drift",
        "find contract drift per URN and language",
        "shinar drift --lake lake --since 2026-11-01",
        run,
    )
    add_since(parser)


def run(args: argparse.Namespace) -> int:
    since = moment(args.since)
    lake = Lake(args)
    from shinar.pipeline.analysis.drift import drift

    found = drift(lake.table("messages"), since, rejects=lake.table("typed_rejects"))
    return show(args, found, "no drift", findings=True)
