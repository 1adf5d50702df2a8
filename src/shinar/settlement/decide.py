"""`decide`: the only place that says what becomes of a delivery (contract rules, 8). Pure; I/O obeys it."""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import StrEnum

import msgspec

from shinar.envelope.model import DeadReason
from shinar.settlement.policy import Policy
from shinar.settlement.traits import Traits, WithoutDeadLetters


class Event(StrEnum):
    """What happened to a delivery, in the order in which it is found out."""

    VERSION_GATED = "version_gated"
    POISON = "poison"
    UNKNOWN_URN = "unknown_urn"
    FAILED = "failed"
    HANDLED = "handled"


class Action(StrEnum):
    #: Handled; take it off the queue.
    ACK = "ack"
    #: A counted copy goes back, then the original is acknowledged.
    RETRY = "retry"
    #: Hand it back as it is, not counted.
    RELEASE = "release"
    #: A record with a dead_letter block is written, then the original is acknowledged.
    DEAD_LETTER = "dead_letter"
    #: The incoming bytes are written to the dead-letter queue as they are, then acknowledged.
    DEAD_LETTER_RAW = "dead_letter_raw"
    #: Acknowledged, nothing written; counted and logged. Only ever on the user's word.
    DROP = "drop"
    #: Not acknowledged: left to the broker's own dead-letter mechanism.
    NATIVE = "native"
    #: A write failed: not acknowledged, not retried, reported; the lease runs out.
    UNSETTLED = "unsettled"


class Settlement(msgspec.Struct, frozen=True):
    action: Action
    #: Of a dead letter.
    reason: DeadReason | None = None
    #: Deliveries counted, this one included: what a copy or a dead letter carries.
    attempts: int = 0
    delay_s: float = 0.0


ACKED = Settlement(Action.ACK)
_UNSETTLED = Settlement(Action.UNSETTLED)
_REASONS = {
    Event.FAILED: DeadReason.FAILED,
    Event.UNKNOWN_URN: DeadReason.UNKNOWN_URN,
    Event.POISON: DeadReason.POISON,
}


def decide(
    event: Event,
    attempts: int,
    policy: Policy,
    traits: Traits,
    draw: Callable[[], float] = random.random,
) -> Settlement:
    """`attempts` is the reconciled count before this delivery."""
    if event is Event.HANDLED:
        return ACKED
    counted = attempts + 1
    if event is Event.VERSION_GATED:
        return _gated(counted, policy, traits)
    if event is Event.POISON:
        return _poison(counted, policy, traits, draw)
    if event is Event.UNKNOWN_URN:
        match policy.on_unknown_urn:
            case "delete":
                return Settlement(Action.DROP, attempts=counted)
            case "dead_letter":
                return Settlement(Action.DEAD_LETTER, DeadReason.UNKNOWN_URN, counted)
            case "release":
                return Settlement(Action.RELEASE, None, attempts, policy.unknown_urn_release_delay_s)
            case "fail":
                pass
    return _retry_or(event, counted, policy, draw)


def if_write_fails(settlement: Settlement) -> Settlement:
    """What is left when the copy or the dead letter could not be written: nothing is acknowledged."""
    writes = (Action.RETRY, Action.DEAD_LETTER, Action.DEAD_LETTER_RAW)
    return _UNSETTLED if settlement.action in writes else settlement


def _retry_or(event: Event, counted: int, policy: Policy, draw: Callable[[], float]) -> Settlement:
    if counted < policy.max_attempts:
        return Settlement(Action.RETRY, None, counted, policy.backoff.delay_s(counted, draw))
    if policy.on_exhausted == "drop":
        return Settlement(Action.DROP, attempts=counted)
    return Settlement(Action.DEAD_LETTER, _REASONS[event], counted)


def _poison(counted: int, policy: Policy, traits: Traits, draw: Callable[[], float]) -> Settlement:
    record = Settlement(Action.DEAD_LETTER, DeadReason.POISON, counted)
    fate: WithoutDeadLetters = traits.poison_without_dlq
    if fate == "dead_letter" or policy.on_unknown_urn == "dead_letter":
        return record
    if policy.on_unknown_urn == "delete":
        return Settlement(Action.DROP, attempts=counted)
    if policy.on_exhausted == "dead_letter":
        return record
    if fate == "retry":
        return _retry_or(Event.POISON, counted, policy, draw)
    return Settlement(Action.NATIVE if fate == "native" else Action.DROP, attempts=counted)


def _gated(counted: int, policy: Policy, traits: Traits) -> Settlement:
    if policy.on_unknown_urn == "delete":
        return Settlement(Action.DROP, attempts=counted)
    if policy.on_exhausted == "dead_letter" or policy.on_unknown_urn == "dead_letter":
        return Settlement(Action.DEAD_LETTER_RAW, attempts=counted)
    native = traits.gated_without_dlq == "native"
    return Settlement(Action.NATIVE if native else Action.DROP, attempts=counted)
