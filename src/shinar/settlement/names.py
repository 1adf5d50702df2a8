"""Names of dead-letter queues (RULES 17)."""

from __future__ import annotations

from shinar.settlement.traits import Traits


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


def family_queue(dlq: str, traits: Traits) -> str:
    """The queue whose dead letters `dlq` holds, by its name alone; "" when the name does not say."""
    derived = original_queue(dlq, traits)
    if traits.native_dlq_suffix:
        derived = derived.removesuffix(traits.native_dlq_suffix)
    return derived if derived != dlq else ""
