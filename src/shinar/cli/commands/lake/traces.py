"""`shinar traces`: traces put back together from the tables."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import Lake, add_question, show


def register(commands: Any) -> None:
    parser = add_question(
        commands,
        "traces",
        "rebuild traces from the tables",
        "shinar traces --lake lake --sort duration_ms",
        run,
    )
    parser.add_argument("--trace", help="show the hops of this trace")
    parser.add_argument(
        "--sort", default="duration_ms", choices=["duration_ms", "hops", "gaps", "slow_hops", "cycles"]
    )


def run(args: argparse.Namespace) -> int:
    lake = Lake(args)
    from pyspark.sql import functions as F

    from shinar.pipeline.analysis.stuck import stuck
    from shinar.pipeline.analysis.traces import hops, traces

    steps = hops(lake.table("messages")).cache()
    if args.trace:
        return show(args, steps.where(F.col("trace_id") == args.trace).orderBy("hop"), "no such trace")
    found = traces(steps, stuck(steps, lake.table("dead_letters")))
    return show(args, found.orderBy(F.desc(args.sort), "trace_id"), "no traces")
