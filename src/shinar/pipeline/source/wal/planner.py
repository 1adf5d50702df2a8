"""The driver's half of the write-ahead log: says when there is another batch, opens it, and removes it.

The offset holds the batch's number and its partitions, so that a replay plans the same tasks; an epoch, made
when a checkpoint begins, keeps a new checkpoint away from old segments. Uses the broker contract only, and
must not know Spark.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from shinar.brokers.contract import Broker, Depth
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, ShinarError, StoreError
from shinar.pipeline.source.options import StreamOptions
from shinar.pipeline.source.wal.capture import (
    PATIENCE_S,
    CapturePartition,
    record_segment,
    release_attempt,
    settle_segment,
)
from shinar.pipeline.source.wal.segments import Landing, SegmentRef, row_count
from shinar.pipeline.source.wal.unsettled import UnsettledLog

log: Final = logging.getLogger("shinar.pipeline")

Offset = dict[str, Any]
#: (queue, rows at most, bytes at most)
PlannedPartition = tuple[str, int, int | None]

#: Spark asks for the latest offset every few milliseconds; the broker is asked this often.
POLL_S: Final = 0.2
#: A broker that cannot count is tried this often while it had nothing.
BLIND_POLL_S: Final = 1.0
#: A task is worth starting for this many rows.
ROWS_PER_TASK: Final = 2_000
#: On top of the lease, for the broker to notice that it ended.
LEASE_MARGIN_S: Final = 5.0
#: Longest wait for messages a dead consumer holds, where leases end with the connection.
UNLEASED_WAIT_S: Final = 10.0

START: Final[Offset] = {"stream": "", "epoch": "", "batch": 0, "partitions": []}


class WalPlanner:
    """State of one run of a query, in the process beside the driver. Its methods are Spark's own hooks."""

    def __init__(self, options: StreamOptions, clock: Clock = SYSTEM) -> None:
        self._options = options
        self._clock = clock
        self._watch = DepthWatch(options, clock)
        self._landing: Landing | None = None
        #: With Trigger.AvailableNow: messages still to take, per queue.
        self._target: dict[str, int] | None = None
        self._last_batch = -1
        self._planned = False
        #: For a checkpoint that has none yet.
        self._epoch = uuid.uuid4().hex[:16]

    # -- what Spark asks

    def initial_offset(self) -> Offset:
        return dict(START)

    def latest_offset(self, start: Offset, max_rows: int | None, max_bytes: int | None) -> Offset:
        epoch = start["epoch"] or self._epoch
        landing = self._at(start, epoch, start["batch"])
        if start["batch"] != self._last_batch:
            self._count(landing, start)
            self._last_batch = start["batch"]
            self._watch.forget()
        wanted = self._wanted(landing, start["batch"])
        if not any(wanted.values()):
            return start
        partitions = plan_partitions(
            wanted, max_rows, max_bytes, self._options.min_partitions or (os.cpu_count() or 1)
        )
        # Before any offset names it: a landing without this mark was lost.
        landing.begin()
        self._planned = True
        return {
            "stream": self._options.stream_id,
            "epoch": epoch,
            "batch": start["batch"] + 1,
            "partitions": partitions,
        }

    def prepare_available_now(self) -> None:
        """Trigger.AvailableNow: what is there now, including messages that dead consumers still hold."""
        depths = self._watch.look(patient=False)
        self._target = {queue: _known(depth) for queue, depth in depths.items()}

    def partitions(self, start: Offset, end: Offset) -> list[CapturePartition]:
        if end["batch"] == start["batch"]:
            return []  # Spark begins with such a batch when the queue is empty
        if end["batch"] != start["batch"] + 1:
            raise StoreError(
                f"Spark asked for batches {start['batch'] + 1} to {end['batch']} at once, but each batch "
                "of a queue is captured by itself; restore the whole checkpoint, not parts of it"
            )
        landing = self._at(end, end["epoch"], start["batch"])
        self._check_landing(landing)
        batch, planned = end["batch"], partitions_of(end)
        segments = [landing.segment(batch, number) for number in range(len(planned))]
        if landing.committed() >= batch:
            segments = self._replayed(landing, batch, len(segments))
        else:
            landing.open(batch)
        return [
            CapturePartition(segment, queue, rows, most)
            for segment, (queue, rows, most) in zip(segments, planned, strict=bool(segments))
        ]

    def commit(self, end: Offset) -> None:
        """The sink has committed everything up to here."""
        if not end["epoch"]:
            return  # the empty batch at the beginning
        self._sweep(self._at(end, end["epoch"], end["batch"]), end["batch"])

    def report_latest_offset(self) -> Offset:
        """A queue has no offsets. Spark's progress events show what is in it instead, and how many
        redeliveries of the last week were recognised (no row) or possible (a row with a mark)."""
        lag = {queue: _shown(depth) for queue, depth in self._watch.last().items()}
        known, possible = self._unsettled(self._landing).counts() if self._landing else (0, 0)
        # `came_again` is the former name of `redelivered`; the next version drops it.
        return {"lag": lag, "redelivered": known, "possible_redeliveries": possible, "came_again": known}

    def close(self) -> None:
        self._watch.close()

    # -- how it is answered

    def _at(self, offset: Offset, epoch: str, done: int) -> Landing:
        """The segments of this epoch; batches up to `done` are in the sink."""
        stream = self._options.stream_id
        if offset["stream"] not in ("", stream):
            raise ConfigError(
                f"the checkpoint belongs to stream {offset['stream']!r}, not {stream!r}; "
                "use its name, or a new checkpoint",
                setting="streamId",
            )
        if self._landing is None:
            home = Path(self._options.landing, stream)
            _warn_of_orphans(home, epoch)
            self._landing = Landing(home / epoch)
            # The last batch of the run before never had its commit.
            self._sweep(self._landing, done)
        return self._landing

    def _unsettled(self, landing: Landing) -> UnsettledLog:
        return UnsettledLog(landing.segment(0, 0), self._options.url.traits(), self._clock)

    def _check_landing(self, landing: Landing) -> None:
        if landing.begun():
            return
        text = f"{self._options.landing} does not hold this checkpoint's batches: it was deleted or moved"
        if self._options.fail_on_data_loss:
            raise StoreError(
                f"{text}. Messages that were acknowledged and not yet written to the sink were only there. "
                "Put it back, or set failOnDataLoss=false to go on without them"
            )
        log.warning("%s; going on without them (failOnDataLoss=false)", text)
        landing.begin()

    def _sweep(self, landing: Landing, upto: int) -> None:
        for batch in [batch for batch in landing.open_batches() if batch <= upto]:
            try:
                self._settle(landing, batch)
            except ShinarError as exc:
                log.warning("batch %d is in the sink but not settled yet: %s", batch, exc)
                return  # the next commit, or the next start, tries again
            landing.close(batch, keep=self._options.keep_segments)
        self._unsettled(landing).forget_old()

    def _settle(self, landing: Landing, batch: int) -> None:
        segments = landing.segments(batch)
        left = landing.left_attempts(batch)
        unsettled = [segment for segment in segments if not segment.settled.exists()]
        if self._options.ack_mode == "never" or not (unsettled or left):
            return
        broker = self._watch.broker()
        if not broker.traits.portable_receipts:
            for segment in unsettled:
                record_segment(segment, broker.traits)
            return
        kind = self._options.url.receipt_type()
        for segment in unsettled:
            settle_segment(broker, segment, kind, self._clock)
        for path in left:
            release_attempt(broker, path, [segment.path for segment in segments], kind)

    def _replayed(self, landing: Landing, batch: int, count: int) -> list[SegmentRef]:
        kept = [landing.kept(batch, number) for number in range(count)]
        if all(path.exists() for path in kept):
            landing.restore(batch)
            return [landing.segment(batch, number) for number in range(count)]
        if self._options.fail_on_data_loss:
            raise StoreError(
                f"the checkpoint asks for batch {batch} again, but its segments were removed when it was "
                "committed; its rows are in the sink already. Set failOnDataLoss=false to skip it"
            )
        log.warning("the segments of batch %d were removed; skipping it (failOnDataLoss=false)", batch)
        return []

    def _count(self, landing: Landing, start: Offset) -> None:
        """Subtract what the last batch held from the target."""
        if self._target is None or self._last_batch < 0:
            return
        planned = partitions_of(start)
        for segment in landing.segments(start["batch"]):
            queue = planned[segment.partition][0]
            self._target[queue] = self._target.get(queue, 0) - row_count(segment.path)

    def _wanted(self, landing: Landing, batch: int) -> dict[str, int]:
        """Rows to plan per queue; all zero when there is nothing (more) to do."""
        depths: Mapping[str, Depth] = self._watch.look(patient=self._target is None)
        if self._target is not None:
            depths = self._await_reserved(depths)
        wanted = {}
        for queue, depth in depths.items():
            ready = depth.ready if depth.ready is not None else self._blind(landing, batch)
            left = ready if self._target is None else min(ready, self._limit(queue, depth))
            wanted[queue] = max(left, 0)
        return wanted

    def _limit(self, queue: str, depth: Depth) -> int:
        assert self._target is not None
        return self._target[queue] if depth.ready is not None else self._options.max_records

    def _blind(self, landing: Landing, batch: int) -> int:
        """A broker that cannot count: go on while the last batch held something, else look now and then."""
        held = any(row_count(segment.path) for segment in landing.segments(batch))
        if held or not self._planned or (self._target is None and self._watch.due(BLIND_POLL_S)):
            return self._options.max_records
        return 0

    def _await_reserved(self, depths: Mapping[str, Depth]) -> Mapping[str, Depth]:
        """Nothing is ready, but somebody holds messages that belong to this run: a dead attempt's come back
        when its lease ends. Without this wait AvailableNow would leave them to the next run."""
        assert self._target is not None
        lease_s = self._options.url.traits().lease_s
        until_s = self._clock.monotonic_s() + (lease_s + LEASE_MARGIN_S if lease_s else UNLEASED_WAIT_S)
        while not any(depth.ready and self._target[queue] > 0 for queue, depth in depths.items()):
            held = [queue for queue, depth in depths.items() if depth.reserved and self._target[queue] > 0]
            if not held or self._clock.monotonic_s() > until_s:
                break
            self._clock.sleep(POLL_S)
            self._watch.forget()
            depths = self._watch.look(patient=False)
        return depths


