"""`shinar inspect`: print messages from a file with the verdict that workers and pipelines reach on them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shinar.cli.support.messages import describe, print_description
from shinar.cli.support.output import add_output, emit
from shinar.errors import ConfigError

EXAMPLES = """examples:
  shinar inspect message.json
  shinar inspect archive.jsonl --lines --only-bad
  redis-cli lindex orders 0 | shinar inspect --json
The exit code is 1 when any message is not accepted.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="print messages from a file or stdin, and say whether they are valid",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", default="-", help="the file to read; - for stdin (the default)")
    parser.add_argument(
        "--lines", action="store_true", help="the file has one message a line; otherwise it is one message"
    )
    parser.add_argument("--only-bad", action="store_true", help="print only messages that are not accepted")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    bad = total = 0
    for body in _bodies(args):
        described = describe(body)
        accepted = described["verdict"] == "accepted"
        total += 1
        bad += not accepted
        if accepted and args.only_bad:
            continue
        if args.json:
            emit(described)
        else:
            print_description(described)
    if args.lines and not args.quiet:
        print(f"{total:,} messages, {bad:,} not accepted", file=sys.stderr)
    return 1 if bad else 0


def _bodies(args: argparse.Namespace) -> Iterator[bytes]:
    if args.file == "-":
        yield from _split(sys.stdin.buffer, args.lines)
        return
    try:
        with Path(args.file).open("rb") as source:
            yield from _split(source, args.lines)
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", setting=args.file) from None


def _split(source: IO[bytes], lines: bool) -> Iterator[bytes]:
    if not lines:
        yield source.read()
        return
    for line in source:
        if line.strip():
            yield line.rstrip(b"\r\n")
