"""The rule that says what a redelivery is. Pure: no file, no clock, no broker object.

A delivery may be a message that a published segment already holds, because its ack did not reach the broker.
It is *known* when the broker's own name for the message (`Traits.stable_position`) is the one in the segment:
then it is acknowledged and gives no second row. When only the bytes agree it is *possible*, because equal
bytes do not make two messages one: the row is kept and marked. Everything else is new.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from shinar.brokers.contract import Delivery
from shinar.settlement.traits import Traits

#: Value of the column `redelivery` in a row that may repeat an earlier one.
POSSIBLE: Final = "possible"
#: Bytes of a fingerprint: two different messages never meet by chance.
FINGERPRINT_BYTES: Final = 16
#: The count that a broker with `lapse_counts` raises inside the body, poison included.
_ATTEMPTS: Final = re.compile(rb'("attempts"\s*:\s*)\d+')

#: Name of a segment ("batch-partition") -> how often it holds each fingerprint without a confirmed ack.
Unsettled = Mapping[str, Mapping[bytes, int]]
#: (name of a segment, fingerprint) -> rows that were marked because of it.
Marked = Counter[tuple[str, bytes]]


class Sifted(NamedTuple):
    """What becomes of some deliveries."""

    #: These become rows.
    rows: list[Delivery]
    #: One for each of `rows`: POSSIBLE or None.
    marks: list[str | None]
    #: Why: (name of the segment, fingerprint) for each mark.
    marked: list[tuple[str, bytes]]
    #: These are in a segment already, by proof. Acknowledge them; they give no row.
    known: list[Delivery]
    #: The segment of each of `known`.
    known_in: list[str]


def fingerprint(queue: str, position: str, body: bytes, traits: Traits) -> bytes:
    """What is the same at every delivery of a message: queue, position where there is one, and bytes."""
    if traits.lapse_counts:
        body = _ATTEMPTS.sub(rb"\g<1>", body)
    return blake2b(f"{queue}\0{position}\0".encode() + body, digest_size=FINGERPRINT_BYTES).digest()


def may_be_redelivery(delivery: Delivery, traits: Traits) -> bool:
    """False only where the broker says that nobody has had this message before.

    A stable position is proof by itself: a count or flag, which a restarted server may lose, is not asked.
    """
    if traits.stable_position and delivery.position:
        return True
    if delivery.redelivered is not None:
        return delivery.redelivered
    if traits.count_base is not None and delivery.native_count is not None:
        return delivery.native_count > traits.count_base
    return True


def sift(deliveries: Sequence[Delivery], unsettled: Unsettled, marked: Marked, traits: Traits) -> Sifted:
    """Separate new, possible and known deliveries.

    A segment accounts for as many marks as it holds equal messages; `marked` are those made before. So where
    messages are equal in every byte, at least as many rows are marked as there are rows too many.
    """
    found = Sifted([], [], [], [], [])
    used: Marked = Counter()
    for delivery in deliveries:
        mark = None
        if may_be_redelivery(delivery, traits):
            print_ = fingerprint(delivery.queue, delivery.position, delivery.body, traits)
            if traits.stable_position and delivery.position:
                if source := next((name for name, counts in unsettled.items() if print_ in counts), ""):
                    found.known.append(delivery)
                    found.known_in.append(source)
                    continue
            elif source := _with_room(print_, unsettled, marked, used):
                mark = POSSIBLE
                used[source, print_] += 1
                found.marked.append((source, print_))
        found.rows.append(delivery)
        found.marks.append(mark)
    return found


def _with_room(print_: bytes, unsettled: Unsettled, marked: Marked, used: Marked) -> str:
    """The first segment that holds more of these messages than were marked because of it; "" for none."""
    for name, counts in unsettled.items():
        key = (name, print_)
        if counts.get(print_, 0) > marked[key] + used[key]:
            return name
    return ""


def may_have_lapsed(delivery: Delivery, now_ms: int, traits: Traits) -> bool:
    """A repeated ack found no reservation. False where only an earlier ack can have removed it, because the
    lease cannot have ended yet."""
    return delivery.received_ms + (traits.lease_s or 0.0) * 1000 < now_ms
