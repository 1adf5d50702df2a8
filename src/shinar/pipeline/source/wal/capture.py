"""The executor's half of a frozen batch: reserve, write, publish, and only then acknowledge.

A crash before the publish leaves everything with the broker. A crash after it leaves everything in the
segment; what the broker then hands out again is known (`owed`) and dropped. Knows the broker contract only,
and no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from shinar.brokers.contract import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.delivery.leases import renewal_due
from shinar.errors import BrokerUnavailable, ShinarError
from shinar.pipeline.rows.delivery_rows import chunk_of, deliveries_of
from shinar.pipeline.source.options import StreamOptions
from shinar.pipeline.source.wal.redelivery import Owed, stamp, tells_seconds
from shinar.pipeline.source.wal.segments import Attempt, Place, read_left_attempt, read_segment

log: Final = logging.getLogger("shinar.pipeline")

#: How long the first reserve of a share waits: the planner saw messages, but a twin may have them.
FIRST_WAIT_S: Final = 0.5
#: And the ones after it, so that a broker which fetches ahead has time to.
NEXT_WAIT_S: Final = 0.1
#: Rows per reserve at first, and at most; in between as many as CHUNK_BYTES hold.
FIRST_ROWS: Final = 100
MOST_ROWS: Final = 4_000
CHUNK_BYTES: Final = 8 << 20
#: How often, and how long, more is waited for where a few messages do not show whether they are owed.
UNSURE_TRIES: Final = 3
UNSURE_WAIT_S: Final = 0.5
#: Deliveries settled by one call.
SETTLE_ROWS: Final = 2_000
#: How long a broker that is away is waited for before the task fails (Spark then tries again).
PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of a batch takes."""

    place: Place
    queue: str
    rows: int
    max_bytes: int | None


def frozen_rows(share: Share, options: StreamOptions, clock: Clock = SYSTEM) -> Iterator[pa.RecordBatch]:
    """The rows of this share: frozen now, or by whoever was here before."""
    # One thread has the broker to itself: it fetches while this one judges, and acknowledges while Spark
    # takes the rows. The task ends when it has.
    with ThreadPoolExecutor(1, "shinar-freeze") as owner:
        settling: list[Future[None]] = []
        if share.place.segment.exists():
            _settle_again(share.place, options, clock)
        else:
            settling = _freeze(share, options, clock, owner)
        for chunk in read_segment(share.place.segment):
            yield chunk.rows
        for step in settling:
            step.result()


def _freeze(
    share: Share, options: StreamOptions, clock: Clock, owner: ThreadPoolExecutor
) -> list[Future[None]]:
    """Returns what the owner of the broker still has to do."""
    give_up_s = clock.monotonic_s() + PATIENCE_S
    pause_s = 0.1
    while not share.place.segment.exists():
        try:
            return _freeze_once(share, options, clock, owner)
        except ShinarError as exc:
            if not exc.transient or clock.monotonic_s() > give_up_s:
                raise
            log.warning("freezing %s: %s; trying again", share.place.segment.name, exc)
            clock.sleep(pause_s)
            pause_s = min(pause_s * 2, 5.0)
    return []


def _freeze_once(
    share: Share, options: StreamOptions, clock: Clock, owner: ThreadPoolExecutor
) -> list[Future[None]]:
    broker = owner.submit(options.url.connect_lasting).result()
    steps: list[Future[None]] = []
    try:
        attempt = Attempt(share.place)
        taking = _Taking(broker, share, options, clock)
        won = False
        try:
            fetching = owner.submit(taking.chunk)
            while pending := fetching.result():
                fetching = owner.submit(taking.chunk)
                attempt.write(chunk_of(pending, broker.traits, options.include_headers))
            owner.submit(taking.check).result()
            won = attempt.publish()
        finally:
            if not won:
                owner.submit(_give_back, broker, taking.taken).result()
            attempt.discard()
        if won and options.ack_mode == "after-freeze":
            steps.append(owner.submit(_acknowledge, broker, share.place, taking.taken))
    finally:
        steps.append(owner.submit(_hang_up, broker))
    return steps


