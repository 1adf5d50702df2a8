"""`shinar broker`: run the embedded broker, and look after it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shinar.cli.support.output import add_output, colours, emit, settings_of, with_token
from shinar.cli.support.parser import some_seconds
from shinar.clock import SYSTEM
from shinar.errors import ConfigError, QueueMissing

DEFAULT_URL: Final = "phpmq://127.0.0.1:9100"
#: Characters of a body shown on one line.
PREVIEW: Final = 160

EXAMPLES = """examples:
  shinar broker serve --data ./broker                  loopback, port 9100, fsync
  shinar broker serve --listen 127.0.0.1:9100 --listen 127.0.0.1:9101,form=ttl --unix /run/shinar.sock
  shinar broker serve --listen 0.0.0.0:9100,tls --tls-cert c.pem --tls-key k.pem --token-file token
  shinar broker queues                                 what is in it
  shinar broker show phpmq://localhost/orders --limit 5
  shinar broker search phpmq://localhost/orders '"order_id":42'
  shinar broker move phpmq://localhost/orders.dlq orders
  shinar broker monitor
  shinar broker backup --data ./broker ./backup.sqlite
"""


def register(commands: Any) -> None:
    broker: argparse.ArgumentParser = commands.add_parser(
        "broker",
        help="run and look after the embedded broker",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = broker.add_subparsers(dest="action", metavar="ACTION", required=True)
    from shinar.cli.commands.broker.serve import register as register_serve

    register_serve(actions)
    _online(actions, "status", "the server's figures", _status)
    _online(actions, "queues", "every queue with its figures", _queues)
    show = _online(actions, "show", "the first messages of a queue", _show)
    show.add_argument("--limit", type=_count, default=10, help="how many (default 10)")
    search = _online(actions, "search", "messages of a queue that contain a text", _search)
    search.add_argument("text", help="looked for in body and headers, byte for byte")
    search.add_argument("--limit", type=_count, default=100, help="stop after this many (default 100)")
    flush = _online(actions, "flush", "delete what is ready and delayed in a queue", _flush)
    flush.add_argument("--yes", action="store_true", help="do it; without this it only says what it would do")
    move = _online(actions, "move", "move ready messages to the end of another queue", _move)
    move.add_argument("target", help="name of the other queue")
    move.add_argument("--limit", type=_count, default=0, help="at most this many (default all)")
    monitor = _online(actions, "monitor", "live figures in the terminal", _monitor)
    monitor.add_argument("--interval-s", type=some_seconds, default=1.0)
    monitor.add_argument("--rounds", type=_count, default=0, help="stop after this many (default: Ctrl-C)")
    backup = _offline(actions, "backup", "a consistent copy, while the server runs", _backup)
    backup.add_argument("target", type=Path, help="file to write; must not exist")
    fsck = _offline(actions, "fsck", "check a data folder; exit 1 when something is wrong", _fsck)
    fsck.add_argument("--repair", action="store_true", help="mend what can be mended; stop the server first")
    fsck.add_argument("--compact", action="store_true", help="with --repair: give unused space back")


def _online(
    actions: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    parser.add_argument(
        "url", nargs="?" if name in ("status", "queues", "monitor") else None, help="phpmq://…"
    )
    add_output(parser)
    parser.set_defaults(run=run)
    return parser


def _offline(
    actions: Any, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    from shinar.cli.commands.broker.serve import add_data

    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    add_data(parser)
    add_output(parser)
    parser.set_defaults(run=run)
    return parser


# -- over the wire


def _status(args: argparse.Namespace) -> int:
    from shinar.phpmq.protocol import extension as ext

    with _client(args) as (client, _):
        status = client.call(ext.Status(client.tag()), dict[str, Any])
    if args.json:
        emit(status)
    else:
        for name, value in status.items():
            plain = isinstance(value, bool) or not isinstance(value, int)
            print(f"{name:<16} {value}" if plain else f"{name:<16} {value:,}")
    return 0


def _queues(args: argparse.Namespace) -> int:
    with _client(args) as (client, _):
        rows = _figures(client)
    if args.json:
        for row in rows:
            emit(row)
    else:
        print("\n".join(_table(rows, None)))
    return 0


def _show(args: argparse.Namespace) -> int:
    with _broker(args) as (broker, queue):
        shown = 0
        for delivery in broker.browse(queue, args.limit):
            _print_message(args, delivery)
            shown += 1
    return 0 if shown else _nothing(args, f"{queue} is empty")


def _search(args: argparse.Namespace) -> int:
    needle = args.text.encode()
    found = 0
    with _broker(args) as (broker, queue):
        for delivery in broker.browse(queue):
            headers = "\n".join(f"{name}={value}" for name, value in delivery.headers.items()).encode()
            if needle in delivery.body or needle in headers:
                _print_message(args, delivery)
                found += 1
                if found == args.limit:
                    break
    return 0 if found else _nothing(args, f"nothing in {queue} contains that text")


def _flush(args: argparse.Namespace) -> int:
    from shinar.phpmq.protocol import extension as ext

    with _client(args) as (client, queue):
        _named(queue)
        if not args.yes:
            depth = client.call(ext.Depth(client.tag(), queue), list[ext.DepthReply])
            if not depth:
                raise QueueMissing("no such queue", broker="phpmq", queue=queue)
            count = depth[0].ready + depth[0].delayed
            print(f"would delete {count:,} messages of {queue}; add --yes to do it", file=sys.stderr)
            return 1
        removed = client.call(ext.Flush(client.tag(), queue), int, wait_s=3600)
    return _report(args, {"queue": queue, "deleted": removed}, f"deleted {removed:,} messages of {queue}")


def _move(args: argparse.Namespace) -> int:
    from shinar.phpmq.protocol import extension as ext

    with _client(args) as (client, queue):
        _named(queue)
        request = ext.Transfer(client.tag(), queue, args.target, args.limit)
        moved = client.call(request, int, wait_s=3600)
    text = f"moved {moved:,} messages from {queue} to {args.target}"
    return _report(args, {"queue": queue, "target": args.target, "moved": moved}, text)


def _monitor(args: argparse.Namespace) -> int:
    from shinar.phpmq.protocol import extension as ext

    before: dict[str, dict[str, Any]] | None = None
    rounds = 0
    with _client(args) as (client, _):
        while True:
            rows = _figures(client)
            if args.json:
                for row in rows:
                    emit(row)
                sys.stdout.flush()
            else:
                status = client.call(ext.Status(client.tag()), dict[str, Any])
                _draw(rows, before, status, args.interval_s)
            before = {row["queue"]: row for row in rows}
            rounds += 1
            if rounds == args.rounds:
                return 0
            SYSTEM.sleep(args.interval_s)


def _draw(
    rows: list[dict[str, Any]],
    before: dict[str, dict[str, Any]] | None,
    status: dict[str, Any],
    interval_s: float,
) -> None:
    clear = "\x1b[H\x1b[2J" if colours() else ""
    head = (
        f"{status['server']}  up {status['uptime_s']:,.0f} s  clients {status['connections']}  "
        f"store {status['store_bytes'] / 2**20:,.1f} MiB  free {status['free_bytes'] / 2**30:,.1f} GiB"
    )
    lines = _table(rows, before, interval_s)
    print(f"{clear}{head}\n\n" + "\n".join(lines), flush=True)


# -- on the folder


def _backup(args: argparse.Namespace) -> int:
    from shinar.phpmq import maintenance

    size = maintenance.backup(args.data, args.target)
    return _report(args, {"target": str(args.target), "bytes": size}, f"wrote {args.target} ({size:,} bytes)")


def _fsck(args: argparse.Namespace) -> int:
    from shinar.phpmq import maintenance

    if args.compact and not args.repair:
        raise ConfigError("works only together with --repair", setting="--compact")
    found = (
        maintenance.repair(args.data, compact=args.compact) if args.repair else maintenance.check(args.data)
    )
    left = maintenance.check(args.data) if args.repair else found
    if args.json:
        emit({"data": str(args.data), "findings": found, "left": left})
    else:
        for line in found:
            print(line)
        print(f"{args.data}: {'clean' if not left else f'{len(left)} findings'}", file=sys.stderr)
    return 1 if left else 0


# -- shared


@contextmanager
def _client(args: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    """A client of the extension and the queue in the URL, "" when it names none."""
    from shinar.brokers import parse
    from shinar.brokers.phpmq import SCHEMES, address
    from shinar.phpmq.client import Client

    settings = settings_of(args)
    url = with_token(parse(args.url or settings["url"] or DEFAULT_URL), settings)
    if url.scheme not in SCHEMES:
        raise ConfigError(f"{url.scheme}:// is not the embedded broker; give a phpmq:// URL", setting="url")
    client = Client(address(url), name="shinar broker")
    try:
        yield client, url.queue
    finally:
        client.close()


@contextmanager
def _broker(args: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    from shinar.brokers import connect, parse

    url = with_token(parse(args.url), settings_of(args))
    broker = connect(url)
    try:
        yield broker, _named(url.queue)
    finally:
        broker.close()


def say_missing(url: Any, queue: str) -> None:
    """An empty queue and a slip in its name look the same to a reader; the embedded broker can tell."""
    from shinar.brokers.phpmq import SCHEMES, address
    from shinar.phpmq.client import Client
    from shinar.phpmq.protocol import extension as ext

    if url.scheme not in SCHEMES:
        return
    client = Client(address(url), name="shinar")
    try:
        found = client.call(ext.Depth(client.tag(), queue), list[ext.DepthReply])
    finally:
        client.close()
    if not found:
        print(f"note: there is no queue {queue!r} (yet); see `shinar broker queues`", file=sys.stderr)


def _figures(client: Any) -> list[dict[str, Any]]:
    from shinar.phpmq.protocol import extension as ext

    now_ms = SYSTEM.epoch_ms()
    rows = []
    for one in client.call(ext.Queues(client.tag()), list[ext.QueueFigures]):
        row = {name: getattr(one, name) for name in one.__struct_fields__[1:-1]}
        age_s = max(0.0, (now_ms - one.oldest_ms) / 1000) if one.oldest_ms else None
        rows.append({"queue": one.name, **row, "oldest_age_s": age_s})
    return rows


def _table(
    rows: list[dict[str, Any]], before: dict[str, dict[str, Any]] | None, interval_s: float = 1.0
) -> list[str]:
    names = ["ready", "reserved", "delayed", "consumers", "published", "acked", "expired", "dead"]
    width = max([len(row["queue"]) for row in rows] + [5])
    head = f"{'queue':<{width}}" + "".join(f"{name:>11}" for name in names) + f"{'oldest':>10}"
    lines = [head + (f"{'in/s':>10}{'out/s':>10}" if before is not None else "")]
    for row in rows:
        age = "-" if row["oldest_age_s"] is None else f"{row['oldest_age_s']:,.0f} s"
        line = f"{row['queue']:<{width}}" + "".join(f"{row[name]:>11,}" for name in names) + f"{age:>10}"
        if before is not None:
            old = before.get(row["queue"], row)
            for name in ("published", "acked"):
                line += f"{(row[name] - old[name]) / interval_s:>10,.0f}"
        lines.append(line)
    return lines


def _print_message(args: argparse.Namespace, delivery: Any) -> None:
    if args.json:
        emit(
            {
                "id": delivery.position,
                "queue": delivery.queue,
                "published_ms": delivery.received_ms,
                "deliveries": delivery.native_count,
                "headers": dict(delivery.headers),
                "body": delivery.body.decode("utf-8", "backslashreplace"),
            }
        )
        return
    text = delivery.body.decode("utf-8", "backslashreplace")
    shown = text if len(text) <= PREVIEW else text[:PREVIEW] + "…"
    headers = "".join(f" {name}={value}" for name, value in delivery.headers.items())
    print(f"{delivery.position} deliveries={delivery.native_count}{headers}\n  {_printable(shown)}")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _named(queue: str) -> str:
    if not queue:
        raise ConfigError("name one in the URL: phpmq://host/queue", setting="queue")
    return queue


def _nothing(args: argparse.Namespace, text: str) -> int:
    if not args.quiet:
        print(text, file=sys.stderr)
    return 1


def _report(args: argparse.Namespace, values: dict[str, Any], text: str) -> int:
    if args.json:
        emit(values)
    elif not args.quiet:
        print(text)
    return 0


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
