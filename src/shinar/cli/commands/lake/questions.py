"""Questions about a lake: `traces`, `fingerprints`, `stuck`, `drift`, `rates`, `propose-schemas`, `report`.

Each starts a local Spark session, asks one analysis function and prints its rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.lake import lake_store, moment, print_table, spark_session
from shinar.cli.support.output import add_output, add_settings, emit, settings_of
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shinar.pipeline.lake.store import TableStore

#: command -> (help, examples, function)
_ABOUT: Final = {
    "traces": ("rebuild traces from the tables", "shinar traces --lake lake --sort duration_ms"),
    "fingerprints": (
        "group dead letters of the tables by cause",
        "shinar fingerprints --lake lake --since 24h",
    ),
    "stuck": ("find messages that were produced and never finished", "shinar stuck --lake lake --json"),
    "drift": ("find contract drift per URN and language", "shinar drift --lake lake --since 2026-11-01"),
    "rates": ("latency, retry and dead-letter rates", "shinar rates --lake lake --by day"),
    "propose-schemas": (
        "propose payload schemas from traffic",
        "shinar propose-schemas --lake lake --out dir",
    ),
    "report": ("write one HTML page from the tables", "shinar report --lake lake --out report.html"),
}
#: Characters of a cell on a terminal.
_CELL: Final = 60
#: Columns left out of the terminal's table; --json has them.
_WIDE: Final = frozenset({"sample_error", "langs", "queues", "broker", "mean_attempts", "choices"})


def register(commands: Any) -> None:
    runs: dict[str, Callable[[argparse.Namespace], int]] = {
        "traces": run_traces,
        "fingerprints": run_fingerprints,
        "stuck": run_stuck,
        "drift": run_drift,
        "rates": run_rates,
        "propose-schemas": run_proposals,
        "report": run_report,
    }
    for name, run in runs.items():
        text, example = _ABOUT[name]
        parser: argparse.ArgumentParser = commands.add_parser(
            name,
            help=text,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_settings(parser, "lake")
        add_output(parser)
        parser.add_argument("--limit", type=_least_one, default=50, help="rows shown at most (default 50)")
        parser.add_argument("--master", help="Spark master (default local[*])")
        _extra(parser, name)
        parser.set_defaults(run=run)


def _extra(parser: argparse.ArgumentParser, name: str) -> None:
    if name in ("fingerprints", "drift", "report"):
        parser.add_argument(
            "--since", help="mark what is new or gone since: 24h, 7d or a date and time (UTC)"
        )
    if name == "traces":
        parser.add_argument("--trace", help="show the hops of this trace")
        parser.add_argument(
            "--sort", default="duration_ms", choices=["duration_ms", "hops", "gaps", "slow_hops", "cycles"]
        )
    if name == "rates":
        parser.add_argument("--by", default="hour", choices=["minute", "hour", "day"], help="width of a row")
    if name == "report":
        parser.add_argument("--out", default="report.html", help="file to write (default report.html)")
    if name == "propose-schemas":
        parser.add_argument(
            "--out", help="folder for registry.json and the schemas; nothing is written without"
        )
        parser.add_argument("--urn", help="only this URN")


def _least_one(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class _Lake:
    """A store and a session, and its tables by name."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.store: TableStore = lake_store(settings_of(args))
        self.spark: SparkSession = spark_session(args.master)

    def table(self, name: str) -> DataFrame:
        from shinar.pipeline.lake.store import read

        return read(self.spark, self.store, name)


def run_traces(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    from pyspark.sql import functions as F

    from shinar.pipeline.analysis.stuck import stuck
    from shinar.pipeline.analysis.traces import hops, traces

    steps = hops(lake.table("messages")).cache()
    if args.trace:
        found = steps.where(F.col("trace_id") == args.trace).orderBy("hop")
        return _show(args, found, "no such trace")
    result = traces(steps, stuck(steps, lake.table("dead_letters")))
    return _show(args, result.orderBy(F.desc(args.sort), "trace_id"), "no traces")


def run_fingerprints(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    from shinar.pipeline.analysis.fingerprints import fingerprints

    found = fingerprints(lake.table("dead_letters"), moment(args.since))
    return _show(args, found, "no dead letters")


def run_stuck(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    from pyspark.sql import functions as F

    from shinar.pipeline.analysis.stuck import stuck
    from shinar.pipeline.analysis.traces import hops

    found = stuck(hops(lake.table("messages")).cache(), lake.table("dead_letters"))
    return _show(args, found.orderBy(F.desc("age_ms"), "id"), "nothing is stuck", findings=True)


def run_drift(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    from shinar.pipeline.analysis.drift import drift

    return _show(args, drift(lake.table("messages"), moment(args.since)), "no drift", findings=True)


def run_rates(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    from shinar.pipeline.analysis.rates import rates

    found = rates(lake.table("messages"), lake.table("duplicates"), lake.table("dead_letters"), unit=args.by)
    return _show(args, found, "no messages")


def run_proposals(args: argparse.Namespace) -> int:
    lake = _Lake(args)
    import msgspec

    from shinar.pipeline.analysis.proposals import propose, write_registry

    messages = lake.table("messages")
    found = propose(messages.where(messages["urn"] == args.urn) if args.urn else messages)
    for proposal in found[: args.limit]:
        if args.json:
            emit(msgspec.to_builtins(proposal))
        else:
            print(f"{proposal.urn}: {proposal.messages:,} messages, confidence {proposal.confidence:.2f}")
            for note in proposal.notes:
                print(f"  {note}")
            if not args.out:
                print(msgspec.json.format(msgspec.json.encode(proposal.schema), indent=2).decode())
    if args.out:
        try:
            path = write_registry(found, Path(args.out))
        except FileExistsError as exc:
            raise ConfigError(
                f"{exc.filename} is there already; choose another folder", setting="out"
            ) from None
        print(f"{len(found)} schemas written: {path}", file=sys.stderr)
    return 0


def run_report(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    lake_store(settings)
    spark = spark_session(args.master)
    from shinar.pipeline.report.write import write_report

    path = write_report(spark, settings["lake"], args.out, since=moment(args.since))
    if args.json:
        emit({"report": str(path)})
    else:
        print(f"written: {path}")
    return 0


def _show(args: argparse.Namespace, frame: DataFrame, empty: str, *, findings: bool = False) -> int:
    """Rows as JSON lines or as a table; with `findings` any row makes the exit code 1."""
    rows = [row.asDict(recursive=True) for row in frame.limit(args.limit).collect()]
    if args.json:
        for row in rows:
            emit({name: _plain(value) for name, value in row.items()})
    elif not rows:
        print(empty)
    else:
        names = [name for name in rows[0] if name not in _WIDE]
        print_table(names, [[_cell(row[name]) for name in names] for row in rows])
        if len(rows) == args.limit:
            print(f"the first {args.limit} rows; --limit shows more", file=sys.stderr)
    return 1 if findings and rows else 0


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(_plain(value)).replace("\n", " ")
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
