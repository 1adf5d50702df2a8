"""`shinar dlq import FILE --to URL`: publish what `dlq export` wrote, byte for byte, confirmed.

The whole file is checked before the first message is sent: a file that was cut off sends nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shinar.cli.support.dead_letters import plural
from shinar.cli.support.output import Progress, emit, settings_of, with_token
from shinar.errors import BrokerError, ConfigError, ContractError, MissingExtra

if TYPE_CHECKING:
    from shinar.brokers import Broker, BrokerUrl, Outgoing

#: Messages published at once.
_BATCH: Final = 200
Row = tuple[str, "Outgoing"]


def run(args: argparse.Namespace) -> int:
    from shinar.brokers import connect, parse

    if not args.url or not args.to:
        raise ConfigError("write shinar dlq import FILE --to URL", setting="--to")
    url = with_token(parse(args.to), settings_of(args))
    queue = args.queue or url.queue
    with _file(args.url) as path:
        count = _checked(path, url, queue)
        progress = Progress("imported", max(0, count - args.skip), quiet=args.quiet)
        broker = connect(url)
        try:
            _publish(broker, islice(_rows(path), args.skip, None), queue, progress, args.skip)
        finally:
            broker.close()
    progress.done()
    if args.json:
        emit({"read": count, "skipped": min(args.skip, count), "published": progress.count})
    elif not args.quiet:
        print(f"{plural(progress.count, 'dead letter')} imported, every one confirmed")
    return 0


@contextmanager
def _file(name: str) -> Iterator[Path]:
    """The file; stdin is copied to one first, since it is read twice."""
    if name != "-":
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no file {name}", setting="FILE")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="shinar-import-") as folder:
        path = Path(folder) / "stdin.jsonl"
        with path.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield path


def _checked(path: Path, url: BrokerUrl, queue: str) -> int:
    """How many rows the file has; an error names the first that cannot be sent, before any was."""
    from shinar.brokers import traits
    from shinar.redrive.eligibility import cannot_carry

    traits_of = cache(lambda name: traits(replace(url, queue=name)))
    count = 0
    for count, (origin, outgoing) in enumerate(_rows(path), 1):  # the last one is the answer
        if why := cannot_carry(outgoing.body, traits_of(queue or origin)):
            raise ConfigError(f"row {count}: {why}; nothing was sent", setting="FILE")
    return count


def _rows(path: Path) -> Iterator[Row]:
    from shinar.redrive.letters.exchange import imported

    parquet = path.suffix.lower() == ".parquet"
    found = _parquet(path) if parquet else _lines(path)
    number = 0
    while True:
        number += 1
        try:
            row = next(found, None)
            if row is None:
                return
            yield imported(row)
        except (ContractError, ValueError) as exc:
            what = "row" if parquet else "line"
            raise ConfigError(
                f"{what} {number} of {path.name} is damaged or was not written by `dlq export`: {exc}; "
                "nothing was sent",
                setting="FILE",
            ) from None


def _lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line.decode("utf-8"))


def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise MissingExtra("Parquet", "pyarrow", "spark") from None
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    yield row | {"headers": dict(row.get("headers") or ())}
    except (pa.ArrowInvalid, OSError) as exc:
        raise ValueError(str(exc)) from None


def _publish(broker: Broker, rows: Iterator[Row], queue: str, progress: Progress, skipped: int) -> None:
    """In the order of the file, so that what is confirmed is always its beginning."""
    for target, group in groupby(rows, lambda row: queue or row[0]):
        while batch := [outgoing for _, outgoing in islice(group, _BATCH)]:
            try:
                broker.publish(target, batch)
            except BrokerError:
                print(
                    f"{plural(progress.count, 'dead letter')} confirmed before this; some of the next "
                    f"{len(batch)} may have arrived. Continue with --skip {skipped + progress.count}",
                    file=sys.stderr,
                )
                raise
            progress.add(len(batch))
