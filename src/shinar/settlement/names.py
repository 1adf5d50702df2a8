"""Names of dead-letter queues (contract rules, chapter 17)."""

from __future__ import annotations

from typing import Final

from shinar.settlement.traits import Traits

#: Endings of a dead-letter queue's name, over all brokers of the contract.
_ENDINGS: Final = (".dlq", "-dlq", "_dlq")


def dead_letter_queue(queue: str, traits: Traits, explicit: str = "") -> str:
    """Where the dead letters of `queue` go."""
    if explicit:
        return explicit
    base, kind = _split(queue, traits)
    return f"{base}{traits.dlq_suffix}{kind}"


def is_dead_letter_queue(queue: str, traits: Traits) -> bool:
    return _split(queue, traits)[0].endswith(traits.dlq_suffix)


def original_queue(queue: str, traits: Traits) -> str:
    """The inverse, as far as names go; a dead letter's own block says it better."""
    base, kind = _split(queue, traits)
    return base.removesuffix(traits.dlq_suffix) + kind


def _split(queue: str, traits: Traits) -> tuple[str, str]:
    """The name, and the ending that must stay at its end."""
    base = queue.removesuffix(traits.kind_suffix)
    return base, queue[len(base) :]


def is_dead_letter_queue_of_any(queue: str | None) -> bool:
    """The same where nobody knows the broker: an archive, or the rows of a lake."""
    return bool(queue) and str(queue).lower().removesuffix(".fifo").endswith(_ENDINGS)


def family_queue(dlq: str, traits: Traits) -> str:
    """The queue whose dead letters `dlq` holds, by its name alone; "" when the name does not say."""
    derived = original_queue(dlq, traits)
    if traits.native_dlq_suffix:
        derived = derived.removesuffix(traits.native_dlq_suffix)
    return derived if derived != dlq else ""
