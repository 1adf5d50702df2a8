"""A stream from the log that a broker keeps in its folder: positions are offsets, nothing is acknowledged.

An offset is {"position": next position}. Uses `registry.FolderLog` only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shinar.clock import SYSTEM, Clock
from shinar.errors import StoreError
from shinar.pipeline.rows.validate import judged_batch
from shinar.pipeline.source.archive import LOG_ROWS, open_log, read_log_range
from shinar.pipeline.source.options import LogOptions

log: Final = logging.getLogger("shinar.pipeline")

#: The file is asked for its end at most this often.
POLL_S: Final = 0.2


class LogPlanner:
    def __init__(self, options: LogOptions, clock: Clock = SYSTEM) -> None:
        self._options = options
        self._clock = clock
        self._folder = Path(options.path)
        self._log = open_log(options.path)
        self._bounds = (0, 0)
        self._looked_s: float | None = None
        self._target: int | None = None

    def initial_offset(self) -> dict[str, Any]:
        first, end = self._look()
        return {"position": end if self._options.latest else first}

    def latest_offset(
        self, start: dict[str, Any], max_rows: int | None, max_bytes: int | None = None
    ) -> dict[str, Any]:
        since = self._from(start["position"])
        end = self._look()[1] if self._target is None else self._target
        end = end if max_rows is None else min(end, since + max_rows)
        return {"position": max(end, since)}

    def prepare_available_now(self) -> None:
        self._target = self._look()[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
        since, until = self._from(start["position"]), end["position"]
        last = self._look()[1]
        if until > last:
            self._lost(f"the log ends at {last}, but the checkpoint asks for positions up to {until}")
            until = last
        step = max(1, min(LOG_ROWS, -(-(until - since) // max(self._options.min_partitions, 1))))
        return [(at, min(at + step, until)) for at in range(since, until, step)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to remove: the log has its own retention."""

    def report_latest_offset(self) -> dict[str, Any]:
        return {"position": self._bounds[1]}

    def close(self) -> None:
        """Nothing stays open between two questions."""

    def _from(self, position: int) -> int:
        first, end = self._look()
        if first <= position <= end:
            return position
        text = f"retention removed positions {position} to {first} from the log"
        if position > end:
            text = f"the log ends at {end}, before the checkpoint's {position}; is this another broker?"
        self._lost(text)
        return first

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise StoreError(f"{text}; set failOnDataLoss=false to go on without those messages")
        log.warning("%s; going on without those messages (failOnDataLoss=false)", text)

    def _look(self) -> tuple[int, int]:
        now_s = self._clock.monotonic_s()
        if self._looked_s is None or now_s - self._looked_s >= POLL_S:
            self._bounds = self._log.bounds(self._folder)
            self._looked_s = now_s
        return self._bounds


def read_log(part: tuple[int, int], options: LogOptions) -> Iterator[pa.RecordBatch]:
    for batch in read_log_range(options.path, part[0], part[1], options.queues):
        yield judged_batch(batch)
