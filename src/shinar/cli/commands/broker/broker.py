"""`shinar broker`: run the embedded broker, and look after it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from shinar.cli.commands.broker import tables
from shinar.cli.support.embedded import connected, queue_exists
from shinar.cli.support.output import add_output, colours, emit, settings_of, with_token
from shinar.cli.support.parser import some_seconds
from shinar.clock import SYSTEM
from shinar.errors import ConfigError, QueueMissing
from shinar.printable import printable

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
    _online(actions, "status", "the server's metrics", _status)
    _online(actions, "queues", "every queue with its metrics", _queues)
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
    monitor = _online(actions, "monitor", "live metrics in the terminal", _monitor)
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
        print("\n".join(tables.status_lines(status)))
    return 0


def _queues(args: argparse.Namespace) -> int:
    with _client(args) as (client, _):
        rows = _metrics(client)
    if args.json:
        for row in rows:
            emit(row)
    else:
        print("\n".join(tables.queues_table(rows)))
    return 0


def _show(args: argparse.Namespace) -> int:
    with _broker(args) as (broker, queue):
        shown = 0
        for delivery in broker.browse(queue, args.limit):
            _print_message(args, delivery)
            shown += 1
    return 0 if shown else _nothing(args, f"{queue} has no messages that are ready")


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
    return 0 if found else _nothing(args, f"no ready message of {queue} contains that text")


def _flush(args: argparse.Namespace) -> int:
    from shinar.phpmq.protocol import extension as ext

    with _client(args) as (client, queue):
        _named(queue)
        if not args.yes:
            depth = client.call(ext.Depth(client.tag(), queue), list[ext.DepthReply])
            if not depth:
                raise _missing(queue)
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
        looked_s = SYSTEM.monotonic_s()
        while True:
            rows = _metrics(client)
            elapsed_s, looked_s = SYSTEM.monotonic_s() - looked_s, SYSTEM.monotonic_s()
            if args.json:
                for row in rows:
                    emit(row)
                sys.stdout.flush()
            else:
                status = client.call(ext.Status(client.tag()), dict[str, Any])
                _draw(tables.monitor_table(rows, before, elapsed_s), status)
            before = {row["queue"]: row for row in rows}
            rounds += 1
            if rounds == args.rounds:
                return 0
            SYSTEM.sleep(args.interval_s)


def _draw(lines: list[str], status: dict[str, Any]) -> None:
    clear = "\x1b[H\x1b[2J" if colours() else ""
    head = (
        f"{status['server']}  up {tables.age(status['uptime_s'])}  clients {status['connections']:,}  "
        f"store {tables.byte_size(status['store_bytes'])}  free {tables.byte_size(status['free_bytes'])}"
    )
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


def _embedded(args: argparse.Namespace) -> Any:
    """The URL of the embedded broker to talk to, with its token."""
    from shinar.brokers import parse
    from shinar.brokers.phpmq import SCHEMES

    settings = settings_of(args)
    url = with_token(parse(args.url or settings["url"] or DEFAULT_URL), settings)
    if url.scheme not in SCHEMES:
        raise ConfigError(f"{url.scheme}:// is not the embedded broker; give a phpmq:// URL", setting="url")
    return url


@contextmanager
def _client(args: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    """A client of the extension and the queue in the URL, "" when it names none."""
    url = _embedded(args)
    with connected(url) as client:
        yield client, url.queue


@contextmanager
def _broker(args: argparse.Namespace) -> Iterator[tuple[Any, str]]:
    """The broker to browse, and the queue in the URL, which exists."""
    from shinar.brokers import connect

    url = _embedded(args)
    queue = _named(url.queue)
    if not queue_exists(url, queue):
        raise _missing(queue)
    broker = connect(url)
    try:
        yield broker, queue
    finally:
        broker.close()


def _missing(queue: str) -> QueueMissing:
    return QueueMissing("no such queue; `shinar broker queues` lists them", broker="phpmq", queue=queue)


def _metrics(client: Any) -> list[dict[str, Any]]:
    from shinar.phpmq.protocol import extension as ext

    now_ms = SYSTEM.epoch_ms()
    found = client.call(ext.Queues(client.tag()), list[ext.QueueMetrics])
    return [tables.queue_row(one, now_ms) for one in found]


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
    text = delivery.body[: PREVIEW * 4].decode("utf-8", "backslashreplace")
    headers = "".join(f" {printable(name)}={printable(value)}" for name, value in delivery.headers.items())
    print(f"{delivery.position} deliveries={delivery.native_count}{headers}\n  {printable(text, PREVIEW)}")


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
