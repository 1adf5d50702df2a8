"""`shinar config show`: every setting, its value, and where the value came from."""

from __future__ import annotations

import argparse
from typing import Any

from shinar.cli.support.output import add_output, emit, settings_of
from shinar.cli.support.settings import SETTINGS

EXAMPLES = """examples:
  shinar config show --origin
  SHINAR_CONCURRENCY=8 shinar config show --json
A setting comes from its flag, else from SHINAR_<NAME> (or the file that SHINAR_<NAME>_FILE names), else from
shinar.toml in the working directory (or the file that SHINAR_CONFIG names), else it has its default.
"""


def register(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "config",
        help="print settings and where they come from",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser(
        "show",
        help="print every setting",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.add_argument("--origin", action="store_true", help="also print where each value comes from")
    add_output(show)
    show.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(argparse.Namespace())
    for name in SETTINGS:
        value, origin = settings.shown(name), settings.origin(name)
        if args.json:
            emit({"setting": name, "value": value, "origin": origin})
        elif args.origin:
            print(f"{name:<20} {'-' if value == '' else value!s:<30} {origin}")
        else:
            print(f"{name:<20} {'-' if value == '' else value}")
    return 0
