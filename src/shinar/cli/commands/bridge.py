"""`shinar bridge FROM TO`: move or copy messages between any two brokers, with counts that add up."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shinar.brokers import registry
from shinar.cli.support.output import Progress, Stopper, add_output, emit
from shinar.errors import ConfigError
from shinar.printable import printable

if TYPE_CHECKING:
    from shinar.bridge import Counts
    from shinar.brokers import BrokerUrl

_LOCAL: Final = ("", "127.0.0.1", "[::1]")

EXAMPLES = """examples:
  shinar bridge amqp://localhost/orders sqs://eu-west-1/orders --rate 500
  shinar bridge redis://localhost/orders phpmq://localhost/orders --follow
  shinar bridge redis://localhost/orders phpmq://localhost/orders-copy --copy
  shinar bridge kafka://localhost/orders sqs://eu-west-1/orders --refused-to 'sqlite://left.db?queue=orders'
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
    parser.add_argument(
        "--refused-to", metavar="URL", help="queue for messages the target can never take; else they stay"
    )
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.bridge import BridgePlan, BrokerQueue, Counts, bridge
    from shinar.brokers import connect, parse

    source_url, target_url = parse(args.source), parse(args.target)
    refused_url = parse(args.refused_to) if args.refused_to else None
    _check(args, bool(source_url.queue))
    target_queue = target_url.queue or source_url.queue
    if same_place(target_url, target_queue, source_url, source_url.queue):
        raise ConfigError("this is the same queue as the source; name another one", setting="target")
    if refused_url is not None:
        _check_refused_to(refused_url, source_url)
    plan = BridgePlan(args.copy, args.follow, args.skip, args.limit, args.rate)
    word = "copied" if args.copy else "moved"
    progress = Progress(word, args.limit, quiet=args.quiet)
    counts = Counts()
    try:
        with ExitStack() as opened:
            source = opened.enter_context(closing(connect(source_url)))
            # With its queue, because what a broker can do may hang on it (one kind of queue drops repeats).
            target = opened.enter_context(closing(connect(replace(target_url, queue=target_queue))))
            aside = None
            if refused_url is not None:
                aside = BrokerQueue(opened.enter_context(closing(connect(refused_url))), refused_url.queue)
            stopper = opened.enter_context(Stopper(quiet=args.quiet))
            steps = bridge(
                source,
                source_url.queue,
                target,
                target_queue,
                plan,
                refused_to=aside,
                stop=lambda: stopper.asked,
            )
            for counts in steps:
                progress.add(counts.received - progress.count)
    finally:
        progress.done()
        # After an error as well: this much is done.
        _tell(args, counts, word)
    return 0 if counts.adds_up and not counts.refused and not counts.lapsed else 1


def same_place(one: BrokerUrl, queue: str, other: BrokerUrl, other_queue: str) -> bool:
    """Do both name the same queue, however they are written? A bridge between them goes round for ever."""
    if (one.scheme, queue) != (other.scheme, other_queue):
        return False
    row = registry.row(one.scheme)
    if any(one.option(name) != other.option(name) for name in row.place_options):
        return False
    if row.path == "file":
        paths = [os.path.realpath(url.netloc + url.path) for url in (one, other)]
        return paths[0] == paths[1]
    return (one.path or row.home) == (other.path or row.home) and bool(_hosts(one, row) & _hosts(other, row))


def _hosts(url: BrokerUrl, row: registry.Row) -> set[str]:
    """host:port of each; one in common, and it is the same server or cluster."""
    found = set()
    for part in url.netloc.split(","):
        host, colon, port = part.rpartition(":")
        if not (colon and port.isdecimal()):
            host, port = part, str(url.usual_port)
        name = host if row.host_is_name else host.lower()
        found.add(f"{'localhost' if name in _LOCAL else name}:{port}")
    return found


def _check_refused_to(url: BrokerUrl, source: BrokerUrl) -> None:
    if not url.queue:
        raise ConfigError("must name a queue", setting="--refused-to")
    if same_place(url, url.queue, source, source.queue):
        raise ConfigError("this is the same queue as the source; name another one", setting="--refused-to")


def _check(args: argparse.Namespace, named: bool) -> None:
    if not named:
        raise ConfigError("the source URL must name a queue", setting="source")
    for name in ("limit", "rate"):
        value = getattr(args, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ConfigError("must be a number of more than 0", setting=f"--{name}")
    if args.skip < 0 or (args.skip and not args.copy):
        raise ConfigError("give a number of messages of at least 0, and use it with --copy", setting="--skip")
    if args.follow and args.copy:
        raise ConfigError("cannot be combined with --copy, which ends by itself", setting="--follow")


def _tell(args: argparse.Namespace, counts: Counts, word: str) -> None:
    if args.json:
        names = ("received", "sent", "refused", "lapsed")
        emit({name: getattr(counts, name) for name in names})
    elif not args.quiet:
        line = f"received {counts.received:,} = {word} {counts.sent:,} + refused {counts.refused:,}"
        if counts.lapsed:
            line += f"; {counts.lapsed:,} leases had ended; the source delivers those messages again"
        print(line, file=sys.stderr)
    if not args.quiet:
        if counts.stopped:
            print(printable(counts.stopped), file=sys.stderr)
        elif counts.refusal:
            print(f"the first one refused: {printable(counts.refusal)}", file=sys.stderr)
