"""`shinar dlq export`: exact bodies and what travelled beside them, as JSON lines or Parquet."""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from shinar.cli.support.dead_letters import looked_at, plain
from shinar.cli.support.output import Progress, as_line
from shinar.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from shinar.redrive import Letter

#: Rows of an exported Parquet file written at once.
_ROW_GROUP: Final = 2_000


def export(args: argparse.Namespace) -> int:
    with looked_at(args, args.limit) as (found, total):
        rows = (_exported(letter) for letter in found)
        progress = Progress("exported", total, quiet=args.quiet)
        try:
            if args.out.endswith(".parquet"):
                _write_parquet(args.out, rows, progress)
            elif args.out == "-":
                _write_lines(sys.stdout, rows, progress)
            else:
                with Path(args.out).open("w", encoding="utf-8") as out:
                    _write_lines(out, rows, progress)
        except BrokenPipeError:
            raise
        except OSError as exc:
            if args.out == "-":
                raise
            raise ConfigError(f"{args.out} cannot be written: {exc.strerror}", setting="--out") from None
        progress.done()
        if not args.quiet:
            print(f"{progress.count:,} dead letter{'' if progress.count == 1 else 's'}", file=sys.stderr)
    return 0


def _exported(letter: Letter) -> dict[str, Any]:
    """The exact body and what travelled beside it, enough to publish the message again."""
    delivery = letter.delivery
    row: dict[str, Any] = {
        "queue": delivery.queue,
        "position": delivery.position,
        "headers": dict(delivery.headers),
        "properties": {name: plain(value) for name, value in delivery.properties.items()},
        "key": None if delivery.key is None else base64.b64encode(delivery.key).decode(),
        "fingerprint": letter.fingerprint,
    }
    try:
        return row | {"body": delivery.body.decode("utf-8"), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return row | {"body": base64.b64encode(delivery.body).decode(), "body_encoding": "base64"}


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
