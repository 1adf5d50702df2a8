"""What a Pulsar consumer has in hand, and whether it still has: connections change without a word."""

from __future__ import annotations

from typing import Any

import msgspec


class PulsarReceipt(msgspec.Struct, frozen=True, eq=False):
    consumer: Any
    message: Any
    #: Which connection of the consumer received it; see `Subscription`.
    connection: int

    def __repr__(self) -> str:
        return f"PulsarReceipt({self.message.message_id()})"


class Subscription:
    """One consumer, and what it has in hand. The client reconnects by itself and says nothing; the server
    then hands out again what the old connection held. Either sign starts a new count of connections."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.connection = 0
        self._in_hand: set[tuple[int, ...]] = set()

    def look(self) -> None:
        """Between two connections everything in hand is lost."""
        if not self.consumer.is_connected():
            self._lose()

    def receipt(self, message: Any) -> PulsarReceipt:
        if _id(message) in self._in_hand:
            self._lose()
        self._in_hand.add(_id(message))
        return PulsarReceipt(self.consumer, message, self.connection)

    def settled(self, message: Any) -> None:
        self._in_hand.discard(_id(message))

    def _lose(self) -> None:
        self.connection += 1
        self._in_hand.clear()


def _id(message: Any) -> tuple[int, ...]:
    place = message.message_id()
    return place.partition(), place.ledger_id(), place.entry_id()
