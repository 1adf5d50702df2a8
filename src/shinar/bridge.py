"""Move or copy messages from one broker to another: confirmed on the target before the source is
acknowledged, with the target's own projection, and counts that add up.

Moving is resumable by itself: what was not acknowledged is still on the source. A crash between
the confirmation and the ack sends those messages again; consumers find them by `meta.id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery, Outgoing
from shinar.clock import SYSTEM, Clock
from shinar.errors import BodyTooLarge, ShinarError, Unsupported

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
    #: The target can never take these (too large, not text); they stay on the source.
    refused: int = 0
    #: Sent, but the source's lease had ended: the source will hand them out again.
    lapsed: int = 0

    @property
    def adds_up(self) -> bool:
        return self.received == self.sent + self.refused


class Plan(msgspec.Struct, frozen=True):
    #: Browse the source and leave it as it is.
    copy: bool = False
    #: Go on waiting for messages when the source is empty.
    follow: bool = False
    #: A copy that was interrupted: leave out as many as it had received.
    skip: int = 0
    limit: int | None = None
    rate_per_s: float | None = None


def bridge(
    source: Broker,
    source_queue: str,
    target: Broker,
    target_queue: str,
    plan: Plan = Plan(),  # noqa: B008  # frozen
    *,
    stop: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM,
) -> Iterator[Counts]:
    """What has happened so far, after each batch. Whenever it ends, by an error too, what was taken and not
    sent is handed back to the source."""
    counts = Counts()
    held = _Held(source, clock)
    batches = _browsed(source, source_queue, plan) if plan.copy else _reserved(source, source_queue, plan)
    started_s = clock.monotonic_s()
    try:
        for batch in batches:
            if not plan.copy:
                held.add(batch)
            refused = _send(target, target_queue, batch)
            known = set(map(id, refused))
            sent = [delivery for delivery in batch if id(delivery) not in known]
            lapsed = 0 if plan.copy else len(held.ack(sent))
            counts = Counts(
                counts.received + len(batch),
                counts.sent + len(sent),
                counts.refused + len(refused),
                counts.lapsed + lapsed,
            )
            yield counts
            if stop() or counts.refused > MOST_REFUSED:
                return
            if plan.rate_per_s:
                ahead_s = counts.sent / plan.rate_per_s - (clock.monotonic_s() - started_s)
                clock.sleep(max(ahead_s, 0.0))
            held.keep()
    finally:
        held.hand_back()


def _send(target: Broker, queue: str, batch: list[Delivery]) -> list[Delivery]:
    """Publishes them, confirmed; returns those the target can never take."""
    refused = [delivery for delivery in batch if not _fits(target, delivery)]
    known = set(map(id, refused))
    rest = [delivery for delivery in batch if id(delivery) not in known]
    try:
        target.publish(queue, [_outgoing(delivery) for delivery in rest])
    except (BodyTooLarge, Unsupported):
        # Which one was it? Where the server found it, some before it are sent again, with the same id.
        if len(batch) == 1:
            return batch
        return refused + [delivery for one in rest for delivery in _send(target, queue, [one])]
    return refused


class _Held:
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
        held = list(self._held.values())
        leases = [(d.lease_until_ms - d.received_ms) / 1000 for d in held if d.lease_until_ms is not None]
        if leases and self._clock.monotonic_s() - self._kept_s > min(leases) / 3:
            self._source.extend(held, min(leases))
            self._kept_s = self._clock.monotonic_s()

    def hand_back(self) -> None:
        if self._held:
            # If the source is gone, its leases end, or the lost connection returns them.
            with suppress(ShinarError):
                self._source.release(list(self._held.values()))


def _reserved(source: Broker, queue: str, plan: Plan) -> Iterator[list[Delivery]]:
    left = plan.limit
    while left is None or left > 0:
        most = _step(plan) if left is None else min(_step(plan), left)
        batch = source.reserve(queue, most, WAIT_S)
        if batch or plan.follow:
            left = None if left is None else left - len(batch)
            yield batch
        else:
            return


def _browsed(source: Broker, queue: str, plan: Plan) -> Iterator[list[Delivery]]:
    most = None if plan.limit is None else plan.skip + plan.limit
    found = islice(source.browse(queue, most), plan.skip, None)
    while batch := list(islice(found, _step(plan))):
        yield batch


def _step(plan: Plan) -> int:
    """At most half a second's worth, so that a rate is no burst and a pause."""
    return max(1, min(BATCH, round(plan.rate_per_s / 2))) if plan.rate_per_s else BATCH


def _outgoing(delivery: Delivery) -> Outgoing:
    return Outgoing(delivery.body, delivery.headers, delivery.key)


def _fits(target: Broker, delivery: Delivery) -> bool:
    traits = target.traits
    if traits.max_body_bytes is not None and len(delivery.body) > traits.max_body_bytes:
        return False
    return traits.binary or _is_text(delivery.body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
