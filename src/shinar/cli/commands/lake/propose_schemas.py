"""`shinar propose-schemas`: payload schemas proposed from traffic."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from shinar.cli.support.lake import Lake, add_question, one_sentence
from shinar.cli.support.output import emit
from shinar.errors import ConfigError
from shinar.printable import printable, printable_lines


def register(commands: Any) -> None:
    parser = add_question(
        commands,
        "propose-schemas",
        "propose payload schemas from traffic",
        "shinar propose-schemas --lake lake --out dir",
        run,
    )
    parser.add_argument("--out", help="folder for registry.json and the schemas; nothing is written without")
    parser.add_argument("--urn", help="only this URN")


def run(args: argparse.Namespace) -> int:
    lake = Lake(args)
    import msgspec

    from shinar.pipeline.analysis.proposals import propose, write_registry

    messages = lake.table("messages")
    with one_sentence(args.debug):
        found = propose(messages.where(messages["urn"] == args.urn) if args.urn else messages)
    for proposal in found[: args.limit]:
        if args.json:
            emit(msgspec.to_builtins(proposal))
            continue
        urn = printable(proposal.urn)
        print(f"{urn}: {proposal.messages:,} messages, confidence {proposal.confidence:.2f}")
        for note in proposal.notes:
            print(f"  {printable(note)}")
        if not args.out:
            text = msgspec.json.format(msgspec.json.encode(proposal.schema), indent=2).decode()
            print(printable_lines(text))
    if args.out:
        try:
            path = write_registry(found, Path(args.out))
        except FileExistsError as exc:
            raise ConfigError(
                f"{exc.filename} exists already; choose another folder", setting="out"
            ) from None
        print(f"{len(found)} schemas written: {path}", file=sys.stderr)
    return 0
