"""Obey `settlement.decide` on a broker, batch by batch: write, confirm, then ack.

Every delivery that comes in leaves as one counted outcome, counted when it is done. A copy that could
not be written leaves its original unsettled; nothing is acknowledged in its place.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from shinar.brokers import Broker, Delivery, Lapsed, Outgoing
from shinar.brokers.projection import MAX_DELAY_S, facts_of
from shinar.clock import Clock
from shinar.envelope import DeadReason, dead_letter, dead_letter_copy, poison_record, retry_copy
from shinar.errors import BodyTooLarge, BrokerUnavailable, PublishFailed, ShinarError, error_text
from shinar.printable import printable
from shinar.settlement import (
    Action,
    Event,
    Settlement,
    dead_letter_queue,
    decide,
    parse_count,
    refuses_message,
)
from shinar.worker.process import Outcome

log = logging.getLogger("shinar.worker")

#: How long a message whose dead letter could not be written waits, where handing back is the only way
#: to let go of it (brokers whose reservations last as long as the connection).
UNSETTLED_DELAY_S = 5.0

#: An error text in a dead letter that would otherwise be too large for the broker.
BRIEF_CHARS = 200
#: An error text in the log: somebody's exception may carry a whole response.
LOGGED_CHARS = 2000
#: Messages remembered as "can never be written", so that the log says it once for each.
MOST_REMEMBERED = 1000


class PendingWrite(msgspec.Struct, frozen=True):
    """A copy to be written in place of its delivery, and what that means once it is done."""

    outcome: Outcome
    decision: Settlement
    copy: Outgoing

    @property
    def delivery(self) -> Delivery:
        return self.outcome.delivery


Writes = list[PendingWrite]


class Settler:
    """Settles outcomes on one broker and counts them: each delivery once, by the action that was done,
    or as `lapsed` or `unsettled`."""

    def __init__(self, broker: Broker, clock: Clock, *, tracebacks: bool = False) -> None:
        self.broker = broker
        self._tracebacks = tracebacks
        self._clock = clock
        self.counts: Counter[str] = Counter()
        self._too_large: set[str] = set()

    def ack(self, handled: Sequence[Delivery]) -> None:
        with self._all_counted(handled):
            self._done("handled", handled, self.broker.ack(handled))

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        with self._all_counted([outcome.delivery for outcome in outcomes]):
            self._settle(outcomes)

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        moves: dict[str, Writes] = defaultdict(list)
        releases: dict[tuple[Action, float], list[Delivery]] = defaultdict(list)
        drops: list[Delivery] = []
        for outcome in outcomes:
            decision = self._decide(outcome)
            delivery = outcome.delivery
            self._note(outcome, decision)
            match decision.action:
                case Action.RETRY if self._retries_natively(decision):
                    releases[decision.action, decision.delay_s].append(delivery)
                case Action.RETRY:
                    copy = self._counted(outcome, decision)
                    moves[delivery.queue].append(PendingWrite(outcome, decision, copy))
                case Action.RELEASE:
                    releases[decision.action, decision.delay_s].append(delivery)
                case Action.DEAD_LETTER | Action.DEAD_LETTER_RAW:
                    queue = dead_letter_queue(
                        delivery.queue, self.broker.traits, outcome.policy.dead_letter_queue
                    )
                    moves[queue].append(PendingWrite(outcome, decision, self._record(outcome, decision)))
                case Action.NATIVE:
                    self._leave_to_broker(outcome, decision, moves)
                case _:
                    drops.append(delivery)
        for queue, writes in moves.items():
            self._move(queue, writes)
        for (action, delay_s), deliveries in releases.items():
            # A retry is an attempt; an unknown URN under `release` is none (contract chapter 8).
            counted = action is Action.RETRY
            self._done(action, deliveries, self.broker.release(deliveries, delay_s, count=counted))
        if drops:
            self._done(Action.DROP, drops, self.broker.ack(drops))

    def _decide(self, outcome: Outcome) -> Settlement:
        decision = decide(outcome.event, outcome.attempts, outcome.policy, self.broker.traits)
        if decision.action is not Action.RETRY:
            return decision
        if outcome.final:
            drop = outcome.policy.on_exhausted == "drop"
            action = Action.DROP if drop else Action.DEAD_LETTER
            return Settlement(action, None if drop else DeadReason.FAILED, decision.attempts)
        # A backoff without a limit can grow beyond what any broker can express.
        delay_s = min(decision.delay_s, MAX_DELAY_S) if outcome.delay_s is None else outcome.delay_s
        return msgspec.structs.replace(decision, delay_s=delay_s)

    def _retries_natively(self, decision: Settlement) -> bool:
        """The broker counts redeliveries itself, so the bytes can go back untouched."""
        traits = self.broker.traits
        return traits.release_counts and (traits.release_delay or decision.delay_s == 0)

    def _counted(self, outcome: Outcome, decision: Settlement) -> Outgoing:
        delivery = outcome.delivery
        traits = self.broker.traits
        # Sooner than asked for where the broker cannot wait that long: better than never.
        longest_s = decision.delay_s if traits.max_delay_s is None else traits.max_delay_s
        delay_s = min(decision.delay_s, longest_s) if traits.delay else 0.0
        if outcome.event is Event.POISON:
            # No count to patch: the bytes go back as they are, and the count travels beside them.
            facts = msgspec.structs.replace(facts_of(delivery.body), attempts=decision.attempts)
            return Outgoing(delivery.body, delivery.headers, delivery.key, delay_s, facts)
        body = retry_copy(delivery.body, decision.attempts)
        return Outgoing(body, delivery.headers, delivery.key, delay_s)

    def _record(self, outcome: Outcome, decision: Settlement, error_chars: int | None = None) -> Outgoing:
        """`error_chars` shortens what the contract lets us shorten: the error, and at 0 the exception too."""
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
        if error_chars is not None:
            block = msgspec.structs.replace(
                block,
                error=(block.error or "")[:error_chars] or None,
                exception=block.exception if error_chars else None,
            )
        write = poison_record if decision.reason is DeadReason.POISON else dead_letter_copy
        return Outgoing(write(delivery.body, block), delivery.headers, delivery.key)

    def _leave_to_broker(self, outcome: Outcome, decision: Settlement, moves: dict[str, Writes]) -> None:
        suffix, delivery = self.broker.traits.native_dlq_suffix, outcome.delivery
        if suffix:
            copy = Outgoing(delivery.body, delivery.headers)
            moves[delivery.queue + suffix].append(PendingWrite(outcome, decision, copy))
        else:
            self._done(decision.action, [delivery], ())

    def _move(self, queue: str, writes: Writes) -> None:
        try:
            lapsed = self.broker.move(queue, [(write.delivery, write.copy) for write in writes])
        except BrokerUnavailable:
            raise  # the connection is gone, and every reservation with it or after its lease
        except PublishFailed as exc:
            self._moved_in_part(queue, writes, exc)
        except ShinarError as exc:
            if not refuses_message(exc):
                self._not_moved(queue, writes, exc)
            elif len(writes) > 1:
                # One that cannot be written must not block the others: halve the batch until it is alone.
                half = len(writes) // 2
                self._move(queue, writes[:half])
                self._move(queue, writes[half:])
            elif not (isinstance(exc, BodyTooLarge) and self._move_shortened(queue, writes[0])):
                self._never(queue, writes[0], exc)
        else:
            self._moved(writes, lapsed)

    def _moved(self, writes: Writes, lapsed: Lapsed) -> None:
        for action in {write.decision.action for write in writes}:
            self._done(action, [w.delivery for w in writes if w.decision.action is action], lapsed)

    def _moved_in_part(self, queue: str, writes: Writes, exc: PublishFailed) -> None:
        """The broker has settled what was confirmed itself."""
        # Where it left out lapsed ones first, the numbers are not ours: then none is claimed as done.
        missing = frozenset(exc.unconfirmed if exc.total == len(writes) else range(len(writes)))
        self._moved([write for at, write in enumerate(writes) if at not in missing], ())
        self._not_moved(queue, [write for at, write in enumerate(writes) if at in missing], exc)

    def _not_moved(self, queue: str, writes: Writes, exc: ShinarError) -> None:
        log.error("could not write to %s; the originals are not acknowledged: %s", queue, exc)
        self._let_go(queue, writes)

    def _move_shortened(self, queue: str, write: PendingWrite) -> bool:
        """A dead letter is longer than its message: if that is too much, it says less about the error."""
        if write.decision.action is not Action.DEAD_LETTER:
            return False
        for chars in (BRIEF_CHARS, 0):
            shorter = self._record(write.outcome, write.decision, chars)
            try:
                lapsed = self.broker.move(queue, [(write.delivery, shorter)])
            except BodyTooLarge:
                continue
            self._moved([write], lapsed)
            return True
        return False

    def _never(self, queue: str, write: PendingWrite, exc: ShinarError) -> None:
        message, delivery = write.outcome.message, write.delivery
        known = message.id if message else f"{delivery.queue} {delivery.position}"
        if known not in self._too_large:
            if len(self._too_large) >= MOST_REMEMBERED:
                self._too_large.clear()
            self._too_large.add(known)
            log.error(
                "%s can never take this message; it stays in %s and is delivered again and again until it is "
                "removed or the limit is raised: %s",
                queue,
                delivery.queue,
                exc,
                extra={"queue": delivery.queue, "id": message.id if message else None},
            )
        self._let_go(queue, [write])

    def _let_go(self, queue: str, writes: Writes) -> None:
        self.unsettled(queue, len(writes))
        if self.broker.traits.lease_s is None:
            self.broker.release([write.delivery for write in writes], UNSETTLED_DELAY_S)

    def unsettled(self, queue: str, count: int) -> None:
        if not count:
            return
        self.counts[Action.UNSETTLED] += count
        log.error(
            "unsettled: the broker will deliver these messages again", extra={"queue": queue, "count": count}
        )

    @contextmanager
    def _all_counted(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Whatever ends this, each of them is counted: those it did not come to are unsettled."""
        before = self.counts.total()
        try:
            yield
        finally:
            missed = before + len(deliveries) - self.counts.total()
            if missed:
                self.unsettled(deliveries[0].queue, missed)

    def _done(self, action: str, deliveries: Sequence[Delivery], lapsed: Lapsed) -> None:
        """Count what was really done; a lapsed one was not, whatever we wrote for it."""
        if not lapsed:
            self.counts[action] += len(deliveries)
            return
        gone = {id(delivery) for delivery in lapsed}
        missed = sum(id(delivery) in gone for delivery in deliveries)
        if len(deliveries) > missed:
            self.counts[action] += len(deliveries) - missed
        if missed:
            self.counts["lapsed"] += missed
            log.warning(
                "the reservation had ended and the broker delivers these messages again; use longer leases "
                "or shorter handlers",
                extra={"queue": lapsed[0].queue, "count": missed},
            )

    def _note(self, outcome: Outcome, decision: Settlement) -> None:
        message = outcome.message
        level = logging.WARNING if decision.action in (Action.RETRY, Action.RELEASE) else logging.ERROR
        error = outcome.error
        shown = self._tracebacks or log.isEnabledFor(logging.DEBUG)
        log.log(
            level,
            "%s: %s",
            outcome.event,
            described(error),
            exc_info=_traceback_of(error) if shown else None,
            extra={
                "outcome": str(decision.action),
                "queue": outcome.delivery.queue,
                "attempt": outcome.attempts + 1,
                "urn": message.urn if message else None,
                "id": message.id if message else None,
                "trace_id": message.trace_id if message else None,
            },
        )


def _traceback_of(error: BaseException | str | None) -> BaseException | None:
    """What a log may show the traceback of. Not every formatter survives a `__str__` that raises."""
    if not isinstance(error, BaseException):
        return None
    try:
        str(error)
    except Exception:  # somebody else's class; `described` says so in its place
        return None
    return error


def described(error: BaseException | str | None) -> str:
    """For the log: class and text, cut and on one line, whatever handler writes it. An exception's own text
    alone (`'nope'`) says little."""
    if isinstance(error, BaseException):
        text = f"{type(error).__qualname__}: {error_text(error)[:LOGGED_CHARS]}".removesuffix(": ")
    else:
        text = (error or "")[:LOGGED_CHARS]
    return printable(text)
