"""`shinar tail`: look at a queue's messages without consuming, ageing or re-ordering them."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from typing import Any

from shinar.cli.support.output import add_output, add_settings, address, emit, settings_of
from shinar.clock import SYSTEM

EXAMPLES = """examples:
  shinar tail phpmq://localhost/emails --limit 5
  shinar tail redis://localhost/orders --follow --json
a broker that cannot be read without consuming (SQS, RabbitMQ) says so; nothing is taken from it.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "tail",
        help="look at the messages of a queue without consuming them",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="broker URL with the queue")
    parser.add_argument("--limit", type=int, help="show at most so many")
    parser.add_argument("--follow", action="store_true", help="go on with new messages until Ctrl-C")
    parser.add_argument("--interval-s", type=float, default=1.0, help="how often --follow looks")
    add_settings(parser, "queue")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.brokers import connect

    settings = settings_of(args)
    url, queue = address(args, settings)
    broker = connect(url)
    shown = 0
    seen: Counter[str] = Counter()
    try:
        while True:
            present: Counter[str] = Counter()
            for delivery in broker.browse(queue, args.limit):
                # Not every broker tells positions (Artemis); then equal bodies are told apart by counting.
                place = delivery.position or hashlib.sha256(delivery.body).hexdigest()
                present[place] += 1
                if present[place] <= seen[place]:
                    continue
                _show(args, delivery)
                shown += 1
                if args.limit and shown >= args.limit:
                    return 0
            seen = present  # what is gone from the queue need not be remembered
            if not args.follow:
                return 0
            sys.stdout.flush()  # whoever reads a pipe must not wait for a full buffer
            SYSTEM.sleep(args.interval_s)
    finally:
        broker.close()


def _show(args: argparse.Namespace, delivery: Any) -> None:
    from shinar.cli.commands.inspect import describe, print_description

    described = describe(delivery.body, headers=dict(delivery.headers), position=delivery.position)
    if args.json:
        emit(described)
    else:
        print_description(described)
