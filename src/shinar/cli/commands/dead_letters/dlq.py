"""`shinar dlq summary|list|show|export|import`: its flags, and which module has which view."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Final

from shinar.cli.support.dead_letters import WHERE_HELP, add_choice
from shinar.cli.support.output import add_output, add_settings

EXAMPLES: Final = f"""examples:
  shinar dlq summary redis://localhost/orders.dlq
  shinar dlq summary sqs://eu-west-1/orders-dlq --reserve --since 24h
  shinar dlq list amqp://localhost/orders.dlq --reserve --where "lang = 'php'" --limit 20
  shinar dlq show kafka://localhost/orders.dlq --fingerprint 3f9a --limit 5
  shinar dlq export phpmq://localhost/orders.dlq --out dead.jsonl
  shinar dlq import dead.jsonl --to redis://localhost/orders.dlq
  shinar dlq summary --lake lake --new-since 2026-11-15T02:00

{WHERE_HELP}
Nothing is consumed. Some brokers cannot be browsed (tail says so): with --reserve every message is reserved,
read and released again, which counts as a delivery.
"""
#: view -> module with run(args)
VIEWS: Final = {
    "summary": "summary",
    "list": "listing",
    "show": "listing",
    "export": "export",
    "import": "importing",
}
ENGINES: Final = ("auto", "python", "spark")


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "dlq",
        help="see why messages died",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("view", choices=list(VIEWS), help="what to do")
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL|FILE",
        help="the dead-letter queue (or SHINAR_URL); for import, the file",
    )
    add_choice(parser)
    parser.add_argument("--new-since", default="", help="summary: mark kinds that first appeared since then")
    parser.add_argument(
        "--out", default="-", help="export: file to write, .jsonl or .parquet (default stdout, as JSON lines)"
    )
    parser.add_argument(
        "--to", default="", metavar="URL", help="import: the broker, and the queue if not the old one"
    )
    parser.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="import: leave out the first N, which are there already",
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
    view = importlib.import_module(f"shinar.cli.commands.dead_letters.{VIEWS[args.view]}")
    code: int = view.run(args)
    return code
