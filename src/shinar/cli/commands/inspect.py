"""`shinar inspect`: what is this message, by the same judge that workers and pipelines use."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shinar.cli.support.output import add_output, colours, emit, time_text
from shinar.errors import ConfigError

EXAMPLES = """examples:
  shinar inspect message.json
  shinar inspect archive.jsonl --lines --only-bad
exit code 1 when any message is not accepted
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="pretty-print and judge messages from a file or stdin",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", default="-", help="a file, or - for stdin")
    parser.add_argument("--lines", action="store_true", help="one message a line instead of one in all")
    parser.add_argument("--only-bad", action="store_true", help="leave out what is accepted")
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


def describe(body: bytes, **beside: Any) -> dict[str, Any]:
    """A body and what Shinar thinks of it, as one JSON-able value."""
    from shinar.envelope import judge, parse_strict

    verdict = judge(body)
    described: dict[str, Any] = {
        "verdict": str(verdict.kind),
        "reason": str(verdict.reason),
        "pointer": verdict.pointer,
        "warnings": [str(warning) for warning in verdict.warnings],
        **{name: value for name, value in beside.items() if value},
    }
    if verdict.message is not None:
        described["envelope"] = parse_strict(body)
        created_ms = verdict.message.meta.created_at
        if created_ms:
            described["created_at"] = time_text(created_ms)
    else:
        try:
            described["raw"] = body.decode("utf-8")
        except UnicodeDecodeError:
            described["raw_base64"] = base64.b64encode(body).decode("ascii")
    return described


def print_description(described: dict[str, Any]) -> None:
    good = described["verdict"] == "accepted"
    mark = described["verdict"]
    if colours():
        mark = f"\x1b[{32 if good else 31}m{mark}\x1b[0m"
    why = " ".join(part for part in (described["reason"], described["pointer"]) if part)
    envelope = described.get("envelope") or {}
    title = envelope.get("job") or envelope.get("urn") or ""
    head = [mark, f"({why})" if why else "", title, described.get("created_at", "")]
    print("  ".join(part for part in head if part))
    for warning in described["warnings"]:
        print(f"  warning: {warning}")
    for name in ("position", "headers"):
        if described.get(name):
            print(f"  {name}: {described[name]}")
    shown = described.get("envelope") or described.get("raw") or described.get("raw_base64") or ""
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=2)
    print("\n".join(f"  {line}" for line in text.splitlines()))
