"""Reservations that are only kept in order to be given back: few bytes each, leases renewed in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery
from shinar.clock import SYSTEM, Clock
from shinar.delivery.leases import RENEW_AFTER, renewal_due
from shinar.errors import Unsupported
from shinar.settlement.traits import Traits

#: Leases a held message is hidden for where the broker lets us choose: a whole dead-letter queue cannot be
#: renewed every few seconds. After a crash it stays hidden for so long at most.
HOLD_LEASES: Final = 10


def hold_s(traits: Traits) -> float | None:
    """The lease of held messages; None where the connection holds them."""
    if traits.lease_s is None or traits.max_lease_s is None:
        return traits.lease_s
    return max(traits.lease_s, min(HOLD_LEASES * traits.lease_s, traits.max_lease_s))


class Held:
    """In the order they were taken. `release` gives all of them back in that order."""

    def __init__(self, broker: Broker, clock: Clock = SYSTEM) -> None:
        self._broker = broker
        self._clock = clock
        self._held: list[Delivery] = []
        #: So many at the beginning have the long lease.
        self._long = 0
        self._lease_s = broker.traits.lease_s
        self._hold_s = hold_s(broker.traits)
        self._renewed_s = self._lengthened_s = clock.monotonic_s()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Their bodies are dropped here: whatever settles them is in the receipt."""
        slim = msgspec.structs.replace
        self._held += [slim(delivery, body=b"", headers={}, properties={}) for delivery in deliveries]

    def renew(self) -> None:
        """Cheap unless it is time. A lease that was lost all the same has given its message back."""
        if self._lease_s is None or self._hold_s is None or not self._held:
            return
        now_s = self._clock.monotonic_s()
        if renewal_due(now_s - self._renewed_s, self._lease_s):
            self._renewed_s = now_s
            self._extend(self._long, len(self._held), self._hold_s)
        if self._long and renewal_due(now_s - self._lengthened_s, self._hold_s):
            self._lengthened_s = now_s
            self._extend(0, self._long, self._hold_s)

    def _extend(self, start: int, end: int, lease_s: float) -> None:
        part = self._held[start:end]
        if not part:
            return
        began_s = self._clock.monotonic_s()
        lost = {id(delivery) for delivery in self._broker.extend(part, lease_s)}
        took_s = self._clock.monotonic_s() - began_s
        kept = [delivery for delivery in part if id(delivery) not in lost] if lost else part
        self._held[start:end] = kept
        if self._lease_s != self._hold_s:
            self._long = start + len(kept)
        if took_s > (1 - RENEW_AFTER) * lease_s:
            raise Unsupported(
                self._broker.traits.name,
                f"hold {len(self._held):,} messages: renewing them takes {took_s:.0f} s, "
                f"and a lease is {lease_s:g} s",
                "take a longer one (?lease_s=, and the queue's own lock duration where it has one), or "
                "choose what comes first with --limit",
            )

    def release(self) -> None:
        """In one call: a broker that puts messages to the front must know all of them to keep their order.

        Where reservations end with the connection they are left to its end, and the owner hangs up
        next: that gives them back at once and in order, which thousands of requests do not on some
        queues.
        """
        held, self._held = self._held, []
        self._long = 0
        if held and self._lease_s is not None:
            self._broker.release(held)
