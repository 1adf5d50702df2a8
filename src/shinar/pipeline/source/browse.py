"""The messages of a live queue as validated rows, consuming nothing. Uses the broker contract only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

import pyarrow as pa

from shinar.pipeline.rows.delivery_rows import rows_of
from shinar.pipeline.source.filters import PushedFilter, passing
from shinar.pipeline.source.options import BrowseOptions

#: Rows judged and handed on together.
ROWS: Final = 2_000


def browsed_rows(
    queue: str, options: BrowseOptions, tests: tuple[PushedFilter, ...]
) -> Iterator[pa.RecordBatch]:
    broker = options.url.connect()
    try:
        found = iter(broker.browse(queue, options.limit))
        while deliveries := list(islice(found, ROWS)):
            batch = passing(rows_of(deliveries, broker.traits, options.include_headers), tests)
            if batch.num_rows:
                yield batch
    finally:
        broker.close()
