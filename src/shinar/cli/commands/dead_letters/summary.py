"""`shinar dlq summary`: kinds of failures, counted here or, when there are many, on Spark."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.dead_letters import (
    choice_of,
    from_lake,
    ledger_location,
    ledger_of,
    note,
    opened,
    plural,
    say_skipped,
    say_unseen,
    since_ms,
    total,
)
from shinar.cli.support.embedded import say_missing
from shinar.cli.support.output import Progress, address, emit, settings_of, time_text
from shinar.errors import ConfigError, MissingExtra
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.brokers import Broker, Delivery
    from shinar.redrive import Ledger, Summary

#: Characters of an error template, or of a name, that are printed.
_TEXT: Final = 120


def run(args: argparse.Namespace) -> int:
    if from_lake(args):
        found = _of_lake(args)
    else:
        from shinar.redrive import Chosen, read_letters, summarise
        from shinar.redrive.ledger.sent_back import SentBack
        from shinar.redrive.letters.read import deliveries

        with opened(args) as (broker, queue):
            # Mistakes are told before Spark is started, and not by a task.
            chosen = Chosen(**choice_of(args))
            source = deliveries(broker, queue, reserve=args.reserve)
            count = total(broker, queue)
            spark = _spark(args, count)
            progress = Progress("read", count, quiet=args.quiet)
            with _ledger(args) as ledger:
                sent = SentBack(address(args, settings_of(args))[0], queue, broker.traits, ledger)
                if spark is None:
                    seen = _counted(read_letters(broker, queue, reserve=args.reserve), progress)
                    picked = (letter for letter in seen if chosen(letter))
                    told = ledger.generations if ledger is not None else None
                    found = summarise(sent.others(picked, lambda letter: letter.delivery), None, told)
                else:
                    read = sent.others(_counted(source, progress), lambda delivery: delivery)
                    found = _on_spark(args, spark, broker, read)
            progress.done()
            if sent.count and not args.quiet:
                note(f"{sent.count:,} more are in this log and were sent back before; they are left out")
            say_skipped(args, chosen)
            say_unseen(args, broker, queue)
        if not found.total and not args.quiet:
            say_missing(*address(args, settings_of(args)))
    rows = found.rows(since_ms(args.new_since))[: args.limit]
    if args.json:
        for row in rows:
            emit(row)
    else:
        _print(found, rows)
    return 0


@contextmanager
def _ledger(args: argparse.Namespace) -> Iterator[Ledger | None]:
    ledger = ledger_of(args)
    try:
        yield ledger
    finally:
        if ledger is not None:
            ledger.close()


def _on_spark(args: argparse.Namespace, spark: Any, broker: Broker, source: Iterator[Delivery]) -> Summary:
    from shinar.redrive.spark import summarise_spooled

    return summarise_spooled(
        spark,
        source,
        broker.traits,
        ledger=_shared_ledger(args, spark),
        # Reservations must be renewed while they are held: reading does not wait for the counting.
        bounded=broker.traits.browse,
        **choice_of(args),
    )


def _of_lake(args: argparse.Namespace) -> Summary:
    from shinar.cli.support.lake import lake_store, spark_session
    from shinar.redrive import Chosen
    from shinar.redrive.spark import summarise_lake

    store = lake_store(settings_of(args))
    choice = choice_of(args)
    Chosen(**choice)
    spark = spark_session(args.master)
    return summarise_lake(spark, store, ledger=_shared_ledger(args, spark), **choice)


def _spark(args: argparse.Namespace, count: int | None) -> Any:
    """A session if the letters are to be counted on Spark, else None."""
    threshold = settings_of(args)["spark_above"]
    if args.engine == "python" or (args.engine == "auto" and (count is None or count <= threshold)):
        return None
    from shinar.cli.support.lake import spark_session

    try:
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            raise MissingExtra("counting on Spark", "pyspark", "spark")
        return spark_session(args.master)
    except (MissingExtra, ConfigError) as exc:
        if args.engine == "spark":
            raise
        if not args.quiet:
            note(f"{count:,} messages are counted in plain Python: {exc}")
        return None


def _shared_ledger(args: argparse.Namespace, spark: Any) -> str:
    """The ledger as tasks can reach it; a file of this machine only if they run here."""
    location = ledger_location(args)
    if location and "://" not in location and not spark.sparkContext.master.startswith("local"):
        note("the tasks cannot read this ledger file, so what died again is not counted")
        return ""
    return location


def _counted(found: Iterator[Any], progress: Progress) -> Iterator[Any]:
    for one in found:
        progress.add()
        yield one


def _print(summary: Summary, rows: list[dict[str, Any]]) -> None:
    from shinar.redrive.letters.summary import sparkline

    kinds = len(summary.groups)
    if not kinds:
        print("no dead letters match")
        return
    print(f"{plural(summary.total, 'dead letter')} of {plural(kinds, 'kind')}, {summary.bytes:,} bytes\n")
    for row in rows:
        new = "  NEW" if row["new"] else ""
        again = f"  {row['died_again']:,} died again after a redrive" if row["died_again"] else ""
        texts = (
            row["exception"] or row["reason"] or row["nature"],
            row["urn"],
            row["lang"],
            row["original_queue"],
        )
        what, *where = [printable(text or "", _TEXT) for text in texts]
        named = " ".join(filter(None, where))
        print(f"{row['fingerprint']}  {row['count']:>9,}  {row['share']:>6.1%}  {what}  {named}{new}{again}")
        print(
            f"{'':>12}  {time_text(row['first_ms'])} … {time_text(row['last_ms'])}  {sparkline(row['bars'])}"
        )
        if row["template"]:
            print(f"{'':>12}  {printable(row['template'], _TEXT)}")
    if len(rows) < kinds:
        print(f"\n{plural(kinds - len(rows), 'more kind')}; see --limit")
