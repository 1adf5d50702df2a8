"""Reading a dead-letter queue: by browsing, or, where a broker cannot show, by taking and giving back."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from typing import Final

from shinar.brokers import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.errors import BrokerError, Unsupported
from shinar.redrive.letters.held import Held, hold_s
from shinar.redrive.letters.letter import Letter, read
from shinar.settlement.traits import Traits

log: Final = logging.getLogger(__name__)

#: Messages reserved at once while reading.
BATCH: Final = 200
#: How long an empty answer may take before the queue counts as read to its end.
PATIENCE_S: Final = 2.0

UNREACHED: Final = (
    "about {count} messages are behind others of their group and cannot be reached by reserving"
)
#: How long the first answer of a broker may be "not now", and the pause between two questions.
START_S: Final = 15.0
START_PAUSE_S: Final = 0.5

SIDE_EFFECT: Final = (
    "{broker} cannot show a queue: every message is reserved, read and handed back. "
    "Its delivery count goes up by one where the broker keeps one, and consumers do not see "
    "the queue meanwhile{order}."
)


def read_letters(
    broker: Broker, queue: str, *, reserve: bool = False, limit: int | None = None, clock: Clock = SYSTEM
) -> Generator[Letter, None, None]:
    """Oldest first, in flat memory. With `reserve` also where the broker has no browse; close the broker
    afterwards, as some give back what was read only then."""
    for delivery in deliveries(broker, queue, reserve=reserve, limit=limit, clock=clock):
        yield read(delivery, broker.traits)


def deliveries(
    broker: Broker, queue: str, *, reserve: bool = False, limit: int | None = None, clock: Clock = SYSTEM
) -> Iterator[Delivery]:
    if broker.traits.browse:
        return browse(broker, queue, limit, clock)
    if not reserve:
        raise Unsupported(
            broker.traits.name,
            "show a queue without taking from it",
            f"add --reserve if that is acceptable. {side_effect(broker)}",
        )
    return _reserved(broker, queue, limit, clock)


def browse(broker: Broker, queue: str, limit: int | None = None, clock: Clock = SYSTEM) -> Iterator[Delivery]:
    """The broker's own, with patience for one that has only just started or is electing a leader."""
    deadline_s = clock.monotonic_s() + START_S
    while True:
        found = broker.browse(queue, limit)
        try:
            first = next(found, None)
        except BrokerError as exc:
            if not exc.transient or clock.monotonic_s() >= deadline_s:
                raise
            clock.sleep(START_PAUSE_S)
            continue
        if first is not None:
            yield first
            yield from found
        return


def side_effect(broker: Broker) -> str:
    """What reading by reservation does to the queue, for people; "" when it is not needed."""
    return side_effect_of(broker.traits)


def side_effect_of(known: Traits) -> str:
    if known.browse:
        return ""
    order = ""
    if not known.ordered:
        order = "; it has no order that could change"
    elif known.release_to == "front":
        order = "; what is handed back together may change its order"
    hidden = ""
    if (longest_s := hold_s(known)) and longest_s != known.lease_s:
        hidden = f" If this command is killed they stay hidden for up to {longest_s:.0f} s."
    return SIDE_EFFECT.format(broker=known.name, order=order) + hidden


def reserved_count(broker: Broker, queue: str) -> int:
    """Messages that browsing does not show: reserved by somebody, or by a process that was killed and whose
    leases the broker has not ended yet (Redis ends them when the next consumer comes)."""
    if not broker.traits.browse or not broker.traits.depth:
        return 0
    return broker.depth(queue).reserved or 0


def unreached(broker: Broker, queue: str) -> int:
    """Messages the broker has ready and does not hand out: in a FIFO queue those behind reserved ones."""
    if broker.traits.browse or not broker.traits.depth or not broker.traits.ordered:
        return 0
    return broker.depth(queue).ready or 0


def _reserved(broker: Broker, queue: str, limit: int | None, clock: Clock) -> Iterator[Delivery]:
    held = Held(broker, clock)
    seen = 0
    try:
        while limit is None or seen < limit:
            wanted = BATCH if limit is None else min(BATCH, limit - seen)
            batch = broker.reserve(queue, wanted, PATIENCE_S)
            if not batch:
                if left := unreached(broker, queue):
                    log.warning("%s", UNREACHED.format(count=left))
                return
            held.add(batch)
            for delivery in batch:
                seen += 1
                yield delivery
            held.renew()
    finally:
        held.release()
