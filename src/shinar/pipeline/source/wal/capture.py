"""The executor's half of the write-ahead log: reserve, write a segment, publish it, and only then ack.

A crash before the publish leaves everything with the broker. A crash after it leaves everything in the
segment; what the broker then delivers again is recognised or marked (`redelivery`). Uses the broker contract
only, and must not know Spark.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shinar.brokers.contract import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.delivery.leases import renewal_due
from shinar.errors import BrokerUnavailable, ShinarError
from shinar.pipeline.rows.delivery_rows import chunk_of, deliveries_of
from shinar.pipeline.source.options import StreamOptions
from shinar.pipeline.source.wal.redelivery import (
    Marked,
    fingerprint,
    may_be_redelivery,
    may_have_lapsed,
    sift,
)
from shinar.pipeline.source.wal.segments import Attempt, SegmentRef, read_left_attempt, read_segment
from shinar.pipeline.source.wal.unsettled import UnsettledLog, segment_fingerprints, sync_before_ack
from shinar.settlement.traits import Traits

log: Final = logging.getLogger("shinar.pipeline")

#: How long the first reserve of a partition waits: the planner saw messages, but another task may have them.
FIRST_WAIT_S: Final = 0.5
#: And the ones after it, so that a broker which fetches ahead has time to.
NEXT_WAIT_S: Final = 0.1
#: Rows per reserve at first, and at most; in between as many as CHUNK_BYTES hold.
FIRST_ROWS: Final = 100
MOST_ROWS: Final = 4_000
CHUNK_BYTES: Final = 8 << 20
#: Deliveries settled by one call.
SETTLE_ROWS: Final = 2_000
#: How long a broker that is away is waited for before the task fails (Spark then tries again).
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CapturePartition:
    """What one task of a batch reads: at most so much of a queue, into or from this segment."""

    segment: SegmentRef
    queue: str
    rows: int
    max_bytes: int | None


class ReservedRows(NamedTuple):
    """Deliveries that are validated and written together, and the mark of each (see `redelivery`)."""

    deliveries: list[Delivery]
    marks: list[str | None]


def read_partition(
    partition: CapturePartition, options: StreamOptions, clock: Clock = SYSTEM
) -> Iterator[pa.RecordBatch]:
    """The rows of this partition: captured now, or read from the segment of an earlier attempt."""
    # One thread has the broker to itself: it reserves while this one validates, and acknowledges while Spark
    # takes the rows. The task ends when it has.
    with ThreadPoolExecutor(1, "shinar-capture") as owner:
        settling: list[Future[None]] = []
        if partition.segment.path.exists():
            _settle_again(partition.segment, options, clock)
        else:
            settling = _capture(partition, options, clock, owner)
        for chunk in read_segment(partition.segment.path):
            yield chunk.rows
        for step in settling:
            step.result()


def _capture(
    partition: CapturePartition, options: StreamOptions, clock: Clock, owner: ThreadPoolExecutor
) -> list[Future[None]]:
    """Returns what the owner of the broker still has to do."""
    give_up_s = clock.monotonic_s() + PATIENCE_S
    pause_s = 0.1
    while not partition.segment.path.exists():
        try:
            return _capture_once(partition, options, clock, owner)
        except ShinarError as exc:
            if not exc.transient or clock.monotonic_s() > give_up_s:
                raise
            log.warning("capturing %s failed: %s; trying again", partition.segment.path.name, exc)
            clock.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)
    return []


def _capture_once(
    partition: CapturePartition, options: StreamOptions, clock: Clock, owner: ThreadPoolExecutor
) -> list[Future[None]]:
    broker = owner.submit(options.url.connect_lasting).result()
    steps: list[Future[None]] = []
    try:
        attempt = Attempt(partition.segment)
        reserving = _Reserving(broker, partition, options, clock)
        won = False
        try:
            fetching = owner.submit(reserving.chunk)
            while (pending := fetching.result()).deliveries:
                fetching = owner.submit(reserving.chunk)
                attempt.write(
                    chunk_of(pending.deliveries, broker.traits, options.include_headers, pending.marks)
                )
            attempt.seal()
            owner.submit(reserving.check).result()
            won = attempt.publish()
        finally:
            if not won:
                owner.submit(_release, broker, reserving.taken).result()
            attempt.discard()
        if won:
            steps.append(owner.submit(_settle_published, broker, partition.segment, reserving, options))
    finally:
        steps.append(owner.submit(_hang_up, broker))
    return steps


class _Reserving:
    """Reserves for one attempt and keeps the leases alive meanwhile. For the thread that has the broker."""

    def __init__(
        self, broker: Broker, partition: CapturePartition, options: StreamOptions, clock: Clock
    ) -> None:
        self.broker = broker
        self.taken: list[Delivery] = []
        #: Why rows of this attempt carry a mark; on disk once the segment is published.
        self.marked: list[tuple[str, bytes]] = []
        self._partition = partition
        self._log = UnsettledLog(partition.segment, broker.traits, clock)
        self._compares = options.ack_mode == "after-capture"
        self._marked_before: Marked | None = None
        self._clock = clock
        #: Shortest lease seen; None while they last as long as the connection.
        self._lease_s: float | None = None
        self._kept_s = clock.monotonic_s()
        self._bytes = 0
        self._over = False

    def chunk(self) -> ReservedRows:
        """As much as is written at a time; empty when the partition is full or the queue is empty."""
        pending = ReservedRows([], [])
        start_bytes = self._bytes
        while (
            not self._over and len(pending.deliveries) < MOST_ROWS and self._bytes - start_bytes < CHUNK_BYTES
        ):
            deliveries, marks = self._reserve()
            pending.deliveries.extend(deliveries)
            pending.marks.extend(marks)
            self.keep()
        return pending

    def _reserve(self) -> ReservedRows:
        count = len(self.taken)
        left = self._partition.rows - count
        fits = CHUNK_BYTES * count // max(self._bytes, 1) if count else FIRST_ROWS
        wait_s = NEXT_WAIT_S if count else FIRST_WAIT_S
        found = self._rows(self._partition.queue, min(left, max(fits, 1), MOST_ROWS), wait_s)
        got = found.deliveries
        self.taken += got
        self._bytes += sum(len(delivery.body) for delivery in got)
        for until_ms, from_ms in {(delivery.lease_until_ms, delivery.received_ms) for delivery in got}:
            if until_ms is not None:
                lease_s = (until_ms - from_ms) / 1000
                self._lease_s = min(lease_s, self._lease_s or lease_s)
        most_bytes = self._partition.max_bytes
        self._over = (
            not got
            or len(self.taken) >= self._partition.rows
            or (most_bytes is not None and self._bytes >= most_bytes)
            or self._partition.segment.path.exists()  # another attempt has won
        )
        return found

    def _rows(self, queue: str, most: int, wait_s: float) -> ReservedRows:
        """Deliveries that become rows; empty only when the queue is."""
        while got := self.broker.reserve(queue, most, wait_s):
            suspects = self._compares and any(may_be_redelivery(d, self.broker.traits) for d in got)
            unsettled = self._log.unsettled() if suspects else {}
            if not unsettled:
                return ReservedRows(got, [None] * len(got))
            if self._marked_before is None:
                self._marked_before = self._log.marked()
            marked = self._marked_before + Counter(self.marked)
            sifted = sift(got, unsettled, marked, self.broker.traits)
            self.marked += sifted.marked
            if sifted.known:
                sync_before_ack(self._partition.segment)
                self.broker.ack(sifted.known)
                self._log.record_known(sifted)
                log.info("%d redelivered messages are captured already; acknowledged", len(sifted.known))
            if sifted.rows:
                return ReservedRows(sifted.rows, sifted.marks)
        return ReservedRows([], [])

    def keep(self) -> None:
        """Extend what is held before a third of its lease has gone."""
        if self._lease_s is not None and renewal_due(self._clock.monotonic_s() - self._kept_s, self._lease_s):
            self._extend()

    def check(self) -> None:
        """All of it is still ours. Otherwise somebody else captures it, and the rows would be there twice."""
        self.keep()
        if self.taken and not self.broker.traits.lasting_lease:
            self._extend()

    def _extend(self) -> None:
        lapsed = self.broker.extend(self.taken, self._lease_s or 0.0)
        if lapsed:
            raise BrokerUnavailable(
                f"{len(lapsed)} reservations ended while a batch was being captured",
                broker=self.broker.traits.name,
                queue=lapsed[0].queue,
            )
        self._kept_s = self._clock.monotonic_s()


def _hang_up(broker: Broker) -> None:
    try:
        broker.close()
    except ShinarError as exc:
        # Everything is settled or written down by now, or raised where it was not.
        log.warning("the connection did not end well: %s", exc)


def _release(broker: Broker, taken: list[Delivery]) -> None:
    try:
        for part in _parts(taken):
            broker.release(part)
    except ShinarError as exc:
        # Nothing was published and nothing acknowledged: the leases, or the lost connection, return them.
        log.warning("%d messages could not be released at once: %s", len(taken), exc)


def _settle_published(
    broker: Broker, segment: SegmentRef, reserving: _Reserving, options: StreamOptions
) -> None:
    UnsettledLog(segment, broker.traits).record_marked(segment, reserving.marked)
    if options.ack_mode == "after-capture":
        _acknowledge(broker, segment, reserving.taken)


def _acknowledge(broker: Broker, segment: SegmentRef, taken: list[Delivery]) -> None:
    try:
        lapsed = [delivery for part in _parts(taken) for delivery in broker.ack(part)]
        if taken and not broker.traits.portable_receipts:
            # Such a broker does not answer an ack. The next answer on the connection shows that it arrived.
            broker.depth(taken[-1].queue)
    except ShinarError as exc:
        # They are safe in the segment. The next reader of it, or its commit, acknowledges them again.
        log.warning("batch %d is captured but not acknowledged yet: %s", segment.batch, exc)
        return
    if lapsed:
        log.warning(
            "%d messages of batch %d may be delivered again: their lease had ended",
            len(lapsed),
            segment.batch,
        )
        _record(segment, lapsed, broker.traits)
    segment.mark_settled()


def _settle_again(segment: SegmentRef, options: StreamOptions, clock: Clock) -> None:
    """A crash may have come between publish and ack: repeat the ack, as far as receipts are portable."""
    if options.ack_mode == "never" or segment.settled.exists() or not options.url.traits().portable_receipts:
        return
    try:
        broker = options.url.connect_lasting()
        try:
            settle_segment(broker, segment, options.url.receipt_type(), clock)
        finally:
            broker.close()
    except ShinarError as exc:
        log.warning("batch %d is not acknowledged yet: %s", segment.batch, exc)


def settle_segment(broker: Broker, segment: SegmentRef, receipt_type: Any, clock: Clock) -> None:
    """Acknowledge all of a published segment, from whichever process. Idempotent."""
    lapsed: list[Delivery] = []
    for chunk in read_segment(segment.path):
        if chunk.pickled:
            log.warning(
                "%s was written by an earlier version, whose receipts are not read any more; its messages "
                "are delivered again when their leases end",
                segment.path,
            )
            record_segment(segment, broker.traits)
            return
        for part in _parts(deliveries_of(chunk, receipt_type)):
            lapsed += broker.ack(part)
    # Usually they were acknowledged before. Without a stable position a message must not be compared with
    # those, or an equal one that comes later carries a mark without a reason.
    if not broker.traits.stable_position:
        now_ms = clock.epoch_ms()
        lapsed = [d for d in lapsed if may_have_lapsed(d, now_ms, broker.traits)]
    if lapsed:
        _record(segment, lapsed, broker.traits)
    segment.mark_settled()


def record_segment(segment: SegmentRef, traits: Traits) -> None:
    """Nobody can repeat the ack of this segment: the broker may deliver any of its messages again."""
    UnsettledLog(segment, traits).record(segment, segment_fingerprints(segment.path, traits))
    segment.mark_settled()


def _record(segment: SegmentRef, lapsed: Sequence[Delivery], traits: Traits) -> None:
    prints = (fingerprint(d.queue, d.position, d.body, traits) for d in lapsed)
    UnsettledLog(segment, traits).record(segment, prints)


def release_attempt(broker: Broker, path: Path, segments: Sequence[Path], receipt_type: Any) -> None:
    """Release what an attempt reserved that died, or lost without removing its file. Only once its batch is
    decided.

    The winner's own file may still be there, as a second name of its segment: that one is left alone."""
    if not any(path.samefile(segment) for segment in segments if segment.exists()):
        for chunk in read_left_attempt(path):
            for part in _parts(deliveries_of(chunk, receipt_type)):
                broker.release(part)
    path.unlink(missing_ok=True)


def _parts(deliveries: list[Delivery]) -> Iterator[list[Delivery]]:
    for start in range(0, len(deliveries), SETTLE_ROWS):
        yield deliveries[start : start + SETTLE_ROWS]
