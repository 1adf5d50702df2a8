"""`shinar report`: one HTML page from the tables."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.lake import add_question, add_since, lake_store, moment, one_sentence, spark_session
from shinar.cli.support.output import add_settings, emit, settings_of


def register(commands: Any) -> None:
    parser = add_question(
        commands,
        "report",
        "write one HTML page from the tables",
        "shinar report --lake lake --out report.html",
        run,
    )
    add_since(parser)
    parser.add_argument("--out", default="report.html", help="file to write (default report.html)")
    add_settings(parser, "registry")
    parser.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="FIELD",
        help="mask this field's values in samples, beside e-mail addresses and fields marked sensitive; "
        "may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    settings, since = settings_of(args), moment(args.since)
    lake_store(settings)
    mask = {*args.mask, *_marked(settings["registry"])}
    spark = spark_session(args.master, debug=args.debug)
    from shinar.pipeline.report.write import write_report

    with one_sentence(args.debug):
        path = write_report(spark, settings["lake"], args.out, since=since, mask=mask)
    if args.json:
        emit({"report": str(path)})
    else:
        print(f"written: {path}")
    return 0


def _marked(registry: str) -> set[str]:
    """Names of the fields that the schemas of a registry mark as sensitive."""
    if not registry:
        return set()
    from shinar.pipeline.report.mask import marked_fields
    from shinar.schemas import Registry

    return marked_fields(entry.schema for entry in Registry.load(registry))
