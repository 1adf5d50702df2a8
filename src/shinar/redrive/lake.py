"""A lake's dead letters as the source of a redrive: a log that is only read, and the ledger remembers.

Read with pyarrow, file by file; no Spark session is started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from shinar.brokers import BrokerUrl, Delivery, Depth, Outgoing
from shinar.brokers.contract import Lapsed
from shinar.errors import ConfigError, MissingExtra, Unsupported
from shinar.redrive.letters.table_rows import COLUMNS, TRAITS, delivery_of
from shinar.settlement.traits import Traits

SCHEME: Final = "lake"
TABLES: Final = ("dead_letters", "quarantine")
#: Rows read at once.
_ROWS: Final = 1_000


def lake_url(folder: str, table: str = TABLES[0]) -> BrokerUrl:
    """How the ledger names a table of a lake: lake:///srv/lake?queue=dead_letters."""
    if table not in TABLES:
        raise ConfigError(f"{table!r} is not one of {', '.join(TABLES)}", setting="--table")
    return BrokerUrl(SCHEME, path=str(Path(folder).absolute()), queue=table)


class RowNames:
    """Names rows so that the ledger knows them again, however the table's files are rewritten: by queue and
    position, and where the broker gave no position by the number among byte-identical rows. Which of those is
    which does not matter: they are the same message."""

    def __init__(self) -> None:
        self._met: Counter[bytes] = Counter()

    def __call__(self, delivery: Delivery) -> str:
        if delivery.position:
            return f"{delivery.queue} {delivery.position}"
        digest = blake2b(delivery.body, digest_size=16).digest()
        self._met[digest] += 1
        return f"{delivery.queue} #{self._met[digest]}"


class LakeSource:
    """Fulfils the broker contract as far as a redrive reads from it."""

    def __init__(self, url: BrokerUrl) -> None:
        try:
            from shinar.pipeline.lake.store import existing_store
        except ModuleNotFoundError as exc:
            raise MissingExtra("a lake", str(exc.name), "spark") from None
        self._store = existing_store(url.path)

    @property
    def traits(self) -> Traits:
        return TRAITS

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        """The rows of the table, in the order in which the pipeline wrote them."""
        import pyarrow.dataset as ds

        files = self._store.files(queue)
        if not files:
            return
        seen = 0
        name = RowNames()
        table = ds.dataset(files, format="parquet")
        for batch in table.to_batches(columns=list(COLUMNS), batch_size=_ROWS):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            for row in zip(*columns, strict=True):
                if limit is not None and seen >= limit:
                    return
                seen += 1
                delivery = delivery_of(*row)
                yield msgspec.structs.replace(delivery, position=name(delivery))

    def depth(self, queue: str) -> Depth:
        return Depth()

    def close(self) -> None:
        """Nothing is open between two reads."""

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self._refuse("be published to")

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        self._refuse("reserve")

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        self._refuse("acknowledge")

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0) -> Lapsed:
        self._refuse("release")

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        self._refuse("move")

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        self._refuse("extend leases")

    def _refuse(self, what: str) -> NoReturn:
        raise Unsupported("lake", what, "name a broker with --to")
