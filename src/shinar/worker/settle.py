"""Obey `settlement.decide` on a broker, batch by batch: write, confirm, then ack.

Every delivery that comes in leaves as a counted outcome. A copy that could not be written leaves
its original unsettled; nothing is acknowledged in its place.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from shinar.brokers import Broker, Delivery, Lapsed, Outgoing
from shinar.brokers.projection import facts_of
from shinar.clock import Clock
from shinar.envelope import DeadReason, dead_letter, dead_letter_copy, poison_record, retry_copy
from shinar.errors import BrokerError, BrokerUnavailable
from shinar.settlement import Action, Event, Settlement, dead_letter_queue, decide, parse_count
from shinar.worker.process import Outcome

log = logging.getLogger("shinar.worker")

#: How long a message whose dead letter could not be written waits, where handing back is the only way
#: to let go of it (brokers whose reservations last as long as the connection).
UNSETTLED_DELAY_S = 5.0

Copies = list[tuple[Delivery, Outgoing]]


class Settler:
    """Settles outcomes on one broker and counts them. `counts` is by action, plus `lapsed`."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self.broker = broker
        self._clock = clock
        self.counts: Counter[str] = Counter()

    def ack(self, handled: Sequence[Delivery]) -> None:
        lapsed = self.broker.ack(handled)
        self.counts["handled"] += len(handled)
        self._note_lapsed(lapsed)

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        moves: dict[str, Copies] = defaultdict(list)
        releases: dict[float, list[Delivery]] = defaultdict(list)
        drops: list[Delivery] = []
        for outcome in outcomes:
            decision = self._decide(outcome)
            delivery = outcome.delivery
            self._note(outcome, decision)
            match decision.action:
                case Action.RETRY if self._retries_natively(decision):
                    releases[decision.delay_s].append(delivery)
                case Action.RETRY:
                    moves[delivery.queue].append((delivery, self._counted(outcome, decision)))
                case Action.RELEASE:
                    releases[decision.delay_s].append(delivery)
                case Action.DEAD_LETTER | Action.DEAD_LETTER_RAW:
                    queue = dead_letter_queue(
                        delivery.queue, self.broker.traits, outcome.policy.dead_letter_queue
                    )
                    moves[queue].append((delivery, self._record(outcome, decision)))
                case Action.NATIVE:
                    self._leave_to_broker(outcome, moves)
                case _:
                    drops.append(delivery)
        for queue, copies in moves.items():
            self._move(queue, copies)
        for delay_s, deliveries in releases.items():
            self._note_lapsed(self.broker.release(deliveries, delay_s))
        if drops:
            self._note_lapsed(self.broker.ack(drops))

    def _decide(self, outcome: Outcome) -> Settlement:
        decision = decide(outcome.event, outcome.attempts, outcome.policy, self.broker.traits)
        if decision.action is not Action.RETRY:
            return decision
        if outcome.final:
            drop = outcome.policy.on_exhausted == "drop"
            action = Action.DROP if drop else Action.DEAD_LETTER
            return Settlement(action, None if drop else DeadReason.FAILED, decision.attempts)
        if outcome.delay_s is not None:
            return msgspec.structs.replace(decision, delay_s=outcome.delay_s)
        return decision

    def _retries_natively(self, decision: Settlement) -> bool:
        """The broker counts redeliveries itself, so the bytes can go back untouched."""
        traits = self.broker.traits
        return traits.release_counts and (traits.release_delay or decision.delay_s == 0)

    def _counted(self, outcome: Outcome, decision: Settlement) -> Outgoing:
        delivery = outcome.delivery
        delay_s = decision.delay_s if self.broker.traits.delay else 0.0
        if outcome.event is Event.POISON:
            # No count to patch: the bytes go back as they are, and the count travels beside them.
            facts = msgspec.structs.replace(facts_of(delivery.body), attempts=decision.attempts)
            return Outgoing(delivery.body, delivery.headers, delivery.key, delay_s, facts)
        body = retry_copy(delivery.body, decision.attempts)
        return Outgoing(body, delivery.headers, delivery.key, delay_s)

    def _record(self, outcome: Outcome, decision: Settlement) -> Outgoing:
        delivery = outcome.delivery
        if decision.action is Action.DEAD_LETTER_RAW:
            # The projection repeats the version that gated it, so that a redrive is gated again.
            gate = self.broker.traits.gate_property
            version = parse_count(delivery.properties.get(gate)) if gate else None
            facts = facts_of(delivery.body)
            if version is not None:
                facts = msgspec.structs.replace(facts, schema_version=version)
            return Outgoing(delivery.body, delivery.headers, delivery.key, facts=facts)
        block = dead_letter(
            decision.reason or DeadReason.FAILED,
            queue=delivery.queue,
            attempts=decision.attempts,
            failed_ms=self._clock.epoch_ms(),
            error=outcome.error,
        )
        write = poison_record if decision.reason is DeadReason.POISON else dead_letter_copy
        return Outgoing(write(delivery.body, block), delivery.headers, delivery.key)

    def _leave_to_broker(self, outcome: Outcome, moves: dict[str, Copies]) -> None:
        suffix = self.broker.traits.native_dlq_suffix
        if suffix:
            delivery = outcome.delivery
            moves[delivery.queue + suffix].append((delivery, Outgoing(delivery.body, delivery.headers)))

    def _move(self, queue: str, copies: Copies) -> None:
        try:
            self._note_lapsed(self.broker.move(queue, copies))
        except BrokerUnavailable:
            self._unsettled(queue, len(copies))
            raise  # the connection is gone, and every reservation with it or after its lease
        except BrokerError as exc:
            log.error("could not write to %s, nothing was acknowledged: %s", queue, exc)
            self._unsettled(queue, len(copies))
            if self.broker.traits.lease_s is None:
                self.broker.release([delivery for delivery, _ in copies], UNSETTLED_DELAY_S)

    def _unsettled(self, queue: str, count: int) -> None:
        self.counts[Action.UNSETTLED] += count
        log.error("unsettled: the broker will hand these out again", extra={"queue": queue, "count": count})

    def _note(self, outcome: Outcome, decision: Settlement) -> None:
        self.counts[decision.action] += 1
        message = outcome.message
        level = logging.WARNING if decision.action in (Action.RETRY, Action.RELEASE) else logging.ERROR
        log.log(
            level,
            "%s: %s",
            outcome.event,
            outcome.error,
            extra={
                "outcome": str(decision.action),
                "queue": outcome.delivery.queue,
                "attempt": outcome.attempts + 1,
                "urn": message.urn if message else None,
                "id": message.id if message else None,
                "trace_id": message.trace_id if message else None,
            },
        )

    def _note_lapsed(self, lapsed: Lapsed) -> None:
        if lapsed:
            self.counts["lapsed"] += len(lapsed)
            log.warning(
                "the lease had ended: somebody else gets these again; extend leases or shorten handlers",
                extra={"queue": lapsed[0].queue, "count": len(lapsed)},
            )