class DepthWatch:
    """Asks for the queues' depths, seldom, over one connection that is opened when needed and when lost."""

    def __init__(self, options: StreamOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._broker: Broker | None = None
        self._depths: dict[str, Depth] = {}
        self._looked_s: float | None = None
        self._well_s = clock.monotonic_s()
        self._blind_s = clock.monotonic_s()

    def broker(self) -> Broker:
        if self._broker is None:
            self._broker = self._options.url.connect_lasting()
        return self._broker

    def look(self, *, patient: bool) -> dict[str, Depth]:
        """The depths, at most POLL_S old. A broker that is away has nothing to give, for a while."""
        now_s = self._clock.monotonic_s()
        if self._looked_s is not None and now_s - self._looked_s < POLL_S:
            return self._depths
        try:
            self._depths = self._ask()
            self._well_s = now_s
        except ShinarError as exc:
            if not (patient and exc.transient) or now_s - self._well_s > PATIENCE_S:
                raise
            log.warning("the depth of the queue is not available: %s; trying again", exc)
            self._depths = {queue: Depth(ready=0) for queue in self._options.queues}
        self._looked_s = now_s
        return self._depths

    def last(self) -> Mapping[str, Depth]:
        return self._depths

    def forget(self) -> None:
        self._looked_s = None

    def due(self, seconds: float) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s - self._blind_s < seconds:
            return False
        self._blind_s = now_s
        return True

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _ask(self) -> dict[str, Depth]:
        try:
            return {queue: self.broker().depth(queue) for queue in self._options.queues}
        except ShinarError as exc:
            if not exc.transient:
                raise
            # An idle connection may have been cut: once more over a fresh one.
            self.close()
            return {queue: self.broker().depth(queue) for queue in self._options.queues}


def plan_partitions(
    wanted: Mapping[str, int], max_rows: int | None, max_bytes: int | None, tasks: int
) -> list[PlannedPartition]:
    """What is wanted, within the limits, spread over the tasks."""
    total = sum(wanted.values())
    allowed = total if max_rows is None else min(total, max_rows)
    planned: list[tuple[str, int]] = []
    for queue, rows in wanted.items():
        if rows == 0:
            continue
        mine = max(1, rows * allowed // total)
        count = max(1, min(tasks, -(-mine // ROWS_PER_TASK)))
        planned += [(queue, mine // count + (number < mine % count)) for number in range(count)]
    each = None if max_bytes is None else max(1, max_bytes // len(planned))
    return [(queue, rows, each) for queue, rows in planned]


def partitions_of(offset: Offset) -> Sequence[PlannedPartition]:
    """The partitions of a batch; checkpoints of earlier versions call them shares."""
    found: Sequence[PlannedPartition] = offset.get("partitions") or offset.get("shares") or ()
    return found


def _known(depth: Depth) -> int:
    return (depth.ready or 0) + (depth.reserved or 0)


def _shown(depth: Depth) -> dict[str, Any]:
    return {"ready": depth.ready, "reserved": depth.reserved, "delayed": depth.delayed}


def _warn_of_orphans(home: Path, epoch: str) -> None:
    """A deleted checkpoint may leave batches that are acknowledged and not in any sink. They stay."""
    for other in sorted(home.glob("*")) if home.is_dir() else []:
        segments = list(other.glob("batch-*/part-*.arrow"))
        if other.name != epoch and segments:
            log.warning(
                "%d segments of an earlier checkpoint are in %s; read them with "
                "spark.read.format('shinar').load(...), then remove the folder",
                len(segments),
                other,
            )
