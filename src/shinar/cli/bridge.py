"""`shinar bridge FROM TO`: move or copy messages between any two brokers, with counts that add up."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from shinar.cli.common import Progress, add_output, emit
from shinar.errors import ConfigError

EXAMPLES = """examples:
  shinar bridge amqp://localhost/orders sqs://eu-west-1/orders --rate 500
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
    parser.add_argument("--limit", type=int, help="at most so many messages")
    parser.add_argument("--rate", type=float, help="at most so many messages a second")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.bridge import bridge
    from shinar.brokers import connect, parse

    source_url, target_url = parse(args.source), parse(args.target)
    if not source_url.queue:
        raise ConfigError("the source URL must name a queue", setting="source")
    target_queue = target_url.queue or source_url.queue
    source, target = connect(source_url), connect(target_url)
    progress = Progress("copied" if args.copy else "moved", args.limit, quiet=args.quiet)
    try:
        counts = bridge(
            source,
            source_url.queue,
            target,
            target_queue,
            copy=args.copy,
            limit=args.limit,
            rate_per_s=args.rate,
            progress=progress.add,
        )
    finally:
        source.close()
        target.close()
    progress.done()
    if args.json:
        emit(
            {
                "received": counts.received,
                "sent": counts.sent,
                "refused": counts.refused,
                "lapsed": counts.lapsed,
            }
        )
    else:
        word = "copied" if args.copy else "moved"
        print(
            f"received {counts.received:,} = {word} {counts.sent:,} + refused {counts.refused:,}"
            + (
                f"; {counts.lapsed:,} leases had ended, the source hands those out again"
                if counts.lapsed
                else ""
            ),
            file=sys.stderr,
        )
    return 0 if counts.adds_up and not counts.refused and not counts.lapsed else 1
