"""For a log, which keeps its records: which of them the ledger says were sent back. No broker here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from shinar.brokers import BrokerUrl, Delivery
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.letters.letter import name_of
from shinar.redrive.model import endpoint
from shinar.settlement.traits import Traits

#: Records the ledger is asked about at once.
PAGE: Final = 500
One = TypeVar("One")


class SentBack:
    """Elsewhere than in a log a message that was sent back is gone, and nothing is left out."""

    def __init__(self, url: BrokerUrl, queue: str, traits: Traits, ledger: Ledger | None) -> None:
        self._ledger = ledger if traits.replayable else None
        self._traits = traits
        self._source = (endpoint(url), queue)
        #: Records left out so far.
        self.count = 0

    def by(self, deliveries: Sequence[Delivery]) -> list[str]:
        """The job that sent each of them back, or ""."""
        if self._ledger is None:
            return [""] * len(deliveries)
        names = [name_of(delivery, self._traits) for delivery in deliveries]
        found = self._ledger.sent_before(*self._source, names)
        return [found.get(name, "") for name in names]

    def others(self, found: Iterator[One], delivery_of: Callable[[One], Delivery]) -> Iterator[One]:
        """Only those that were not sent back."""
        if self._ledger is None:
            yield from found
            return
        while page := list(islice(found, PAGE)):
            jobs = self.by([delivery_of(one) for one in page])
            left = [one for one, job in zip(page, jobs, strict=True) if not job]
            self.count += len(page) - len(left)
            yield from left
