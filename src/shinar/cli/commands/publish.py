"""`shinar publish`: one message from the command line, or many from stdin, confirmed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from shinar.cli.support.output import Progress, add_output, add_settings, address, emit, settings_of
from shinar.cli.support.parser import seconds
from shinar.errors import ConfigError, ContractError, ShinarError

#: Lines sent at once.
BATCH: Final = 500

EXAMPLES = """examples:
  shinar publish phpmq://localhost/emails urn:babel:users:registered '{"user_id": 42}'
  shinar publish redis://localhost/orders --lines < messages.jsonl
  SHINAR_URL=redis://localhost/orders shinar publish urn:babel:orders:created '{"id": 1}'
each line is {"urn": ..., "data": {...}, "trace_id"?: ...}, or a whole envelope, sent byte for byte.
A file (< messages.jsonl) is checked to its end before the first message is sent; a pipe is sent as it comes.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "publish",
        help="send messages to a queue, confirmed",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="URL",
        help="broker URL with the queue, such as redis://localhost/orders; not with --url or SHINAR_URL",
    )
    parser.add_argument("urn", nargs="?", help="what the message is, such as urn:babel:orders:created")
    parser.add_argument("data", nargs="?", help="its payload, a JSON object (default {})")
    parser.add_argument("--lines", action="store_true", help="read one message a line from stdin")
    parser.add_argument("--trace-id", help="continue this trace")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--key", help="ordering key")
    parser.add_argument("--delay-s", type=seconds, default=0.0, help="deliver this much later")
    parser.add_argument(
        "--strict", action="store_true", help="refuse payloads some language reads differently"
    )
    add_settings(parser, "url", "queue", "registry")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from shinar.brokers.registry import traits
    from shinar.producer import Producer

    _sort(args)
    settings = settings_of(args)
    url, queue = address(args, settings)
    if not traits(url).shared:
        print(
            f"warning: {url.scheme}:// lives in this process only; the message ends with it", file=sys.stderr
        )
    validate = None
    if settings["registry"]:
        from shinar.schemas import Registry

        validate = Registry.load(settings["registry"]).validate
    headers = _headers(args.header)
    with Producer(url, queue=queue, strict=args.strict, validate=validate) as producer:
        if args.lines:
            return _publish_lines(args, producer, headers, _Lines(queue, args.strict, validate))
        if not args.urn:
            raise ContractError("give a URN and its data, or --lines to read messages from stdin")
        message = producer.send(
            args.urn,
            _object("{}" if args.data is None else args.data, "data"),
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


def _sort(args: argparse.Namespace) -> None:
    """Where the URL comes from elsewhere, the words are the URN and its data."""
    if args.place and "://" not in args.place and args.data is None:
        args.urn, args.data, args.place = args.place, args.urn, None
    if args.place and args.url:
        raise ConfigError("give the URL once: as the first argument or with --url", setting="url")
    args.url = args.place or args.url
    if args.urn and args.urn.lstrip().startswith(("{", "[", '"')):
        raise ContractError(
            "this is data, and the URN is missing; write shinar publish URL urn:babel:orders:created '{...}'",
            pointer=None,
        )
    if args.lines:
        for name in ("urn", "trace_id", "key"):
            if getattr(args, name):
                flag = name if name == "urn" else f"--{name.replace('_', '-')}"
                raise ConfigError("applies to one message and cannot be combined with --lines", setting=flag)


def _publish_lines(args: argparse.Namespace, producer: Any, headers: dict[str, str], lines: _Lines) -> int:
    source = sys.stdin.buffer
    if source.seekable():  # a file: one bad line, and nothing is sent
        start = source.tell()
        for _ in lines.bodies(source):
            pass
        source.seek(start)
    progress = Progress("sent", quiet=args.quiet)
    try:
        for batch in _batches(lines.bodies(source)):
            progress.add(producer.send_bodies(batch, headers=headers, delay_s=args.delay_s))
    except ShinarError:
        print(f"{progress.count:,} messages were sent before this error:", file=sys.stderr)
        raise
    finally:
        progress.done()
        if args.json:
            emit({"sent": progress.count})
    if not args.quiet and not args.json:
        print(f"sent {progress.count:,} messages", file=sys.stderr)
    return 0


def _batches(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(bodies, BATCH)):
        yield batch


class _Lines:
    """Lines of JSON as the bodies to send; a line that must not be sent is an error with its number."""

    def __init__(self, queue: str, strict: bool, validate: Any) -> None:
        self._queue, self._strict, self._validate = queue, strict, validate

    def bodies(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text:
                continue
            try:
                yield self._body(text)
            except ContractError as exc:
                raise ContractError(f"line {number}: {exc}", pointer=None) from None

    def _body(self, text: bytes) -> bytes:
        from shinar.envelope import build, check_strict, encode, judge

        try:
            row = _object(text.decode("utf-8"), "it")
        except UnicodeDecodeError:
            raise ContractError("it is not UTF-8") from None
        if "job" in row or "meta" in row:
            verdict = judge(text)
            message, body = verdict.message, text
            if message is None:
                why = " ".join(part for part in (str(verdict.reason), verdict.pointer) if part)
                raise ContractError(f"it is not a valid envelope ({why}); see `shinar inspect`")
        else:
            if not isinstance(row.get("urn"), str):
                raise ContractError("it has neither an envelope nor a urn")
            if odd := sorted(row.keys() - {"urn", "data", "trace_id"}):
                raise ContractError(f"there is no member {odd[0]!r} beside urn, data and trace_id")
            message = build(row["urn"], row.get("data", {}), queue=self._queue, trace_id=row.get("trace_id"))
            body = encode(message)
        if self._validate is not None:
            self._validate(message.urn, message.data)
        if self._strict:
            check_strict(message.data)
        return body


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
