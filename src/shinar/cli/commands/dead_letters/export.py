"""`shinar dlq export`: exact bodies and what travelled beside them, as JSON lines or Parquet."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

from shinar.cli.support.dead_letters import plural, selected
from shinar.cli.support.output import Progress, as_line
from shinar.errors import ConfigError, MissingExtra

#: Rows of an exported Parquet file written at once.
_ROW_GROUP: Final = 2_000
#: Endings of a file that say JSON lines.
_LINES: Final = (".jsonl", ".ndjson", ".json")
_PARQUET: Final = ".parquet"


def run(args: argparse.Namespace) -> int:
    _require_format(args.out)
    from shinar.redrive.letters.exchange import exported

    with selected(args, args.limit) as (found, total):
        rows = (exported(letter) for letter in found)
        progress = Progress("exported", total, quiet=args.quiet)
        try:
            _write(args.out, rows, progress)
        except BrokenPipeError:
            raise
        except OSError as exc:
            if args.out == "-":
                raise
            raise ConfigError(f"{args.out} cannot be written: {exc.strerror}", setting="--out") from None
        progress.done()
        if not args.quiet:
            print(f"{plural(progress.count, 'dead letter')} exported", file=sys.stderr)
    return 0


def _require_format(out: str) -> None:
    """A .csv full of JSON would be found out much later, by somebody else."""
    ending = Path(out).suffix.lower()
    if out != "-" and ending and ending not in (*_LINES, _PARQUET):
        raise ConfigError(f"cannot write {ending} files; use .jsonl or .parquet", setting="--out")


def _write(out: str, rows: Iterator[dict[str, Any]], progress: Progress) -> None:
    if out.lower().endswith(_PARQUET):
        _write_parquet(out, rows, progress)
    elif out == "-":
        _write_lines(sys.stdout, rows, progress)
    else:
        with Path(out).open("w", encoding="utf-8") as file:
            _write_lines(file, rows, progress)


def _write_lines(out: TextIO, rows: Iterator[dict[str, Any]], progress: Progress) -> None:
    for row in rows:
        out.write(as_line(row, out.encoding) + "\n")
        progress.add()


def _write_parquet(path: str, rows: Iterator[dict[str, Any]], progress: Progress) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingExtra("Parquet", "pyarrow", "spark") from None
    from shinar.redrive.letters.exchange import MAPS, TEXTS

    pairs = pa.map_(pa.string(), pa.string())
    shape = pa.schema([*((name, pa.string()) for name in TEXTS), *((name, pairs) for name in MAPS)])
    with pq.ParquetWriter(path, shape) as writer:
        page: list[dict[str, Any]] = []
        for row in rows:
            page.append(row | {name: list(row[name].items()) for name in MAPS})
            progress.add()
            if len(page) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_pylist(page, shape))
                page = []
        writer.write_table(pa.Table.from_pylist(page, shape))
