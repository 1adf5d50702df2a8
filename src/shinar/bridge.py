"""Move or copy messages from one broker to another: confirmed on the target before the source is
acknowledged, with the target's own projection, and counts that add up.

Moving is resumable by itself: what was not acknowledged is still on the source. A crash between
the confirmation and the ack sends those messages again; consumers find them by `meta.id`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery, Outgoing
from shinar.clock import SYSTEM, Clock
from shinar.delivery.capacity import body_refusal
from shinar.delivery.leases import RENEW_AFTER, lease_s_of, renewal_due
from shinar.delivery.throttle import Pace
from shinar.errors import ConfigError, PublishFailed, ShinarError
from shinar.settlement import Traits, refuses_message

#: Messages taken, sent and acknowledged at once, at most; fewer where a rate is asked for.
BATCH: Final = 500
#: How long the source is waited for before it is taken for empty.
WAIT_S: Final = 2.0
#: More messages than this that the target can never take, and the bridge stops: it is the wrong target.
MOST_REFUSED: Final = 10_000


class Counts(msgspec.Struct, frozen=True):
    """received = sent + refused; nothing else can happen to a message here."""

    received: int = 0
    sent: int = 0
    #: The target can never take these (too large, not text); they stay on the source, or went aside.
    refused: int = 0
    #: Sent, but the source's lease had ended: the source will hand them out again.
    lapsed: int = 0
    #: Which message was refused first, and why.
    refusal: str = ""
    #: Why the bridge ended before the source was empty, if it is not what was asked for.
    stopped: str = ""

    @property
    def adds_up(self) -> bool:
        return self.received == self.sent + self.refused


class BridgePlan(msgspec.Struct, frozen=True):
    #: Browse the source and leave it as it is.
    copy: bool = False
    #: Go on waiting for messages when the source is empty.
    follow: bool = False
    #: A copy that was interrupted: leave out as many as it had received.
    skip: int = 0
    limit: int | None = None
    rate_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0):
            raise ConfigError("must be a number of messages a second, more than 0", setting="rate")


class BrokerQueue(msgspec.Struct, frozen=True):
    broker: Broker
    queue: str


def bridge(
    source: Broker,
    source_queue: str,
    target: Broker,
    target_queue: str,
    plan: BridgePlan = BridgePlan(),  # noqa: B008  # frozen
    *,
    refused_to: BrokerQueue | None = None,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM,
) -> Iterator[Counts]:
    """What has happened so far, after each batch. Whenever it ends, by an error too, what was taken and not
    sent is handed back to the source."""
    counts = Counts()
    held = _Reservations(source, clock)
    halts = _never if plan.copy or refused_to is not None else _halting(source.traits)
    pace = Pace(plan.rate_per_s, BATCH, clock)
    if plan.copy:
        batches = _browsed(source, source_queue, plan, pace.step)
    else:
        batches = _reserved(source, source_queue, plan, pace.step, held)

    def waiting() -> bool:
        held.keep()
        return stop()

    try:
        for batch in batches:
            pace.spend(len(batch))
            if not plan.copy:
                held.add(batch)
            load = _Transfer(BrokerQueue(target, target_queue), halts)
            failure: ShinarError | None = None
            aside: list[Delivery] = []
            try:
                load.send(batch)
                if refused_to is not None and load.refused:
                    _set_aside(refused_to, load.refused)
                    aside = load.refused
            except ShinarError as exc:
                failure = exc
            lapsed = 0 if plan.copy else len(held.ack(load.sent + aside))
            counts = _added(counts, load, lapsed)
            yield counts
            if failure is not None:
                raise failure
            if counts.stopped or not pace.rest(waiting):
                return
    finally:
        held.hand_back()


def _added(counts: Counts, load: _Transfer, lapsed: int) -> Counts:
    refused = counts.refused + len(load.refused)
    stopped = load.halted
    if refused > MOST_REFUSED:
        stopped = f"stopped: more than {MOST_REFUSED:,} messages refused; is this the right target?"
    return Counts(
        counts.received + len(load.sent) + len(load.refused),
        counts.sent + len(load.sent),
        refused,
        counts.lapsed + lapsed,
        counts.refusal or load.refusal,
        stopped,
    )


def _halting(traits: Traits) -> Callable[[Delivery], bool]:
    """Whether the messages behind a refused one must wait: a log is read again from its first unfinished
    record, and a message with a key blocks those behind it, or would be overtaken by them."""
    if traits.replayable:
        return lambda _: True
    return (lambda delivery: delivery.key is not None) if traits.ordered else _never


def _never(_: Delivery) -> bool:
    return False


class _Transfer:
    """A batch on its way: what the target confirmed, and what it can never take."""

    def __init__(self, target: BrokerQueue, halts: Callable[[Delivery], bool]) -> None:
        self._target, self._halts = target, halts
        self.sent: list[Delivery] = []
        self.refused: list[Delivery] = []
        self.refusal = ""
        #: Says why nothing behind the last refused one was sent; "" when all of the batch was dealt with.
        self.halted = ""

    def send(self, batch: list[Delivery]) -> None:
        fitting: list[Delivery] = []
        for delivery in batch:
            refusal = body_refusal(self._target.broker.traits, delivery.body)
            if refusal is None:
                fitting.append(delivery)
            elif self._halts(delivery):
                self._publish(fitting)
                if not self.halted:
                    self._refuse(delivery, str(refusal))
                return
            else:
                self._refuse(delivery, str(refusal))
        self._publish(fitting)

    def _publish(self, batch: list[Delivery]) -> None:
        if not batch or self.halted:
            return
        try:
            _publish(self._target, batch)
        except PublishFailed as exc:
            missing = set(exc.unconfirmed)
            if len(missing) == len(batch):
                raise
            self.sent += [delivery for at, delivery in enumerate(batch) if at not in missing]
            # Alone they say why, each by its own error.
            self._publish([delivery for at, delivery in enumerate(batch) if at in missing])
        except ShinarError as exc:
            if not refuses_message(exc):
                raise
            if len(batch) == 1:
                self._refuse(batch[0], str(exc))
                return
            # Which one was it? Where the server found it, some before it are sent again, with the same id.
            half = len(batch) // 2
            self._publish(batch[:half])
            self._publish(batch[half:])
        else:
            self.sent += batch

    def _refuse(self, delivery: Delivery, why: str) -> None:
        at = f" at {delivery.position}" if delivery.position else ""
        self.refused.append(delivery)
        self.refusal = self.refusal or f"{delivery.queue}{at}: {why}"
        if self._halts(delivery):
            self.halted = (
                f"stopped at a message the target can never take ({delivery.queue}{at}: {why}); on this "
                "source the messages behind it cannot pass it; name a queue for such messages with "
                "--refused-to URL and run it again"
            )


def _set_aside(place: BrokerQueue, refused: list[Delivery]) -> None:
    try:
        _publish(place, refused)
    except ShinarError as exc:
        if refuses_message(exc):
            raise ConfigError(
                f"cannot take a message that the target refused either: {exc}", setting="--refused-to"
            ) from exc
        raise


def _publish(place: BrokerQueue, batch: list[Delivery]) -> None:
    names_origin = place.broker.traits.dedup_window_s is not None
    place.broker.publish(place.queue, [_outgoing(delivery, names_origin) for delivery in batch])


class _Reservations:
    """What the source believes to be in our hands."""

    def __init__(self, source: Broker, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._held: dict[int, Delivery] = {}
        self._kept_s = clock.monotonic_s()

    def add(self, deliveries: list[Delivery]) -> None:
        self._held |= {id(delivery): delivery for delivery in deliveries}

    def ack(self, deliveries: list[Delivery]) -> tuple[Delivery, ...]:
        lapsed = self._source.ack(deliveries)
        for delivery in deliveries:
            del self._held[id(delivery)]
        return lapsed

    def keep(self) -> None:
        """Refused ones stay in hand to the end, or the source would hand them out again and again."""
        lease_s = self._lease_s()
        if lease_s is not None and renewal_due(self._clock.monotonic_s() - self._kept_s, lease_s):
            self._source.extend(list(self._held.values()), lease_s)
            self._kept_s = self._clock.monotonic_s()

    def patience_s(self) -> float:
        """How long the source may be waited for before the leases want to be looked after."""
        lease_s = self._lease_s()
        return math.inf if lease_s is None else lease_s * RENEW_AFTER

    def _lease_s(self) -> float | None:
        """The shortest; None when nothing is held, or for as long as the connection."""
        leases = (lease_s_of(delivery) for delivery in self._held.values())
        return min((lease_s for lease_s in leases if lease_s is not None), default=None)

    def hand_back(self) -> None:
        if self._held:
            # If the source is gone, its leases end, or the lost connection returns them.
            with suppress(ShinarError):
                # Nobody handled them: the broker's count is the one from before.
                self._source.release(list(self._held.values()), count=False)


def _reserved(
    source: Broker, queue: str, plan: BridgePlan, step: int, held: _Reservations
) -> Iterator[list[Delivery]]:
    left = plan.limit
    while left is None or left > 0:
        most = step if left is None else min(step, left)
        batch = _waited_for(source, queue, most, held)
        if batch or plan.follow:
            left = None if left is None else left - len(batch)
            yield batch
        else:
            return


def _waited_for(source: Broker, queue: str, most: int, held: _Reservations) -> list[Delivery]:
    left_s = WAIT_S
    while True:
        wait_s = min(left_s, held.patience_s())
        batch = source.reserve(queue, most, wait_s)
        left_s -= wait_s
        if batch or left_s <= 0.001:
            return batch
        held.keep()


def _browsed(source: Broker, queue: str, plan: BridgePlan, step: int) -> Iterator[list[Delivery]]:
    most = None if plan.limit is None else plan.skip + plan.limit
    found = islice(source.browse(queue, most), plan.skip, None)
    while batch := list(islice(found, step)):
        yield batch


def _outgoing(delivery: Delivery, names_origin: bool) -> Outgoing:
    if not names_origin:
        return Outgoing(delivery.body, delivery.headers, delivery.key)
    # Under meta.id alone the target would confirm and discard what was on it lately: a dead letter on its
    # way back. Only the same message from the same place, sent again, is the same to it.
    place = delivery.position or hashlib.sha256(delivery.body).hexdigest()
    return Outgoing(delivery.body, delivery.headers, delivery.key, origin=f"{delivery.queue}\0{place}")
