"""The views of dead letters on Spark, over a lake's tables or a queue too long for one process.

Every task counts with the very same code as `summarise`, and only counters come back: neither the
driver nor the JVM holds bodies, however many there are. Nothing here settles anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from shinar.brokers import Delivery
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.letters.letter import Letter, read
from shinar.redrive.letters.partitions import files, spooled
from shinar.redrive.letters.summary import Summary, summarise
from shinar.redrive.letters.table_rows import COLUMNS, TRAITS, delivery_of
from shinar.redrive.select.selection import Chosen
from shinar.settlement.traits import Traits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Files that one job counts: two for each task that runs at a time, and at least so many.
FEWEST_FILES: Final = 8
_SHAPE: Final = (
    "body binary, queue string, received_at timestamp, properties map<string,string>, position string, "
    "headers map<string,string>, key binary, died_at timestamp, id string"
)

Batches = Iterator[pa.RecordBatch]


def summarise_lake(spark: SparkSession, lake: Any, *, ledger: str = "", **choice: Any) -> Summary:
    """`lake` is a store of shinar.pipeline; `choice` are the arguments of `Chosen`. With the location of a
    `ledger`, which every task must reach, what died again is counted too."""

    def count(batches: Batches) -> Batches:
        found = (letter for batch in batches for letter in _letters(batch))
        yield _packed(_counted(found, choice, ledger))

    return _merged(_rows(spark, lake).mapInArrow(count, "part binary"))


def letters_of_lake(
    spark: SparkSession, lake: Any, *, limit: int | None = None, **choice: Any
) -> Iterator[Letter]:
    """The chosen dead letters of the tables: with a `limit` the oldest of them, oldest first; otherwise all,
    in no order, a partition at a time."""
    from pyspark.sql import functions as F

    died = F.coalesce("dl_failed_at", "received_at").alias("died_at")
    rows = _rows(spark, lake).select(*COLUMNS, died, "id")
    found = rows.mapInArrow(partial(_chosen_rows, choice), _SHAPE)
    if limit is not None:
        found = found.orderBy("died_at", "id", "position").limit(limit)
    for row in found.select(*COLUMNS).toLocalIterator():
        yield _letter(*row)


def summarise_spooled(
    spark: SparkSession,
    deliveries: Iterable[Delivery],
    traits: Traits,
    *,
    ledger: str = "",
    bounded: bool = True,
    **choice: Any,
) -> Summary:
    """Deliveries of a live queue, written to files by this process and counted by Spark meanwhile.

    `bounded` waits for the counting before the disk holds more than two rounds; a reader that must not
    be kept waiting (leases are running) sets it to False. Files are in the temporary folder, which a
    cluster must share."""
    most = max(FEWEST_FILES, 2 * spark.sparkContext.defaultParallelism)
    summary = Summary()
    with (
        tempfile.TemporaryDirectory(prefix="shinar-letters-") as folder,
        ThreadPoolExecutor(1, "shinar-letters") as pool,
    ):
        waiting: list[Future[Summary]] = []
        for paths in _rounds(files(Path(folder), deliveries, traits), most):
            if bounded and waiting:
                summary.merge(waiting.pop(0).result())
            waiting.append(pool.submit(_count_files, spark, paths, traits, choice, ledger))
        for future in waiting:
            summary.merge(future.result())
    return summary


def _count_files(
    spark: SparkSession, paths: list[Path], traits: Traits, choice: dict[str, Any], ledger: str
) -> Summary:
    names = [str(path) for path in paths]

    def count(batches: Batches) -> Batches:
        for batch in batches:
            mine = [names[at] for at in batch.column(0).to_pylist()]
            found = (read(delivery, traits) for name in mine for delivery in spooled(name))
            yield _packed(_counted(found, choice, ledger))

    tasks = spark.range(0, len(names), 1, len(names))
    try:
        return _merged(tasks.mapInArrow(count, "part binary"))
    finally:
        for path in paths:
            path.unlink()


def _rounds(paths: Iterable[Path], most: int) -> Iterator[list[Path]]:
    page: list[Path] = []
    for path in paths:
        page.append(path)
        if len(page) >= most:
            yield page
            page = []
    if page:
        yield page


# -- inside the tasks


def _counted(letters: Iterable[Letter], choice: dict[str, Any], ledger: str) -> Summary:
    if not ledger:
        return summarise(letters, Chosen(**choice))
    opened = Ledger(ledger)
    try:
        return summarise(letters, Chosen(**choice), opened.generations)
    finally:
        opened.close()


def _chosen_rows(choice: dict[str, Any], batches: Batches) -> Batches:
    chosen = Chosen(**choice)
    for batch in batches:
        yield batch.filter(pa.array([chosen(letter) for letter in _letters(batch)], pa.bool_()))


def _letters(batch: pa.RecordBatch) -> Iterator[Letter]:
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    for row in zip(*columns, strict=True):
        yield _letter(*row)


def _letter(*row: Any) -> Letter:
    return read(delivery_of(*row), TRAITS)


# -- parts


def _rows(spark: SparkSession, lake: Any) -> DataFrame:
    from shinar.pipeline.lake.store import read as read_table

    return read_table(spark, lake, "dead_letters")


def _packed(summary: Summary) -> pa.RecordBatch:
    part = pa.array([msgspec.msgpack.encode(summary)], pa.binary())
    return pa.RecordBatch.from_arrays([part], names=["part"])


def _merged(parts: DataFrame) -> Summary:
    summary = Summary()
    decode: Callable[[bytes], Summary] = msgspec.msgpack.Decoder(Summary).decode
    for row in parts.collect():
        summary.merge(decode(bytes(row["part"])))
    return summary
