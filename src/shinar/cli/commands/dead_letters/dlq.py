"""`shinar dlq summary|list|show|export`: see why messages died, without touching them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.commands.dead_letters.export import export
from shinar.cli.commands.dead_letters.redrive import add_choice
from shinar.cli.commands.dead_letters.summary import ENGINES, summary
from shinar.cli.support.dead_letters import SentBack, from_lake, ledger_of, looked_at, plain
from shinar.cli.support.output import add_output, add_settings, address, emit, settings_of, time_text

if TYPE_CHECKING:
    from shinar.redrive import Ledger, Letter

EXAMPLES: Final = """examples:
  shinar dlq summary redis://localhost/orders.dlq
  shinar dlq summary sqs://eu-west-1/orders-dlq --reserve --since 24h
  shinar dlq list amqp://localhost/orders.dlq --reserve --where "lang = 'php'" --limit 20
  shinar dlq show kafka://localhost/orders.dlq --fingerprint 3f9a --limit 5
  shinar dlq export phpmq://localhost/orders.dlq --out dead.jsonl
  shinar dlq summary --lake lake --new-since 2026-11-15T02:00
Nothing is consumed. Some brokers cannot show a queue (tail says so): there --reserve takes every message and
hands it back, which counts as a delivery.
"""
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
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="summary: count in plain Python, on Spark, or (auto) on Spark above --spark-above",
    )
    parser.add_argument("--master", help="Spark master (default local[*])")
    add_settings(parser, "queue", "lake", "ledger", "spark_above")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    return _VIEWS[args.view](args)


# -- list, show


def _list(args: argparse.Namespace) -> int:
    with looked_at(args, args.limit or 50) as (found, _):
        for letter in found:
            if args.json:
                emit(_row(letter))
            else:
                what = letter.exception or letter.reason or letter.nature
                text = (letter.error or "").replace("\n", " ")[:_CELL]
                print(
                    f"{time_text(letter.at_ms)}  {letter.fingerprint[:8]}  {letter.id or '-'}  "
                    f"{letter.urn or '-'}  {what}  {text}"
                )
    return 0


def _show(args: argparse.Namespace) -> int:
    with looked_at(args, args.limit or 5) as (found, _):
        ledger = ledger_of(args)
        try:
            sent_back = _sent_back(args, ledger)
            for letter in found:
                row = _details(letter) | _before(letter, ledger, sent_back)
                if args.json:
                    emit(row)
                else:
                    _print_details(row)
        finally:
            if ledger is not None:
                ledger.close()
    return 0


def _sent_back(args: argparse.Namespace, ledger: Ledger | None) -> SentBack | None:
    from shinar.brokers import traits

    if ledger is None or from_lake(args):
        return None
    url, queue = address(args, settings_of(args))
    return SentBack(url, queue, traits(url), ledger)


def _before(letter: Letter, ledger: Ledger | None, sent_back: SentBack | None) -> dict[str, Any]:
    """How often it was sent back, and died again; or that this very record of a log was, and by which job."""
    sent = ledger.generations([letter.id]) if ledger is not None and letter.id else {}
    by = sent_back.by([letter.delivery])[0] if sent_back is not None else ""
    return {"redriven": 0 if by else sent.get(letter.id or "", 0), "sent_back_by": by or None}


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
    from shinar.redrive.letters.properties import beside

    delivery = letter.delivery
    row = _row(letter) | {
        "headers": dict(delivery.headers),
        "properties": {name: plain(value) for name, value in delivery.properties.items()},
        "beside": [list(one) for one in beside(letter)],
        "warnings": [str(warning) for warning in letter.verdict.warnings],
    }
    if letter.message is not None:
        return row | {"envelope": json.loads(delivery.body)}
    raw = unwrap_poison(delivery.body) if letter.reason is not None else delivery.body
    return row | {"raw_text": raw.decode("utf-8", "backslashreplace"), "raw_hex": raw[:256].hex(" ")}


def _print_details(row: dict[str, Any]) -> None:
    print(f"--- {row['id'] or row['position']}  {row['nature']}  {row['fingerprint']}")
    if row["failed_at"] is None and row["original_queue"] is None:
        print(f"died     it does not say; made {time_text(row['created_at'])}, attempts {row['attempts']}")
    else:
        place = row["original_queue"] or "a queue it does not name"
        print(f"died     {time_text(row['failed_at'])} on {place}, attempts {row['attempts']}")
    causes = [text for text in (row["exception"] or row["reason"], row["error"]) if text]
    print(f"error    {': '.join(causes) or 'it does not say'}")
    if row["sent_back_by"]:
        print(f"again    already sent back by redrive {row['sent_back_by']}; the log keeps it")
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


_VIEWS: Final = {"summary": summary, "list": _list, "show": _show, "export": export}
