"""`shinar rates`: latency, retry and dead-letter rates per URN, queue, language and hour."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import Lake, add_question, show


def register(commands: Any) -> None:
    parser = add_question(
        commands, "rates", "latency, retry and dead-letter rates", "shinar rates --lake lake --by day", run
    )
    parser.add_argument("--by", default="hour", choices=["minute", "hour", "day"], help="width of a row")


def run(args: argparse.Namespace) -> int:
    lake = Lake(args)
    from shinar.pipeline.analysis.rates import rates

    found = rates(lake.table("messages"), lake.table("duplicates"), lake.table("dead_letters"), unit=args.by)
    return show(args, found, "no messages")
