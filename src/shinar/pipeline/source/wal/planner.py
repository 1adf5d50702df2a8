"""The driver's half of a frozen batch: says when there is another one, opens it, and clears it away.

The offset holds the batch's number and its shares, so that a replay plans the same tasks; an epoch, minted
when a checkpoint begins, keeps a new checkpoint away from old segments. Knows the broker contract only.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shinar.brokers.contract import Broker, Depth
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, ShinarError, StoreError
from shinar.pipeline.source.options import StreamOptions
from shinar.pipeline.source.wal.capture import PATIENCE_S, Share, release_attempt, settle_segment
from shinar.pipeline.source.wal.redelivery import Owed, segment_stamps
from shinar.pipeline.source.wal.segments import Landing, row_count

log: Final = logging.getLogger("shinar.pipeline")

Offset = dict[str, Any]

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

START: Final[Offset] = {"stream": "", "epoch": "", "batch": 0, "shares": []}


class Planner:
    """State of one run of a query, in the process beside the driver."""

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

    def initial(self) -> Offset:
        return dict(START)

    def latest(self, start: Offset, max_rows: int | None, max_bytes: int | None) -> Offset:
        epoch = start["epoch"] or self._epoch
        landing = self._at(start, epoch, start["batch"])
        if start["batch"] != self._last_batch:
            self._count(landing, start)
            self._last_batch = start["batch"]
            self._watch.forget()
        wanted = self._wanted(landing, start["batch"])
        if not any(wanted.values()):
            return start
        shares = plan_shares(
            wanted, max_rows, max_bytes, self._options.min_partitions or (os.cpu_count() or 1)
        )
        # Before any offset names it: a landing that does not know its epoch later on was lost.
        landing.begin()
        self._planned = True
        return {
            "stream": self._options.stream_id,
            "epoch": epoch,
            "batch": start["batch"] + 1,
            "shares": shares,
        }

    def fix_target(self) -> None:
        """Trigger.AvailableNow: what is there now, the messages dead consumers still hold included."""
        depths = self._watch.look(patient=False)
        self._target = {queue: _known(depth) for queue, depth in depths.items()}

    def parts(self, start: Offset, end: Offset) -> list[Share]:
        if end["batch"] == start["batch"]:
            return []  # Spark begins with such a batch when the queue is empty
        if end["batch"] != start["batch"] + 1:
            raise StoreError(
                f"asked for batches {start['batch']} to {end['batch']} at once; they come one by one"
            )
        landing = self._at(end, end["epoch"], start["batch"])
        self._check_landing(landing)
        batch = end["batch"]
        places = [landing.place(batch, part) for part in range(len(end["shares"]))]
        if landing.committed() >= batch:
            places = self._replayed(landing, batch, len(places))
        else:
            landing.open(batch)
        return [
            Share(place, queue, rows, most)
            for place, (queue, rows, most) in zip(places, end["shares"], strict=bool(places))
        ]

    def finish(self, end: Offset) -> None:
        """The sink is done with everything up to here."""
        if not end["epoch"]:
            return  # the empty batch at the beginning
        self._sweep(self._at(end, end["epoch"], end["batch"]), end["batch"])

    def latest_known(self) -> Offset:
        """No offset, for a queue has none: what is in it, as Spark's progress events show it, and how many
        messages the broker handed out a second time, within the last day."""
        lag = {queue: _shown(depth) for queue, depth in self._watch.last().items()}
        return {"lag": lag, "came_again": self._owed(self._landing).came() if self._landing else 0}

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
            self._owed(self._landing).forget_old()
        return self._landing

    def _owed(self, landing: Landing) -> Owed:
        return Owed(landing.place(0, 0), self._options.url.traits())

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

    def _settle(self, landing: Landing, batch: int) -> None:
        places = landing.places(batch)
        left = landing.left_attempts(batch)
        open_places = [place for place in places if not place.settled.exists()]
        if self._options.ack_mode == "never" or not (open_places or left):
            return
        broker = self._watch.broker()
        if not broker.traits.portable_receipts:
            for place in open_places:
                Owed(place, broker.traits).add(place, segment_stamps(place.segment))
                place.mark_settled()
            return
        for place in open_places:
            settle_segment(broker, place, self._clock)
        for path in left:
            release_attempt(broker, path, [place.segment for place in places])

    def _replayed(self, landing: Landing, batch: int, parts: int) -> list[Any]:
        kept = [landing.kept(batch, part) for part in range(parts)]
        if all(path.exists() for path in kept):
            landing.restore(batch)
            return [landing.place(batch, part) for part in range(parts)]
        if self._options.fail_on_data_loss:
            raise StoreError(
                f"the checkpoint asks for batch {batch} again, but its segments are gone with its commit; "
                "its rows are in the sink already. Set failOnDataLoss=false to go on without them"
            )
        log.warning("batch %d is gone and is left out (failOnDataLoss=false)", batch)
        return []

    def _count(self, landing: Landing, start: Offset) -> None:
        """Take what the last batch held off the target."""
        if self._target is None or self._last_batch < 0:
            return
        for place in landing.places(start["batch"]):
            queue = start["shares"][place.part][0]
            self._target[queue] = self._target.get(queue, 0) - row_count(place.segment)

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
        held = any(row_count(place.segment) for place in landing.places(batch))
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
    """Looks at the queues, seldom, over one connection that is opened when needed and reopened when lost."""

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
            log.warning("cannot look at the queue: %s; trying again", exc)
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


def plan_shares(
    wanted: Mapping[str, int], max_rows: int | None, max_bytes: int | None, tasks: int
) -> list[tuple[str, int, int | None]]:
    """(queue, rows, bytes) per task: what is wanted, within the limits, spread over the tasks."""
    total = sum(wanted.values())
    allowed = total if max_rows is None else min(total, max_rows)
    shares: list[tuple[str, int]] = []
    for queue, rows in wanted.items():
        if rows == 0:
            continue
        mine = max(1, rows * allowed // total)
        count = max(1, min(tasks, -(-mine // ROWS_PER_TASK)))
        shares += [(queue, mine // count + (part < mine % count)) for part in range(count)]
    each = None if max_bytes is None else max(1, max_bytes // len(shares))
    return [(queue, rows, each) for queue, rows in shares]


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
                "%d frozen segments of an earlier checkpoint lie in %s; read them with "
                "spark.read.format('shinar').load(...), then remove the folder",
                len(segments),
                other,
            )
