"""What the commands over a lake share: the store, a session, spans of time, rows as a table or as JSON."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.output import add_output, add_settings, emit, settings_of
from shinar.clock import SYSTEM
from shinar.errors import ConfigError, MissingExtra, SparkFailed
from shinar.printable import printable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shinar.cli.support.settings import Settings
    from shinar.pipeline.lake.store import TableStore

_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Dates go no further back than the year 1.
_LONGEST_S: Final = 1000 * 365 * 86_400
#: Characters of a cell on a terminal.
_CELL_CHARS: Final = 60
#: Columns left out of the terminal's table; --json has them.
_WIDE: Final = frozenset({"sample_error", "langs", "queues", "broker", "mean_attempts", "choices"})


def add_question(
    commands: Any, name: str, help_text: str, example: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The parser of a command that asks a lake something, with the flags all of them have."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(parser, "lake")
    add_output(parser)
    parser.add_argument("--limit", type=_least_one, default=50, help="rows shown at most (default 50)")
    add_spark(parser)
    parser.set_defaults(run=run)
    return parser


def add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", help="Spark master (default local[*])")
    parser.add_argument("--debug", action="store_true", help="show what Spark and Java say, and tracebacks")


def add_since(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", help="mark what is new or gone since: 24h, 7d or a date and time (UTC)")


def _least_one(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class Lake:
    """A store and a session, and its tables by name."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.store: TableStore = lake_store(settings_of(args))
        self.spark: SparkSession = spark_session(args.master, debug=args.debug)

    def table(self, name: str) -> DataFrame:
        from shinar.pipeline.lake.store import read

        return read(self.spark, self.store, name)


def lake_store(settings: Settings) -> Any:
    if not settings["lake"]:
        raise ConfigError("name the folder of the tables with --lake", setting="lake")
    with spark_extra():
        from shinar.pipeline.lake.store import existing_store
    return existing_store(settings["lake"])


@contextmanager
def spark_extra() -> Iterator[None]:
    """Around imports that need shinar[spark]."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise MissingExtra("the pipeline", str(exc.name), "spark") from None


def spark_session(
    master: str | None = None, conf: dict[str, Any] | None = None, *, debug: bool = False
) -> Any:
    """A session that says nothing unless asked, with a missing extra or a missing Java as one sentence."""
    with spark_extra():
        from shinar.cli.support.quiet_jvm import quiet_jvm
        from shinar.pipeline.session import session
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    texts = {name: str(value) for name, value in (conf or {}).items()}
    try:
        with quiet_jvm(debug):
            spark = session(master or "local[*]", conf=texts)
    except PySparkRuntimeError as exc:
        raise ConfigError(f"Spark does not start ({exc}); it needs Java 17: try `shinar doctor`") from None
    except Py4JError as exc:
        where = f" on --master {master}" if master else ""
        cause = next((line for line in str(exc).splitlines() if line.startswith(": ")), ": unknown")[2:]
        raise ConfigError(
            f"Spark does not start{where} ({cause[:200]}); is that master reachable? Try `shinar doctor`"
        ) from None
    # What ends a job is raised here as well, and told in one sentence instead of pages of Java.
    spark.sparkContext.setLogLevel("WARN" if debug else "OFF")
    return spark


@contextmanager
def one_sentence(debug: bool) -> Iterator[None]:
    """An exception of Spark's own as one sentence; whole with --debug."""
    with spark_extra():
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from shinar.pipeline.spark_errors import cause_of
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        if debug:
            raise
        raise SparkFailed(f"Spark stopped: {printable(cause_of(exc), 400)}; --debug shows the rest") from None


def span_s(text: str, setting: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a length of time; write 30m, 12h or 7d", setting=setting)
    seconds = float(match[1]) * _SPANS[match[2]]
    if seconds > _LONGEST_S:
        raise ConfigError(f"{text} is more than a thousand years", setting=setting)
    return seconds


def moment(text: str | None) -> datetime | None:
    """`24h` ago, or a date (UTC unless it says otherwise)."""
    if not text:
        return None
    if text[-1:] in "smhdw" and text[:-1].replace(".", "").isdigit():
        return SYSTEM.utc_now() - timedelta(seconds=span_s(text, "since"))
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is neither a span (24h, 7d) nor a date", setting="since") from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def show(args: argparse.Namespace, frame: DataFrame, empty: str, *, findings: bool = False) -> int:
    """Rows as JSON lines or as a table; with `findings` any row makes the exit code 1."""
    with one_sentence(args.debug):
        rows = [row.asDict(recursive=True) for row in frame.limit(args.limit).collect()]
    if args.json:
        for row in rows:
            emit({name: _plain(value) for name, value in row.items()})
    elif not rows:
        print(empty)
    else:
        names = [name for name in rows[0] if name not in _WIDE]
        print_table(names, [[_cell(row[name]) for name in names] for row in rows])
        if len(rows) == args.limit:
            print(f"the first {args.limit} rows; --limit shows more", file=sys.stderr)
    return 1 if findings and rows else 0


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else printable(str(_plain(value)), _CELL_CHARS)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Plain columns; what looks like a number goes to the right. Cells are made safe for a terminal."""
    if not rows:
        return
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    right = [all(re.fullmatch(r"[-\d,.% ]*", row[i]) for row in rows) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        print("  ".join(cells).rstrip())
    print()
