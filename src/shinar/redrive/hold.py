"""Reservations that are only kept in order to be given back: few bytes each, leases renewed in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery
from shinar.clock import SYSTEM, Clock

#: Part of a lease after which it is renewed.
RENEW_AFTER: Final = 0.4


class Held:
    """In the order they were taken. `release` gives all of them back in that order."""

    def __init__(self, broker: Broker, clock: Clock = SYSTEM) -> None:
        self._broker = broker
        self._clock = clock
        self._held: list[Delivery] = []
        self._lease_s = broker.traits.lease_s
        self._renewed_s = clock.monotonic_s()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Their bodies are dropped here: whatever settles them is in the receipt."""
        slim = msgspec.structs.replace
        self._held += [slim(delivery, body=b"", headers={}, properties={}) for delivery in deliveries]

    def renew(self) -> None:
        """Cheap unless it is time. A lease that was lost all the same has given its message back."""
        if self._lease_s is None or not self._held:
            return
        if self._clock.monotonic_s() - self._renewed_s < self._lease_s * RENEW_AFTER:
            return
        self._renewed_s = self._clock.monotonic_s()
        lost = {id(delivery) for delivery in self._broker.extend(self._held, self._lease_s)}
        if lost:
            self._held = [delivery for delivery in self._held if id(delivery) not in lost]

    def release(self) -> None:
        """In one call: a broker that puts messages to the front must know all of them to keep their order.

        Where reservations end with the connection they are left to its end, and the owner hangs up
        next: that gives them back at once and in order, which thousands of requests do not (RabbitMQ's
        quorum queues).
        """
        held, self._held = self._held, []
        if held and self._lease_s is not None:
            self._broker.release(held)
