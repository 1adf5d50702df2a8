"""`shinar bridge FROM TO`: move or copy messages between any two brokers, with counts that add up."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shinar.cli.common import Progress, Stopper, add_output, emit
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.bridge import Counts

EXAMPLES = """examples:
  shinar bridge amqp://localhost/orders sqs://eu-west-1/orders --rate 500
  shinar bridge redis://localhost/orders phpmq://localhost/orders --follow
  shinar bridge redis://localhost/orders phpmq://localhost/orders-copy --copy
each message is confirmed by the target before the source forgets it; run it again after a crash.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "bridge",
        help="move or copy messages between any two brokers",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="URL of the queue to read")
    parser.add_argument("target", help="URL of the queue to write; without a queue, the source's name")
    parser.add_argument("--copy", action="store_true", help="leave the source as it is (needs browse)")
    parser.add_argument("--follow", action="store_true", help="go on when the source is empty, until stopped")
    parser.add_argument("--limit", type=int, help="at most so many messages")
    parser.add_argument("--rate", type=float, help="at most so many messages a second")
    parser.add_argument(
        "--skip", type=int, default=0, help="with --copy: leave out so many (what an earlier run received)"
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.bridge import Counts, Plan, bridge
    from shinar.brokers import connect, parse

    source_url, target_url = parse(args.source), parse(args.target)
    _check(args, bool(source_url.queue))
    target_queue = target_url.queue or source_url.queue
    if replace(target_url, queue=target_queue) == source_url:
        raise ConfigError("is the source itself", setting="target")
    plan = Plan(args.copy, args.follow, args.skip, args.limit, args.rate)
    word = "copied" if args.copy else "moved"
    progress = Progress(word, args.limit, quiet=args.quiet)
    counts = Counts()
    source = connect(source_url)
    try:
        target = connect(target_url)
        try:
            with Stopper(quiet=args.quiet) as stopper:
                steps = bridge(
                    source, source_url.queue, target, target_queue, plan, stop=lambda: stopper.asked
                )
                for counts in steps:
                    progress.add(counts.received - progress.count)
        finally:
            target.close()
    finally:
        source.close()
        progress.done()
        # After an error as well: this much is done.
        _tell(args, counts, word)
    return 0 if counts.adds_up and not counts.refused and not counts.lapsed else 1


def _check(args: argparse.Namespace, named: bool) -> None:
    if not named:
        raise ConfigError("the source URL must name a queue", setting="source")
    for name in ("limit", "rate"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ConfigError("must be more than 0", setting=f"--{name}")
    if args.skip < 0 or (args.skip and not args.copy):
        raise ConfigError("is a number of messages, and goes with --copy", setting="--skip")
    if args.follow and args.copy:
        raise ConfigError("moves; a copy is of what is there now", setting="--follow")


def _tell(args: argparse.Namespace, counts: Counts, word: str) -> None:
    if args.json:
        names = ("received", "sent", "refused", "lapsed")
        emit({name: getattr(counts, name) for name in names})
    elif not args.quiet:
        line = f"received {counts.received:,} = {word} {counts.sent:,} + refused {counts.refused:,}"
        if counts.lapsed:
            line += f"; {counts.lapsed:,} leases had ended, the source hands those out again"
        print(line, file=sys.stderr)
