"""`shinar config show`: every setting, its value, and where the value came from."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.output import add_output, emit, settings_of
from shinar.cli.support.settings import SETTINGS


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "config", help="show settings and where they come from"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print every setting")
    show.add_argument("--origin", action="store_true", help="also where each value came from")
    add_output(show)
    show.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(argparse.Namespace())
    for name in SETTINGS:
        row = {"setting": name, "value": settings.shown(name), "origin": settings.origin(name)}
        if args.json:
            emit(row)
        elif args.origin:
            print(f"{name:<20} {row['value'] or '-':<30} {row['origin']}")
        else:
            print(f"{name:<20} {row['value'] or '-'}")
    return 0
