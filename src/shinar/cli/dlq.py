"""`shinar dlq summary|list|show|export`: see why messages died, without touching them."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from shinar.cli.common import Progress, add_output, add_settings, address, emit, settings_of
from shinar.cli.redrive import add_choice, ids_of, since_ms
from shinar.errors import MissingExtra

if TYPE_CHECKING:
    from shinar.brokers import Broker
    from shinar.redrive import Ledger, Letter, Summary

EXAMPLES: Final = """examples:
  shinar dlq summary redis://localhost/orders.dlq
  shinar dlq summary sqs://eu-west-1/orders-dlq --reserve --since 24h
  shinar dlq list amqp://localhost/orders.dlq --reserve --where "lang = 'php'" --limit 20
  shinar dlq show kafka://localhost/orders.dlq --fingerprint 3f9a --limit 5
  shinar dlq export phpmq://localhost/orders.dlq --out dead.jsonl
  shinar dlq summary --lake lake --new-since 2026-11-15T02:00
Nothing is consumed. SQS and RabbitMQ cannot show a queue: there --reserve takes every message and
hands it back, which counts as a delivery.
"""
#: Rows of an exported Parquet file written at once.
_ROW_GROUP: Final = 2_000
#: Characters of an error in a list.
_CELL: Final = 70


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "dlq",
        help="see why messages died",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("view", choices=list(_VIEWS), help="what to see")
    parser.add_argument("url", nargs="?", help="URL of the dead-letter queue (or SHINAR_URL)")
    add_choice(parser)
    parser.add_argument("--new-since", default="", help="summary: mark kinds that began since then")
    parser.add_argument(
        "--out", default="-", help="export: file to write, .jsonl or .parquet (default stdout)"
    )
    parser.add_argument("--master", help="Spark master for --lake (default local[*])")
    add_settings(parser, "queue", "lake", "ledger")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return _VIEWS[args.view](args)


# -- summary


def _summary(args: argparse.Namespace) -> int:
    from shinar.redrive import summarise

    if args.lake or (settings_of(args)["lake"] and not args.url):
        summary = _lake_summary(args)
    else:
        with _open(args) as (broker, queue):
            progress = Progress("read", _total(broker, queue), quiet=args.quiet)
            ledger = _ledger(args)
            try:
                told = ledger.generations if ledger is not None else None
                summary = summarise(_counted(_letters(args, broker, queue), progress), None, told)
            finally:
                if ledger is not None:
                    ledger.close()
            progress.done()
    rows = summary.rows(since_ms(args.new_since))[: args.limit]
    if args.json:
        for row in rows:
            emit(row)
    else:
        _print_summary(summary, rows)
    return 0


def _lake_summary(args: argparse.Namespace) -> Summary:
    from shinar.cli.lake import lake_store, spark_session
    from shinar.redrive.lake import summarise_lake

    store = lake_store(settings_of(args))
    choice = {
        "where": args.where,
        "fingerprint": args.fingerprint,
        "since_ms": since_ms(args.since),
        "ids": ids_of(args.ids),
    }
    return summarise_lake(spark_session(args.master), store, **choice)


def _print_summary(summary: Summary, rows: list[dict[str, Any]]) -> None:
    from shinar.redrive import sparkline

    print(f"{summary.total:,} dead letters of {len(summary.groups):,} kinds, {summary.bytes:,} bytes\n")
    for row in rows:
        new = "  NEW" if row["new"] else ""
        again = f"  {row['died_again']:,} died again after a redrive" if row["died_again"] else ""
        what = row["exception"] or row["reason"] or row["nature"]
        place = " ".join(filter(None, [row["urn"], row["lang"], row["original_queue"]]))
        print(f"{row['fingerprint']}  {row['count']:>9,}  {row['share']:>6.1%}  {what}  {place}{new}{again}")
        print(f"{'':>12}  {_time(row['first_ms'])} … {_time(row['last_ms'])}  {sparkline(row['bars'])}")
        if row["template"]:
            print(f"{'':>12}  {row['template'][:120]}")


# -- list, show


def _list(args: argparse.Namespace) -> int:
    with _open(args) as (broker, queue):
        for letter in _letters(args, broker, queue, args.limit or 50):
            if args.json:
                emit(_row(letter))
            else:
                what = letter.exception or letter.reason or letter.nature
                text = (letter.error or "").replace("\n", " ")[:_CELL]
                print(
                    f"{_time(letter.at_ms)}  {letter.fingerprint[:8]}  {letter.id or '-'}  "
                    f"{letter.urn or '-'}  {what}  {text}"
                )
    return 0


def _show(args: argparse.Namespace) -> int:
    with _open(args) as (broker, queue):
        ledger = _ledger(args)
        try:
            for letter in _letters(args, broker, queue, args.limit or 5):
                sent = ledger.generations([letter.id]) if ledger is not None and letter.id else {}
                row = _details(letter) | {"redriven": sent.get(letter.id or "", 0)}
                if args.json:
                    emit(row)
                else:
                    _print_details(row)
        finally:
            if ledger is not None:
                ledger.close()
    return 0


def _row(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "urn": letter.urn,
        "trace_id": letter.trace_id,
        "lang": letter.lang,
        "reason": letter.reason,
        "exception": letter.exception,
        "error": letter.error,
        "attempts": letter.attempts,
        "original_queue": letter.said_queue,
        "created_at": letter.created_ms,
        "failed_at": letter.failed_ms,
        "nature": str(letter.nature),
        "fingerprint": letter.fingerprint,
        "position": letter.delivery.position,
        "bytes": len(letter.delivery.body),
    }


def _details(letter: Letter) -> dict[str, Any]:
    from shinar.envelope import unwrap_poison
    from shinar.redrive.compare import beside

    delivery = letter.delivery
    row = _row(letter) | {
        "headers": dict(delivery.headers),
        "properties": {name: _plain(value) for name, value in delivery.properties.items()},
        "beside": [list(one) for one in beside(letter)],
        "warnings": [str(warning) for warning in letter.verdict.warnings],
    }
    if letter.message is not None:
        return row | {"envelope": json.loads(delivery.body)}
    raw = unwrap_poison(delivery.body) if letter.reason is not None else delivery.body
    return row | {"raw_text": raw.decode("utf-8", "backslashreplace"), "raw_hex": raw[:256].hex(" ")}


def _print_details(row: dict[str, Any]) -> None:
    print(f"--- {row['id'] or row['position']}  {row['nature']}  {row['fingerprint']}")
    print(f"died     {_time(row['failed_at'])} on {row['original_queue'] or '?'}, attempts {row['attempts']}")
    print(f"error    {row['exception'] or row['reason'] or ''}: {row['error'] or ''}")
    if row["redriven"]:
        print(f"again    died again after redrive {row['redriven']}")
    if row["headers"]:
        print(f"headers  {json.dumps(row['headers'], ensure_ascii=False)}")
    for name, said, in_body, agrees in row["beside"]:
        print(f"{'  ' if agrees else '!!'} {name:<20} {said!s:<40} body: {in_body}")
    for warning in row["warnings"]:
        print(f"warning  {warning}")
    if "envelope" in row:
        print(json.dumps(row["envelope"], indent=2, ensure_ascii=False))
    else:
        print(f"raw      {row['raw_text']}\nbytes    {row['raw_hex']}")
    print()


# -- export


def _export(args: argparse.Namespace) -> int:
    with _open(args) as (broker, queue):
        rows = (_exported(letter) for letter in _letters(args, broker, queue, args.limit))
        progress = Progress("exported", _total(broker, queue), quiet=args.quiet)
        if args.out.endswith(".parquet"):
            _write_parquet(args.out, rows, progress)
        elif args.out == "-":
            _write_lines(sys.stdout, rows, progress)
        else:
            with Path(args.out).open("w", encoding="utf-8") as out:
                _write_lines(out, rows, progress)
        progress.done()
        if not args.quiet:
            print(f"{progress.count:,} dead letters", file=sys.stderr)
    return 0


def _exported(letter: Letter) -> dict[str, Any]:
    """The exact body and what travelled beside it, enough to publish the message again."""
    delivery = letter.delivery
    row: dict[str, Any] = {
        "queue": delivery.queue,
        "position": delivery.position,
        "headers": dict(delivery.headers),
        "properties": {name: _plain(value) for name, value in delivery.properties.items()},
        "key": None if delivery.key is None else base64.b64encode(delivery.key).decode(),
        "fingerprint": letter.fingerprint,
    }
    try:
        return row | {"body": delivery.body.decode("utf-8"), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return row | {"body": base64.b64encode(delivery.body).decode(), "body_encoding": "base64"}


def _write_lines(out: IO[str], rows: Iterator[dict[str, Any]], progress: Progress) -> None:
    for row in rows:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
        progress.add()


def _write_parquet(path: str, rows: Iterator[dict[str, Any]], progress: Progress) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingExtra("Parquet", "pyarrow", "spark") from None
    texts = ("queue", "position", "key", "fingerprint", "body", "body_encoding")
    pairs = pa.map_(pa.string(), pa.string())
    shape = pa.schema([*((name, pa.string()) for name in texts), ("headers", pairs), ("properties", pairs)])
    with pq.ParquetWriter(path, shape) as writer:
        page: list[dict[str, Any]] = []
        for row in rows:
            page.append(row | {name: list(row[name].items()) for name in ("headers", "properties")})
            progress.add()
            if len(page) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(page, shape))
                page = []
        writer.write_table(pa.Table.from_pylist(page, shape))


_VIEWS: Final = {"summary": _summary, "list": _list, "show": _show, "export": _export}


# -- parts


@contextmanager
def _open(args: argparse.Namespace) -> Iterator[tuple[Broker, str]]:
    from shinar.brokers import connect
    from shinar.redrive import side_effect

    url, queue = address(args, settings_of(args))
    broker = connect(url)
    try:
        if args.reserve and not args.quiet and (text := side_effect(broker)):
            print(f"note: {text}", file=sys.stderr)
        yield broker, queue
    finally:
        broker.close()


def _letters(
    args: argparse.Namespace, broker: Broker, queue: str, limit: int | None = None
) -> Iterator[Letter]:
    from shinar.redrive import Chosen, letters

    chosen = Chosen(
        where=args.where, fingerprint=args.fingerprint, since_ms=since_ms(args.since), ids=ids_of(args.ids)
    )
    found = letters(broker, queue, reserve=args.reserve)
    with closing(found):
        shown = 0
        for letter in found:
            if limit is not None and shown >= limit:
                return
            if chosen(letter):
                shown += 1
                yield letter


def _counted(letters: Iterator[Letter], progress: Progress) -> Iterator[Letter]:
    for letter in letters:
        progress.add()
        yield letter


def _total(broker: Broker, queue: str) -> int | None:
    return broker.depth(queue).ready if broker.traits.depth else None


def _ledger(args: argparse.Namespace) -> Ledger | None:
    """Only if there is one: a look must not create it."""
    from shinar.redrive import Ledger
    from shinar.redrive.ledger import default_path

    place = settings_of(args)["ledger"]
    if "://" not in place and not (Path(place) if place else default_path()).exists():
        return None
    return Ledger(place)


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def _plain(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