class _Taking:
    """Reserves for one attempt and keeps the leases alive meanwhile. For the thread that has the broker."""

    def __init__(self, broker: Broker, share: Share, options: StreamOptions, clock: Clock) -> None:
        self.broker = broker
        self.taken: list[Delivery] = []
        self._share = share
        self._owed = Owed(share.place, broker.traits) if options.ack_mode == "after-freeze" else None
        self._clock = clock
        #: Shortest lease seen; None while they last as long as the connection.
        self._lease_s: float | None = None
        self._kept_s = clock.monotonic_s()
        self._bytes = 0
        self._over = False

    def chunk(self) -> list[Delivery]:
        """As much as is judged and written at a time; empty when the share is full or the queue is empty."""
        pending: list[Delivery] = []
        start_bytes = self._bytes
        while not self._over and len(pending) < MOST_ROWS and self._bytes - start_bytes < CHUNK_BYTES:
            pending += self._reserve()
            self.keep()
        return pending

    def _reserve(self) -> list[Delivery]:
        count = len(self.taken)
        left = self._share.rows - count
        fits = CHUNK_BYTES * count // max(self._bytes, 1) if count else FIRST_ROWS
        wait_s = NEXT_WAIT_S if count else FIRST_WAIT_S
        got = self._news(self._share.queue, min(left, max(fits, 1), MOST_ROWS), wait_s)
        self.taken += got
        self._bytes += sum(len(delivery.body) for delivery in got)
        for until_ms, from_ms in {(delivery.lease_until_ms, delivery.received_ms) for delivery in got}:
            if until_ms is not None:
                lease_s = (until_ms - from_ms) / 1000
                self._lease_s = min(lease_s, self._lease_s or lease_s)
        most_bytes = self._share.max_bytes
        self._over = (
            not got
            or len(self.taken) >= self._share.rows
            or (most_bytes is not None and self._bytes >= most_bytes)
            or self._share.place.segment.exists()  # a twin has won
        )
        return got

    def _news(self, queue: str, most: int, wait_s: float) -> list[Delivery]:
        """What is not in a segment yet; empty only when the queue is."""
        while got := self.broker.reserve(queue, most, wait_s):
            if self._owed is None:
                return got
            for _ in range(UNSURE_TRIES):
                if len(got) < most and self._owed.unsure(got):
                    got += self.broker.reserve(queue, most - len(got), UNSURE_WAIT_S)
            with self._owed.sifted(got) as (news, again):
                if again:
                    log.info("%d messages came again that are frozen already", len(again))
                    self.broker.ack(again)
            if news:
                return news
        return []

    def keep(self) -> None:
        """Extend what is held before a third of its lease has gone."""
        if self._lease_s is not None and renewal_due(self._clock.monotonic_s() - self._kept_s, self._lease_s):
            self._extend()

    def check(self) -> None:
        """All of it is still ours. Otherwise somebody else freezes it, and the rows would be there twice."""
        self.keep()
        if self.taken and not self.broker.traits.lasting_lease:
            self._extend()

    def _extend(self) -> None:
        lapsed = self.broker.extend(self.taken, self._lease_s or 0.0)
        if lapsed:
            raise BrokerUnavailable(
                f"{len(lapsed)} reservations ended while a batch was being frozen",
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


def _give_back(broker: Broker, taken: list[Delivery]) -> None:
    try:
        for part in _parts(taken):
            broker.release(part)
    except ShinarError as exc:
        # Nothing was kept and nothing acknowledged: the leases, or the lost connection, return them.
        log.warning("%d messages could not be handed back at once: %s", len(taken), exc)


def _acknowledge(broker: Broker, place: Place, taken: list[Delivery]) -> None:
    try:
        # Where nobody can repeat the ack, all of it or none: half of it would leave half a debt (see `owed`).
        parts = _parts(taken) if broker.traits.portable_receipts else [taken]
        lapsed = [delivery for part in parts for delivery in broker.ack(part)]
        if taken and not broker.traits.portable_receipts:
            # Such a broker does not answer an ack. The next answer on the connection shows that it arrived.
            broker.depth(taken[-1].queue)
    except ShinarError as exc:
        # They are safe in the segment. Whoever reads it next, or commits it, acknowledges them again.
        log.warning("batch %d is frozen but not acknowledged yet: %s", place.batch, exc)
        return
    if lapsed:
        log.warning("%d messages of batch %d may come again: their lease had ended", len(lapsed), place.batch)
        Owed(place, broker.traits).add(place, map(_stamp, lapsed))
    place.mark_settled()


def _settle_again(place: Place, options: StreamOptions, clock: Clock) -> None:
    """A crash may have come between publish and ack: repeat the ack, as far as receipts travel."""
    if options.ack_mode == "never" or place.settled.exists() or not options.url.traits().portable_receipts:
        return
    try:
        broker = options.url.connect_lasting()
        try:
            settle_segment(broker, place, clock)
        finally:
            broker.close()
    except ShinarError as exc:
        log.warning("batch %d is not acknowledged yet: %s", place.batch, exc)


def settle_segment(broker: Broker, place: Place, clock: Clock) -> None:
    """Acknowledge all of a published segment, from whichever process. Idempotent."""
    lapsed: list[Delivery] = []
    for chunk in read_segment(place.segment):
        for part in _parts(deliveries_of(chunk)):
            lapsed += broker.ack(part)
    # Either they were acknowledged before, which is usual, or the broker hands them out again. A lease that
    # has not ended yet speaks for the first; where the broker marks second deliveries, we need not guess.
    if not tells_seconds(broker.traits):
        over_ms = clock.epoch_ms() - (broker.traits.lease_s or 0.0) * 1000
        lapsed = [delivery for delivery in lapsed if delivery.received_ms < over_ms]
    if lapsed:
        Owed(place, broker.traits).add(place, map(_stamp, lapsed))
    place.mark_settled()


def _stamp(delivery: Delivery) -> bytes:
    return stamp(delivery.queue, delivery.position, delivery.body)


def release_attempt(broker: Broker, path: Path, segments: Sequence[Path]) -> None:
    """Hand back what an attempt took that died, or lost without saying so. Only once its batch is decided.

    The winner's own file may still lie there, as a second name of its segment: that one is left alone."""
    if not any(path.samefile(segment) for segment in segments if segment.exists()):
        for chunk in read_left_attempt(path):
            for part in _parts(deliveries_of(chunk)):
                broker.release(part)
    path.unlink(missing_ok=True)


def _parts(deliveries: list[Delivery]) -> Iterator[list[Delivery]]:
    for start in range(0, len(deliveries), SETTLE_ROWS):
        yield deliveries[start : start + SETTLE_ROWS]
