"""Sending chosen dead letters back: the ledger first, then the broker, then the ledger again.

Within one broker the copy and the settlement are one `move`; to another broker the copy is confirmed
before the original is acknowledged. A log keeps its records: there only the ledger remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from shinar.brokers import Delivery, Outgoing
from shinar.errors import BrokerError, PublishFailed
from shinar.redrive.eligibility import Checks
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import UNCONFIRMED, Line, LineState
from shinar.redrive.letters.letter import Letter, digest_of
from shinar.redrive.model import MAYBE_TWICE
from shinar.redrive.send.breaker import Breaker
from shinar.redrive.send.route import RedriveRoute

#: Out-of-band marker for handlers that shall leave their outside effects out.
BYPASS: Final = {"bq-replay-bypass": "1"}


class MatchedLetter(msgspec.Struct, frozen=True):
    """A letter in hand and the line it answers to."""

    letter: Letter
    line: Line
    #: The line says published, and nobody can say whether this is the letter that was: it goes once more.
    again: bool = False

    @property
    def delivery(self) -> Delivery:
        return self.letter.delivery

    @property
    def only_ack(self) -> bool:
        return self.line.state == LineState.PUBLISHED and not self.again

    def with_line(self, **changes: object) -> MatchedLetter:
        return MatchedLetter(self.letter, msgspec.structs.replace(self.line, **changes), self.again)


Ready = tuple[MatchedLetter, Outgoing]


class LetterSender:
    def __init__(
        self,
        ledger: Ledger,
        job_id: str,
        route: RedriveRoute,
        checks: Checks,
        *,
        breaker: Breaker,
        bypass: bool = False,
        before: Callable[[str], None] = lambda _: None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._job = job_id
        self._route = route
        self._checks = checks
        self._breaker = breaker
        self._headers = BYPASS if bypass else {}
        #: Told a target queue before anything is sent to it.
        self._before = before
        #: Told the number of messages that came to their end.
        self._progress = progress

    def send(self, items: Sequence[MatchedLetter]) -> list[Delivery]:
        """Bring each item to its end as far as possible; what is still reserved afterwards."""
        ready, left = self._prepared([item for item in items if not item.only_ack])
        for queue in dict.fromkeys(item.line.target for item, _ in ready):
            pairs = [pair for pair in ready if pair[0].line.target == queue]
            self._before(queue)
            self._ledger.record_intent(self._job, _lines([item for item, _ in pairs]))
            left += self._deliver(queue, pairs)
        self._settle([item for item in items if item.only_ack])
        self._progress(len(items))
        return left

    def _prepared(self, items: Sequence[MatchedLetter]) -> tuple[list[Ready], list[Delivery]]:
        """(what goes, with its copy; what stays in the queue)"""
        ready: list[Ready] = []
        skipped: list[MatchedLetter] = []
        left: list[Delivery] = []
        decisions = self._checks.decide([item.letter for item in items], [item.line.new_id for item in items])
        for item, made in zip(items, decisions, strict=True):
            if made.why:
                left.append(item.delivery)
                if not item.again:  # its line says published, and stays so
                    skipped.append(
                        item.with_line(target=made.target, generation=made.generation, why=made.why)
                    )
                continue
            # An intent that nobody could check may have arrived: say so when this copy does.
            doubt = item.again or (item.line.state == LineState.INTENT and not self._route.atomic)
            line = item.with_line(
                id=made.letter.id or "",
                target=made.target,
                generation=made.generation,
                copy=digest_of(made.body),
                new_id=made.new_id,
                why=MAYBE_TWICE if doubt else "",
            )
            headers = {**item.delivery.headers, **self._headers}
            ready.append((line, Outgoing(made.body, headers, item.delivery.key)))
        self._ledger.record_skipped(self._job, _lines(skipped))
        return ready, left

    def _deliver(self, queue: str, pairs: Sequence[Ready]) -> list[Delivery]:
        try:
            if self._route.moves:
                return self._moved(pairs, self._route.source.move(queue, [(i.delivery, o) for i, o in pairs]))
            self._route.target.publish(queue, [outgoing for _, outgoing in pairs])
        except PublishFailed as exc:
            return self._partly(pairs, exc)
        except BrokerError as exc:
            if exc.transient:
                raise
            return self._refused(queue, pairs, exc)
        return self._confirmed([item for item, _ in pairs])

    def _moved(self, pairs: Sequence[Ready], lapsed: Sequence[Delivery]) -> list[Delivery]:
        gone = {id(delivery) for delivery in lapsed}
        moved = [item for item, _ in pairs if id(item.delivery) not in gone]
        self._breaker.succeeded(len(moved))
        self._ledger.record_acked(self._job, _lines(moved))
        if gone and self._route.atomic:
            late = [item.with_line(why="") for item, _ in pairs if id(item.delivery) in gone]
            self._ledger.record_unsent(self._job, _lines(late))
        # Elsewhere a lapsed one may have been copied or not: its intent stands, and it is redelivered.
        return []

    def _confirmed(self, items: Sequence[MatchedLetter]) -> list[Delivery]:
        self._breaker.succeeded(len(items))
        self._ledger.record_published(self._job, _lines(items))
        self._settle(items)
        return []

    def _settle(self, items: Sequence[MatchedLetter]) -> None:
        if not items:
            return
        lapsed = () if self._route.log else self._route.source.ack([item.delivery for item in items])
        gone = {id(delivery) for delivery in lapsed}
        self._ledger.record_acked(self._job, _lines([x for x in items if id(x.delivery) not in gone]))

    def _partly(self, pairs: Sequence[Ready], exc: PublishFailed) -> list[Delivery]:
        if exc.total != len(pairs):
            raise exc  # the indices speak of another batch: nothing is known, every intent stands
        missing = set(exc.unconfirmed)
        self._confirmed([item for at, (item, _) in enumerate(pairs) if at not in missing])
        doubtful = [item for at, (item, _) in enumerate(pairs) if at in missing]
        return self._fail(doubtful, f"{UNCONFIRMED}: {exc.code}: {exc}")

    def _refused(self, queue: str, pairs: Sequence[Ready], exc: BrokerError) -> list[Delivery]:
        """One message the broker will never take must not stop its neighbours."""
        if len(pairs) == 1:
            return self._fail([pairs[0][0]], f"{exc.code}: {exc}")
        left: list[Delivery] = []
        for pair in pairs:
            left += self._deliver(queue, [pair])
        return left

    def _fail(self, items: Sequence[MatchedLetter], why: str) -> list[Delivery]:
        self._breaker.failed(len(items))
        failed = [item.with_line(why=why[:300]) for item in items]
        self._ledger.record_failed(self._job, _lines(failed))
        return [item.delivery for item in items]


def _lines(items: Sequence[MatchedLetter]) -> list[Line]:
    return [item.line for item in items]
