"""Streams from brokers that can be replayed: real offsets, no segments, nothing acknowledged.

An offset is {queue: {partition: next offset}}. The group's position is stored as well, so that lag tools see
progress, but it is never read back: the checkpoint is the authority. Uses `registry.Replay` only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from shinar.brokers.contract import Delivery
from shinar.brokers.registry import replay
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, ShinarError, StoreError
from shinar.pipeline.rows.delivery_rows import rows_of
from shinar.pipeline.source.options import StreamOptions

log: Final = logging.getLogger("shinar.pipeline")

#: {queue: {partition (as text, it is JSON): next offset}}
Offset = dict[str, dict[str, int]]
#: {queue: {partition: (oldest offset, next offset)}}
Bounds = dict[str, dict[int, tuple[int, int]]]

#: The cluster is asked for its offsets at most this often.
POLL_S: Final = 0.5
#: Rows judged and handed on together.
ROWS: Final = 4_000
#: What startingOffsets may say instead of a number, as Spark's own source of a log has it.
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """What one task reads: [start, end) of one partition."""

    queue: str
    partition: int
    start: int
    end: int


class OffsetPlanner:
    def __init__(self, options: StreamOptions, clock: Clock = SYSTEM) -> None:
        if options.max_bytes is not None:
            raise ConfigError(
                "offsets do not tell sizes; use maxRecordsPerTrigger", setting="maxBytesPerTrigger"
            )
        self._options = options
        self._clock = clock
        self._url = options.url.url()
        self._log = replay(self._url)
        self._bounds: Bounds = {}
        self._looked_s: float | None = None
        self._target: Bounds | None = None

    def initial_offset(self) -> Offset:
        return starting(self._options.starting, self._look(fresh=True))

    def latest_offset(self, start: Offset, max_rows: int | None, max_bytes: int | None = None) -> Offset:
        bounds = self._target or self._look()
        for queue in start.keys() & bounds.keys():
            for name in start[queue].keys() - set(map(str, bounds[queue])):
                self._lost(f"{queue}[{name}] does not exist any more, but the checkpoint names it")
        left = {
            (queue, number): max(0, high - self._from(start, queue, number, (low, high)))
            for queue, parts in bounds.items()
            for number, (low, high) in parts.items()
        }
        total = sum(left.values())
        if total == 0:
            return start
        allowed = total if max_rows is None else min(total, max_rows)
        end: Offset = {}
        for (queue, number), rows in left.items():
            # At least one row each, so that no partition starves beside a busy one.
            step = min(rows, max(1, rows * allowed // total)) if rows else 0
            since = self._from(start, queue, number, bounds[queue][number])
            end.setdefault(queue, {})[str(number)] = since + step
        return end

    def prepare_available_now(self) -> None:
        self._target = self._look(fresh=True)

    def partitions(self, start: Offset, end: Offset) -> list[OffsetRange]:
        bounds = self._look()
        found: list[OffsetRange] = []
        for queue, parts in end.items():
            for name, until in parts.items():
                ends = bounds.get(queue, {}).get(int(name))
                if ends is None:
                    self._lost(f"{queue}[{name}] does not exist any more, but the checkpoint asks for it")
                    continue
                since = self._from(start, queue, int(name), ends)
                if until > ends[1]:
                    self._lost(f"{queue}[{name}] ends at {ends[1]}, but the checkpoint asks for {until}")
                    until = ends[1]
                if since < until:
                    found.append(OffsetRange(queue, int(name), since, until))
        return _split(found, self._options.min_partitions)

    def commit(self, end: Offset) -> None:
        for queue, parts in end.items():
            try:
                self._log.commit_group(
                    self._url, queue, {int(name): offset for name, offset in parts.items()}
                )
            except ShinarError as exc:
                log.warning("the group's position on %s was not stored: %s", queue, exc)

    def report_latest_offset(self) -> Offset:
        return {
            queue: {str(n): high for n, (_, high) in parts.items()} for queue, parts in self._bounds.items()
        }

    def close(self) -> None:
        """Nothing stays open between two questions."""

    def _from(self, start: Offset, queue: str, number: int, ends: tuple[int, int]) -> int:
        """Where to go on: a new partition from its beginning, any other where the checkpoint is."""
        low, high = ends
        since = start.get(queue, {}).get(str(number), low)
        if low <= since <= high:
            return since
        text = f"retention removed offsets {since} to {low} of {queue}[{number}]"
        if since > high:
            text = f"{queue}[{number}] ends at {high}, before the checkpoint's {since}; was it created anew?"
        self._lost(text)
        return low

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise StoreError(f"{text}; set failOnDataLoss=false to go on without those messages")
        log.warning("%s; going on without those messages (failOnDataLoss=false)", text)

    def _look(self, fresh: bool = False) -> Bounds:
        now_s = self._clock.monotonic_s()
        if fresh or self._looked_s is None or now_s - self._looked_s >= POLL_S:
            self._bounds = {queue: self._log.offsets(self._url, queue) for queue in self._options.queues}
            self._looked_s = now_s
        return self._bounds


def starting(text: str, bounds: Bounds) -> Offset:
    """`earliest`, `latest`, or JSON {queue: {partition: offset}} where -2 is earliest and -1 latest."""
    if text in ("earliest", "latest"):
        side = 0 if text == "earliest" else 1
        return {queue: {str(n): ends[side] for n, ends in parts.items()} for queue, parts in bounds.items()}
    try:
        given = json.loads(text)
        asked = {
            queue: {int(n): int(offset) for n, offset in parts.items()} for queue, parts in given.items()
        }
    except (ValueError, AttributeError, TypeError):
        advice = 'is neither earliest nor latest nor JSON such as {"orders": {"0": 42, "1": -2}}'
        raise ConfigError(advice, setting="startingOffsets") from None
    for queue, numbers in asked.items():
        for number, offset in numbers.items():
            low, high = bounds.get(queue, {}).get(number, (0, -1))
            if high < 0:
                raise ConfigError(f"there is no partition {number} of {queue!r}", setting="startingOffsets")
            if offset not in (EARLIEST, LATEST) and not low <= offset <= high:
                raise ConfigError(
                    f"{queue}[{number}] holds {low} to {high}, not {offset}", setting="startingOffsets"
                )
    found: Offset = {}
    for queue, parts in bounds.items():
        for number, (low, high) in parts.items():
            offset = asked.get(queue, {}).get(number, EARLIEST)
            found.setdefault(queue, {})[str(number)] = {EARLIEST: low, LATEST: high}.get(offset, offset)
    return found


def read_range(part: OffsetRange, options: StreamOptions) -> Iterator[pa.RecordBatch]:
    url = options.url.url()
    traits = options.url.traits()
    pending: list[Delivery] = []
    for deliveries in replay(url).read_range(url, part.queue, part.partition, part.start, part.end):
        pending += deliveries
        if len(pending) >= ROWS:
            yield rows_of(pending, traits, options.include_headers)
            pending = []
    if pending:
        yield rows_of(pending, traits, options.include_headers)


def _split(ranges: list[OffsetRange], least: int) -> list[OffsetRange]:
    """At least so many ranges, as far as there are rows: the longest are halved first."""
    found = list(ranges)
    while found and len(found) < least:
        longest = max(found, key=lambda part: part.end - part.start)
        if longest.end - longest.start < 2:
            break
        middle = (longest.start + longest.end) // 2
        found.remove(longest)
        found += [
            OffsetRange(longest.queue, longest.partition, longest.start, middle),
            OffsetRange(longest.queue, longest.partition, middle, longest.end),
        ]
    return found
