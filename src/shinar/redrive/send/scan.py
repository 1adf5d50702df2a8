"""Going through a dead-letter queue once, taking the chosen and leaving the others as they were.

No broker can reserve by filter, so everything is looked at in its order. Where a message that is
handed back returns to its place, the others are held until the end and released then; where it goes
to the back, the queue is turned round once, batch by batch; a log is only read. Knows no ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from shinar.brokers import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.errors import BrokerError, Unsupported
from shinar.redrive.letters.held import Held
from shinar.redrive.letters.letter import Name, name_of
from shinar.redrive.letters.read import browse, unreached
from shinar.redrive.send.sender import MatchedLetter

#: Messages in hand at once: what a crash leaves to its leases.
BATCH: Final = 200
#: One wait for messages; short, so that a stop is noticed.
WAIT_S: Final = 0.5
#: Reservations held at most while the queue is searched.
MOST_HELD: Final = 250_000
#: Time after a lease's end in which its message must have come back.
LAPSE_MARGIN_S: Final = 3.0
#: How long a queue must be silent before it counts as read to its end.
QUIET_S: Final = 2.0
HELD_ELSEWHERE: Final = (
    "{count} of them are in the queue and were not handed out: another consumer of it holds them, or has "
    "them prefetched; stop it and resume"
)

#: Sends a batch; returns what is still reserved.
Send = Callable[[Sequence[MatchedLetter]], list[Delivery]]
#: (what to bring to its end, what to leave)
Split = Callable[[Sequence[Delivery]], tuple[list[MatchedLetter], list[Delivery]]]


class Growth:
    """Counts what comes into a dead-letter queue while letters are taken out of it.

    They come behind all others, so nobody meets them before the end: only the depth tells. In a queue
    that is turned all stay but the sent; elsewhere all leave `ready` that were taken."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self._turned = broker.traits.release_to == "back"
        before = broker.depth(queue)
        self._known = (before.ready or 0) + (before.reserved or 0) + (before.delayed or 0)
        self._taken = 0

    def took(self, count: int) -> None:
        self._taken += count

    def came(self, sent: int) -> int:
        """How many came, when so many were sent since the beginning."""
        now = self._broker.depth(self._queue)
        if now.ready is None:
            return 0
        if self._turned:
            return now.ready + (now.reserved or 0) + (now.delayed or 0) - (self._known - sent)
        return now.ready - (self._known - self._taken)


class QueuePass:
    """What the ways of going through a queue share."""

    def __init__(
        self,
        broker: Broker,
        queue: str,
        split: Split,
        send: Send,
        *,
        stopped: Callable[[], bool] = lambda: False,
        finished: Callable[[], bool] = lambda: False,
        waits: Callable[[float], None] = lambda _: None,
        took: Callable[[int], None] = lambda _: None,
        clock: Clock = SYSTEM,
        batch: int = BATCH,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._split = split
        self._send = send
        #: Asked between batches and steps: True ends the sending, not the tidying up.
        self.stopped = stopped
        #: Asked between batches: True when nothing is left to find.
        self.finished = finished
        #: Told the seconds at most before a wait for the leases of a run that died.
        self._waits = waits
        self._took = took
        self._clock = clock
        self._batch = batch

    def hold(self, patience_s: float = QUIET_S) -> int:
        """For brokers that put a message back in its place: keep the others out of the way until the end.
        Returns how many the broker did not hand out though they are there."""
        held = Held(self._broker, self._clock)
        try:
            behind = self._search(held, patience_s)
        except BaseException:
            with suppress(BrokerError):  # what went wrong is worth more than what that led to
                held.release()
            raise
        held.release()
        return behind

    def _search(self, held: Held, patience_s: float) -> int:
        quiet_s = self._clock.monotonic_s()
        while not self.stopped() and not self.finished():
            batch = self._broker.reserve(self._queue, self._batch, WAIT_S)
            self._took(len(batch))
            held.renew()
            if not batch:
                if self._clock.monotonic_s() - quiet_s >= patience_s:
                    return unreached(self._broker, self._queue)
                continue
            quiet_s = self._clock.monotonic_s()
            try:
                held.add(self._rest(batch))
            except BaseException:
                held.add(batch)
                raise
            if len(held) > MOST_HELD:
                raise Unsupported(
                    self._broker.traits.name,
                    f"hold more than {MOST_HELD:,} messages while it looks for the chosen ones",
                    "redrive what comes first, or move the queue to a broker with a table or a log",
                )
        return 0

    def turn(self, count: int) -> None:
        """For brokers that put a message at the back: once round, so that the order is the old one.

        A stop ends the sending only: the rest of the round puts the queue in order again."""
        left = count
        while left > 0:
            batch = self._broker.reserve(self._queue, min(self._batch, left), 0.0)
            if not batch:
                return
            left -= len(batch)
            try:
                self._broker.release(self._rest(batch))
            except BaseException:
                with suppress(BrokerError):
                    self._broker.release(batch)
                raise

    def _rest(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """The batch in its order, less what was sent."""
        if self.stopped():
            return list(batch)
        items, kept = self._split(batch)
        back = {id(delivery) for delivery in (*kept, *self._send(items))}
        return [delivery for delivery in batch if id(delivery) in back]

    def follow(self) -> None:
        """For logs: read, and touch nothing."""
        batch: list[Delivery] = []
        for delivery in browse(self._broker, self._queue, clock=self._clock):
            batch.append(delivery)
            if len(batch) < self._batch:
                continue
            self._send(self._split(batch)[0])
            batch = []
            if self.stopped() or self.finished():
                return
        self._send(self._split(batch)[0])

    def depth(self) -> int:
        return self._broker.depth(self._queue).ready or 0

    def find(self, anchor: str) -> int | None:
        """How many messages are before the first one with this position or digest; None when it is not
        there."""
        if not anchor:
            return None
        for at, delivery in enumerate(browse(self._broker, self._queue, clock=self._clock)):
            if anchor in name_of(delivery, self._broker.traits):
                return at
        return None

    def wait_for_lapsed(self, lease_s: float) -> None:
        """Reservations of a run that died end with their leases; only then is the order known."""
        deadline_s = self._clock.monotonic_s() + lease_s + LAPSE_MARGIN_S
        told = False
        while self._clock.monotonic_s() < deadline_s and not self.stopped():
            # Some brokers only look for lapsed leases when somebody reserves.
            self._broker.reserve(self._queue, 0, 0.0)
            if not self._broker.depth(self._queue).reserved:
                return
            if not told:
                told = True
                self._waits(lease_s + LAPSE_MARGIN_S)
            self._clock.sleep(0.2)


def still_there(broker: Broker, queue: str, unmet: Counter[Name], clock: Clock) -> int:
    """How many of the letters that were not handed out are in the queue all the same."""
    known = broker.traits
    left = Counter(unmet)
    visible = 0
    for delivery in browse(broker, queue, clock=clock) if known.browse else ():
        name = name_of(delivery, known)
        if left[name] > 0:
            left[name] -= 1
            visible += 1
    if visible or known.lease_s is None or not known.depth or known.depth_lags:
        return visible
    # Most do not show what is reserved. What we had in hand ourselves is settled or given back by now.
    return min(left.total(), broker.depth(queue).reserved or 0)
