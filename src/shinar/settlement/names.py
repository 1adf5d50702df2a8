"""Names of dead-letter queues (RULES 17)."""

from __future__ import annotations

from typing import Final

from shinar.settlement.traits import Traits

#: Endings of a dead-letter queue's name, over all brokers of the contract.
_ENDINGS: Final = (".dlq", "-dlq", "_dlq")


def dead_letter_queue(queue: str, traits: Traits, explicit: str = "") -> str:
    """Where the dead letters of `queue` go. SQS wants its .fifo at the very end."""
    if explicit:
        return explicit
    base, fifo, _ = queue.partition(".fifo") if queue.endswith(".fifo") else (queue, "", "")
    return f"{base}{traits.dlq_suffix}{fifo}"


def is_dead_letter_queue(queue: str, traits: Traits) -> bool:
    return queue.removesuffix(".fifo").endswith(traits.dlq_suffix)


def original_queue(queue: str, traits: Traits) -> str:
    """The inverse, as far as names go; a dead letter's own block says it better."""
    fifo = ".fifo" if queue.endswith(".fifo") else ""
    return queue.removesuffix(".fifo").removesuffix(traits.dlq_suffix) + fifo


def is_dead_letter_queue_of_any(queue: str | None) -> bool:
    """The same where nobody knows the broker: an archive, or the rows of a lake."""
    return bool(queue) and str(queue).lower().removesuffix(".fifo").endswith(_ENDINGS)
