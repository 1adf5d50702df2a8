"""`shinar tail`: print a queue's messages without consuming, ageing or re-ordering them."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from shinar.cli.support.messages import describe, print_description
from shinar.cli.support.output import add_output, add_settings, address, emit, settings_of
from shinar.cli.support.parser import count, some_seconds
from shinar.clock import SYSTEM

if TYPE_CHECKING:
    from shinar.brokers import Broker, BrokerUrl, Delivery

EXAMPLES = """examples:
  shinar tail phpmq://localhost/emails --limit 5
  shinar tail redis://localhost/orders --follow --json
  shinar tail postgresql://localhost/shop/orders
Brokers that cannot be read without consuming are refused; nothing is taken from them.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "tail",
        help="print the messages of a queue without consuming them",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="broker URL with the queue")
    parser.add_argument("--limit", type=count, help="print at most this many messages")
    parser.add_argument("--follow", action="store_true", help="continue with new messages until Ctrl-C")
    parser.add_argument(
        "--interval-s",
        type=some_seconds,
        default=1.0,
        help="seconds between two looks of --follow (default 1)",
    )
    add_settings(parser, "queue")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.brokers import connect

    url, queue = address(args, settings_of(args))
    broker = connect(url)
    try:
        shown = _print_messages(args, broker, queue)
        if not shown and not args.quiet:
            _explain_nothing(broker, url, queue)
    finally:
        broker.close()
    return 0


def _print_messages(args: argparse.Namespace, broker: Broker, queue: str) -> int:
    shown = 0
    seen: Counter[str] = Counter()
    while True:
        present: Counter[str] = Counter()
        for delivery in broker.browse(queue, args.limit):
            # Not every broker reports positions; without one, equal bodies are told apart by counting them.
            identity = delivery.position or hashlib.sha256(delivery.body).hexdigest()
            present[identity] += 1
            if present[identity] <= seen[identity]:
                continue
            _print_message(args, delivery)
            shown += 1
            if args.limit and shown >= args.limit:
                return shown
        seen = present  # messages that left the queue are forgotten
        if not args.follow:
            return shown
        sys.stdout.flush()  # a reader of the pipe must not wait for a full buffer
        SYSTEM.sleep(args.interval_s)


def _print_message(args: argparse.Namespace, delivery: Delivery) -> None:
    described = describe(delivery.body, headers=dict(delivery.headers), position=delivery.position)
    if args.json:
        emit(described)
    else:
        print_description(described)


def _explain_nothing(broker: Broker, url: BrokerUrl, queue: str) -> None:
    """Silence could mean an empty queue, a misspelt name, or messages that a consumer has reserved."""
    depth = broker.depth(queue) if broker.traits.depth else None
    waiting = (
        [
            f"{number:,} {what}"
            for what, number in (("reserved", depth.reserved), ("delayed", depth.delayed))
            if number
        ]
        if depth
        else []
    )
    if waiting:
        text = f"no message of {queue!r} is ready: {', '.join(waiting)}"
    else:
        text = f"no such queue, or it is empty: {queue!r} on {url}"
    print(f"shinar: {text}", file=sys.stderr)
