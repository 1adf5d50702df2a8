"""When to renew leases: one rule for everything that keeps reservations. Knows the contract, no broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shinar.brokers.contract import Delivery

#: Part of a lease after which it is renewed: two more tries fit before it ends.
RENEW_AFTER: Final = 1 / 3
#: How often the leases in hand are looked at, as a part of the shortest.
LOOK_EVERY: Final = RENEW_AFTER / 4


def renewal_due(age_s: float, lease_s: float) -> bool:
    """Whether a lease of `lease_s` that was given or renewed `age_s` ago is to be renewed now."""
    return age_s >= lease_s * RENEW_AFTER


def lease_s_of(delivery: Delivery) -> float | None:
    """Length of the lease this delivery came with; None when it lasts as long as the connection."""
    if delivery.lease_until_ms is None:
        return None
    return max(1, delivery.lease_until_ms - delivery.received_ms) / 1000


class Renewals:
    """Which deliveries in hand need `extend`, each by its own lease."""

    def __init__(self) -> None:
        #: When a lease was given or renewed last, by identity of the delivery in hand.
        self._renewed_ms: dict[int, int] = {}

    def due(self, deliveries: Iterable[Delivery], now_ms: int) -> dict[float, list[Delivery]]:
        """By length of the lease; they count as renewed at `now_ms`. Give all that is in hand: what is
        missing is forgotten."""
        before, self._renewed_ms = self._renewed_ms, {}
        found: dict[float, list[Delivery]] = {}
        for delivery in deliveries:
            lease_s = lease_s_of(delivery)
            if lease_s is None:
                continue
            since_ms = before.get(id(delivery), delivery.received_ms)
            if renewal_due((now_ms - since_ms) / 1000, lease_s):
                found.setdefault(lease_s, []).append(delivery)
                since_ms = now_ms
            self._renewed_ms[id(delivery)] = since_ms
        return found
