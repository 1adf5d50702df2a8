"""`shinar publish`: one message from the command line, or many from stdin, confirmed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from shinar.cli.common import Progress, add_output, add_settings, address, emit, settings_of
from shinar.errors import ContractError

EXAMPLES = """examples:
  shinar publish phpmq://localhost/emails urn:babel:users:registered '{"user_id": 42}'
  shinar publish redis://localhost/orders --lines < messages.jsonl
each line is {"urn": ..., "data": {...}, "trace_id"?: ...}, or a whole envelope, sent byte for byte
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "publish",
        help="send messages to a queue, confirmed",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", nargs="?", help="broker URL with the queue, such as redis://localhost/orders")
    parser.add_argument("urn", nargs="?", help="what the message is, such as urn:babel:orders:created")
    parser.add_argument("data", nargs="?", default="{}", help="its payload, a JSON object")
    parser.add_argument("--lines", action="store_true", help="read one message a line from stdin")
    parser.add_argument("--trace-id", help="continue this trace")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--key", help="ordering key")
    parser.add_argument("--delay-s", type=float, default=0.0, help="deliver this much later")
    parser.add_argument(
        "--strict", action="store_true", help="refuse payloads some language reads differently"
    )
    add_settings(parser, "queue", "registry")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.producer import Producer

    settings = settings_of(args)
    url, queue = address(args, settings)
    validate = None
    if settings["registry"]:
        from shinar.schemas import Registry

        validate = Registry.load(settings["registry"]).validate
    headers = _headers(args.header)
    with Producer(url, queue=queue, strict=args.strict, validate=validate) as producer:
        if args.lines:
            return _publish_lines(args, producer, headers)
        if not args.urn:
            raise ContractError("give a URN and its data, or --lines to read messages from stdin")
        message = producer.send(
            args.urn,
            _object(args.data, "data"),
            trace_id=args.trace_id,
            headers=headers,
            key=args.key,
            delay_s=args.delay_s,
        )
    if args.json:
        emit({"id": message.id, "trace_id": message.trace_id, "urn": message.urn, "queue": queue})
    else:
        print(f"sent {message.id} to {queue} (trace {message.trace_id})")
    return 0


def _publish_lines(args: argparse.Namespace, producer: Any, headers: dict[str, str]) -> int:
    progress = Progress("sent", quiet=args.quiet)
    batch: list[Any] = []
    for item in _messages(sys.stdin.buffer):
        batch.append(item)
        if len(batch) == 500:
            progress.add(producer.send_bodies(batch, headers=headers, delay_s=args.delay_s))
            batch = []
    if batch:
        progress.add(producer.send_bodies(batch, headers=headers, delay_s=args.delay_s))
    progress.done()
    if args.json:
        emit({"sent": progress.count})
    elif not args.quiet:
        print(f"sent {progress.count:,} messages", file=sys.stderr)
    return 0


def _messages(lines: Any) -> Iterator[bytes]:
    from shinar.envelope import Kind, build, encode, judge

    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if judge(text).kind is Kind.ACCEPTED and b'"data"' in text and b'"job"' in text:
            yield text
            continue
        row = _object(text.decode("utf-8", "replace"), f"line {number}")
        if not isinstance(row.get("urn"), str):
            raise ContractError(f"line {number} has neither an envelope nor a urn")
        yield encode(build(row["urn"], row.get("data", {}), trace_id=row.get("trace_id")))


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ContractError(f"{what} is not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise ContractError(f"{what} must be a JSON object, such as '{{\"user_id\": 42}}'")
    return value


def _headers(pairs: list[str]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ContractError(f"--header {pair!r}: write NAME=VALUE")
        headers[name] = value
    return headers
