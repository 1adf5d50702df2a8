"""Going through a dead-letter queue once, taking the chosen and leaving the others as they were.

No broker can reserve by filter, so everything is looked at in its order. Where a message that is
handed back returns to its place, the others are held until the end and released then; where it goes
to the back, the queue is turned round once, batch by batch; a log is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from shinar.brokers import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.errors import BrokerError, Unsupported
from shinar.redrive.ledger.ledger import Ledger, Line, LineState
from shinar.redrive.letters.held import Held
from shinar.redrive.letters.letter import digest, read
from shinar.redrive.letters.read import browse, unreached
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.sender import Item

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

#: Sends a batch; returns what is still reserved.
Send = Callable[[Sequence[Item]], list[Delivery]]


class Matcher:
    """Finds the ledger line a delivery answers to; for a job without a plan it writes one."""

    def __init__(self, ledger: Ledger, job_id: str, broker: Broker, limit: int | None) -> None:
        self._ledger = ledger
        self._job = job_id
        self._broker = broker
        #: What makes a line where there was none; None for a job whose lines are all there.
        self.chosen: Chosen | None = None
        self._limit = limit
        self._written = 0

    def count(self, written: int) -> None:
        self._written = written

    def split(self, batch: Sequence[Delivery]) -> tuple[list[Item], list[Delivery]]:
        names = [digest(delivery, self._broker.traits) for delivery in batch]
        lines = self._ledger.lines_of(self._job, names)
        items: list[Item] = []
        others: list[Delivery] = []
        added: list[Line] = []
        for delivery, name in zip(batch, names, strict=True):
            known = lines.setdefault(name, [])
            line = next((one for one in known if one.state in _UNFINISHED), None)
            if line is not None:
                known.remove(line)
                items.append(Item(read(delivery, self._broker.traits), line))
                continue
            item = None if known else self._new(delivery, name)
            if item is None:
                others.append(delivery)
            else:
                added.append(item.line)
                items.append(item)
        self._ledger.add(self._job, added)
        return items, others

    def _new(self, delivery: Delivery, name: str) -> Item | None:
        if self.chosen is None or (self._limit is not None and self._written >= self._limit):
            return None
        letter = read(delivery, self._broker.traits)
        if not self.chosen(letter):
            return None
        self._written += 1
        return Item(letter, Line(name, 0, letter.id or "", delivery.position, bytes=len(delivery.body)))


_UNFINISHED: Final = (LineState.PLANNED, LineState.INTENT, LineState.PUBLISHED)


class Pass:
    """What the ways of going through a queue share."""

    def __init__(
        self,
        broker: Broker,
        queue: str,
        matcher: Matcher,
        send: Send,
        *,
        clock: Clock = SYSTEM,
        batch: int = BATCH,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._matcher = matcher
        self._send = send
        self._clock = clock
        self._batch = batch
        #: Messages the broker did not hand out though they are there.
        self.unreached = 0
        self._taken = 0
        #: Told the seconds at most before a wait for the leases of a run that died.
        self.waits: Callable[[float], None] = lambda _: None
        #: Asked between batches and steps: True ends the sending, not the tidying up.
        self.stopped: Callable[[], bool] = lambda: False
        #: Asked between batches: True when nothing is left to find.
        self.finished: Callable[[], bool] = lambda: False

    def hold(self, patience_s: float = QUIET_S) -> None:
        """For brokers that put a message back in its place: keep the others out of the way until the end."""
        held = Held(self._broker, self._clock)
        try:
            self._search(held, patience_s)
        except BaseException:
            with suppress(BrokerError):  # what went wrong is worth more than what that led to
                held.release()
            raise
        held.release()

    def _search(self, held: Held, patience_s: float) -> None:
        quiet_s = self._clock.monotonic_s()
        while not self.stopped() and not self.finished():
            batch = self._broker.reserve(self._queue, self._batch, WAIT_S)
            self._taken += len(batch)
            held.renew()
            if not batch:
                if self._clock.monotonic_s() - quiet_s >= patience_s:
                    self.unreached = unreached(self._broker, self._queue)
                    return
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
        items, kept = self._matcher.split(batch)
        unsent = [item.delivery for item in items] if self.stopped() else self._send(items)
        back = {id(delivery) for delivery in (*kept, *unsent)}
        return [delivery for delivery in batch if id(delivery) in back]

    def follow(self) -> None:
        """For logs: read, and touch nothing."""
        batch: list[Delivery] = []
        for delivery in browse(self._broker, self._queue, clock=self._clock):
            batch.append(delivery)
            if len(batch) < self._batch:
                continue
            self._send(self._matcher.split(batch)[0])
            batch = []
            if self.stopped() or self.finished():
                return
        self._send(self._matcher.split(batch)[0])

    def depth(self) -> int:
        return self._broker.depth(self._queue).ready or 0

    def arrivals(self) -> Callable[[int], int]:
        """Begin to count what comes into the queue; asked with the number sent since, it says how many came.

        They come behind all others, so nobody meets them before the end: only the depth tells. In a queue
        that is turned all stay but the sent; elsewhere all leave `ready` that were taken."""
        turned = self._broker.traits.release_to == "back"
        before = self._broker.depth(self._queue)
        known = (before.ready or 0) + (before.reserved or 0) + (before.delayed or 0)
        taken = self._taken

        def came(sent: int) -> int:
            now = self._broker.depth(self._queue)
            if now.ready is None:
                return 0
            if turned:
                return now.ready + (now.reserved or 0) + (now.delayed or 0) - (known - sent)
            return now.ready - (known - (self._taken - taken))

        return came

    def find(self, name: str) -> int | None:
        """How many messages are before the one with this digest; None when it is not there."""
        if not name:
            return None
        for at, delivery in enumerate(browse(self._broker, self._queue, clock=self._clock)):
            if digest(delivery, self._broker.traits) == name:
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
                self.waits(lease_s + LAPSE_MARGIN_S)
            self._clock.sleep(0.2)
