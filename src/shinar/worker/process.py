"""One delivery from bytes to an outcome: gate, judge, route, handle. No broker I/O in here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from shinar.brokers import Delivery
from shinar.brokers.projection import MAX_DELAY_S
from shinar.envelope import Kind, Message, judge, read
from shinar.envelope.urn import best_match, is_pattern
from shinar.errors import ContractError, WorkerLost
from shinar.settlement import (
    Event,
    Policy,
    Traits,
    delivered_too_often,
    deliveries_before,
    gated,
    reconcile,
)
from shinar.worker.context import Context, GiveUp, Retry, enter_context
from shinar.worker.handlers import Handler


class Target(msgspec.Struct, frozen=True):
    """A compiled route: what to call, with what, and under which policy."""

    call: Handler
    with_context: bool
    policy: Policy


#: The target of a URN; None when no handler takes it.
Lookup = Callable[[str], Target | None]


def lookup(targets: Mapping[str, Target]) -> Lookup:
    """By exact URN, then by the longest pattern. Without patterns it is the mapping's own `get`."""
    patterns = [urn for urn in targets if is_pattern(urn)]
    if not patterns:
        return targets.get

    def find(urn: str) -> Target | None:
        # An incoming URN that looks like a pattern does not match it exactly.
        exact = None if is_pattern(urn) else targets.get(urn)
        if exact is not None:
            return exact
        pattern = best_match(urn, patterns)
        return None if pattern is None else targets[pattern]

    return find


class Outcome(msgspec.Struct, frozen=True):
    """What happened to a delivery that was not simply handled."""

    delivery: Delivery
    event: Event
    #: Reconciled count before this delivery.
    attempts: int
    policy: Policy
    message: Message | None = None
    error: BaseException | str | None = None
    #: A delay the handler asked for, in place of the backoff.
    delay_s: float | None = None
    #: The handler said that no retry can help.
    final: bool = False


#: Kept apart from Outcome: the common case must not cost an object.
HANDLED: Final = None


def process(find: Lookup, policy: Policy, traits: Traits, delivery: Delivery) -> Outcome | None:
    """None when it was handled; otherwise what happened instead. Never raises for what the body
    or the handler does. The caller leaves the context that the last call entered."""
    if delivery.properties and gated(traits, delivery.properties):
        return Outcome(
            delivery, Event.VERSION_GATED, 0, policy, error="unsupported schema version (property)"
        )
    if delivery.refused:
        return _unusable(delivery, Kind.POISON, delivery.refused, policy, traits)
    message = read(delivery.body)
    if message is None:
        verdict = judge(delivery.body)
        message = verdict.message
        if message is None or verdict.kind is not Kind.ACCEPTED:
            why = f"{verdict.reason} {verdict.pointer}".strip()
            return _unusable(delivery, verdict.kind, why, policy, traits)
    attempts = reconcile(traits, message.attempts, delivery.native_count, delivery.properties)
    if attempts != message.attempts:
        message = msgspec.structs.replace(message, attempts=attempts)
    target = find(message.urn)
    if target is None:
        return Outcome(
            delivery, Event.UNKNOWN_URN, attempts, policy, message, error=f"no handler for {message.urn}"
        )
    if (attempts or delivery.native_count) and (lost := _lost(delivery, message, target.policy, traits)):
        return lost
    enter_context((message, delivery))
    try:
        if target.with_context:
            answer = target.call(message, Context(message, delivery))
        else:
            answer = target.call(message)
    except BaseException as exc:  # whatever a handler raises is an outcome; sys.exit must not end our thread
        return Outcome(delivery, Event.FAILED, attempts, target.policy, message, error=exc)
    return HANDLED if answer is None else _answered(delivery, message, target.policy, answer)


def _lost(delivery: Delivery, message: Message, policy: Policy, traits: Traits) -> Outcome | None:
    """Set when the message has ended its workers so often that no further handler is called."""
    deliveries = deliveries_before(traits, message.attempts, delivery.native_count)
    if not delivered_too_often(deliveries, policy.max_attempts):
        return None
    # This delivery is not one more attempt: the dead letter counts those that reached a handler.
    before = max(message.attempts, deliveries) - 1
    error = WorkerLost(deliveries)
    return Outcome(delivery, Event.FAILED, before, policy, message, error=error, final=True)


def _answered(delivery: Delivery, message: Message, policy: Policy, answer: object) -> Outcome | None:
    failed = (delivery, Event.FAILED, message.attempts, policy, message)
    if isinstance(answer, Retry):
        try:
            return Outcome(*failed, error=answer.error, delay_s=_waitable(answer.delay_s))
        except ContractError as exc:
            return Outcome(*failed, error=exc)
    if isinstance(answer, GiveUp):
        return Outcome(*failed, error=answer.error, final=True)
    return HANDLED  # any other value a handler happens to return means it is done


def _waitable(delay_s: object) -> float | None:
    """Checked here, because further on a broker would meet it with the whole batch in hand."""
    if delay_s is None:
        return None
    if isinstance(delay_s, int | float) and (isinstance(delay_s, int) or math.isfinite(delay_s)):
        return max(0.0, min(delay_s, MAX_DELAY_S))
    raise ContractError(
        f"the handler answered Retry(delay_s={delay_s!r}), which is not a number of seconds; "
        "return Retry(30.0), or Retry() for the policy's backoff"
    )


def _unusable(delivery: Delivery, kind: Kind, why: str, policy: Policy, traits: Traits) -> Outcome:
    event = Event.VERSION_GATED if kind is Kind.UNSUPPORTED_VERSION else Event.POISON
    attempts = reconcile(traits, 0, delivery.native_count, delivery.properties)
    return Outcome(delivery, event, attempts, policy, error=why)
