"""What `shinar dlq` and `shinar redrive` share: flags that select, where dead letters come from, notes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.output import address, settings_of
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.brokers import Broker
    from shinar.redrive import Chosen, Ledger, Letter

WHERE_HELP: Final = """\
--where is a Spark SQL condition. Columns: urn, exception, error, reason, lang, queue, original_queue,
attempts, created_at, failed_at, id, trace_id, fingerprint; and data.field, data.items[0].sku for the payload.
  --where "exception like '%GatewayTimeout' and failed_at > '2026-11-15 02:10:00'"
  --where "data.amount >= 100 and lang in ('php', 'go')"
A dead letter for which Spark would raise an error stops the command, or is left out with --where-errors skip.
"""


def positive(text: str) -> int:
    if not text.isdigit() or len(text) > 18 or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The flags that select dead letters."""
    group = parser.add_argument_group("selecting")
    group.add_argument("--where", default="", metavar="SQL", help="a Spark SQL condition; see below")
    group.add_argument(
        "--where-errors",
        choices=("fail", "skip"),
        default="fail",
        help="what to do with a dead letter for which --where raises (default fail)",
    )
    group.add_argument(
        "--fingerprint", default="", help="one kind of failure, by the start of its fingerprint"
    )
    group.add_argument("--since", default="", help="failed since: 24h, 7d, or a date and time in UTC")
    group.add_argument("--limit", type=positive, metavar="N", help="at most N dead letters")
    group.add_argument("--ids", metavar="FILE", help="only the message ids in this file, one per line")
    group.add_argument(
        "--reserve", action="store_true", help="read by reserving, for brokers that cannot be browsed"
    )


def from_lake(args: argparse.Namespace) -> bool:
    """A lake that is named here wins; one from the settings only where no queue is named."""
    return bool(args.lake or (settings_of(args)["lake"] and not settings_of(args)["url"]))


def choice_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Chosen`."""
    return {
        "where": args.where,
        "where_errors": args.where_errors,
        "fingerprint": args.fingerprint,
        "since_ms": since_ms(args.since),
        "ids": ids_of(args.ids),
    }


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[tuple[Broker, str]]:
    from shinar.brokers import connect
    from shinar.redrive.letters.read import side_effect

    url, queue = address(args, settings_of(args))
    broker = connect(url)
    try:
        if args.reserve and not args.quiet and (text := side_effect(broker)):
            note(text)
        yield broker, queue
    finally:
        broker.close()


@contextmanager
def selected(args: argparse.Namespace, limit: int | None) -> Iterator[tuple[Iterator[Letter], int | None]]:
    """(the selected dead letters, how many there are at most as far as is known), of a queue or of a lake."""
    from shinar.redrive import Chosen

    if from_lake(args):
        from shinar.cli.support.lake import lake_store, spark_session

        store = lake_store(settings_of(args))
        choice = choice_of(args)
        Chosen(**choice)  # a mistake is told here, not by a task
        from shinar.redrive.spark import letters_of_lake

        yield letters_of_lake(spark_session(args.master), store, limit=limit, **choice), limit
        return
    chosen = Chosen(**choice_of(args))
    with opened(args) as (broker, queue):
        yield selected_of(args, broker, queue, chosen, limit), total(broker, queue)
    say_skipped(args, chosen)


def selected_of(
    args: argparse.Namespace, broker: Broker, queue: str, chosen: Chosen, limit: int | None = None
) -> Iterator[Letter]:
    from shinar.redrive import read_letters

    with closing(read_letters(broker, queue, reserve=args.reserve)) as found:
        shown = 0
        for letter in found:
            if limit is not None and shown >= limit:
                return
            if chosen(letter):
                shown += 1
                yield letter


def total(broker: Broker, queue: str) -> int | None:
    return broker.depth(queue).ready if broker.traits.depth else None


# -- notes on stderr


def note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def say_skipped(args: argparse.Namespace, chosen: Chosen) -> None:
    if chosen.skipped and not args.quiet:
        note(f"--where raised an error for {plural(chosen.skipped, 'dead letter')}; they were left out")


def say_unseen(args: argparse.Namespace, broker: Broker, queue: str) -> None:
    """After a whole queue was browsed: what it holds and did not show."""
    from shinar.redrive.letters.read import reserved_count

    if not args.quiet and (unseen := reserved_count(broker, queue)):
        note(
            f"{plural(unseen, 'more message')} cannot be browsed now: reserved by a consumer, or by one that "
            "has ended. They appear once their leases end"
        )


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# -- the ledger, times, files


def ledger_of(args: argparse.Namespace) -> Ledger | None:
    from shinar.redrive import Ledger

    location = ledger_location(args)
    return Ledger(location) if location else None


def ledger_location(args: argparse.Namespace) -> str:
    """ "" if there is none yet: a look must not create it."""
    from shinar.redrive.ledger.ledger import default_path

    location: str = settings_of(args)["ledger"]
    if "://" in location:
        return location
    path = Path(location).expanduser() if location else default_path()
    return str(path.absolute()) if path.exists() else ""


def without_secrets(text: str | None) -> str:
    """A store's URL as the ledger may keep it; a folder, or a URL without a password, as it is."""
    from shinar.brokers import parse
    from shinar.brokers.url import MASK

    masked = parse(text).masked if text and "://" in text else ""
    return masked if MASK in masked else text or ""


def since_ms(text: str) -> int | None:
    from shinar.cli.support.lake import moment

    found = moment(text)
    return None if found is None else round(found.timestamp() * 1000)


def ids_of(file: str | None) -> tuple[str, ...]:
    if not file:
        return ()
    try:
        return tuple(line.strip() for line in Path(file).read_text("utf-8").splitlines() if line.strip())
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}", setting="--ids") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8; write one id per line", setting="--ids") from None
