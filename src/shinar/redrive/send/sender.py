"""Sending chosen dead letters back: the ledger first, then the broker, then the ledger again.

Within one broker the copy and the settlement are one `move`; to another broker the copy is confirmed
before the original is acknowledged. A log (Kafka) keeps its records: there only the ledger remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery, Outgoing
from shinar.clock import SYSTEM, Clock
from shinar.envelope import redrive_copy, unwrap_poison
from shinar.errors import BrokerError, ContractError, PublishFailed, ShinarError
from shinar.redrive.eligibility import Checks, cannot_carry, swallowed
from shinar.redrive.ledger.ledger import Ledger, Line, LineState
from shinar.redrive.letters.letter import DIGEST_CHARS, Letter, Nature
from shinar.redrive.letters.repair import repaired
from shinar.redrive.model import MAYBE_TWICE, Spec
from shinar.redrive.send.breaker import Breaker
from shinar.redrive.send.patch import Patch
from shinar.settlement.traits import Traits

#: Out-of-band marker for handlers that shall leave their outside effects out.
BYPASS: Final = {"bq-replay-bypass": "1"}


class Item(msgspec.Struct, frozen=True):
    letter: Letter
    line: Line

    @property
    def delivery(self) -> Delivery:
        return self.letter.delivery

    def with_line(self, **changes: object) -> Item:
        return Item(self.letter, msgspec.structs.replace(self.line, **changes))


class Route(msgspec.Struct, frozen=True):
    """Where copies go, and how."""

    source: Broker
    target: Broker
    #: "" sends each to the queue it came from.
    queue: str
    #: Both ends are one broker: copy and settlement are one move.
    moves: bool
    #: The source keeps what was read: nothing is settled there.
    log: bool
    #: What a queue of the target can carry; it may differ from queue to queue (SQS).
    traits_of: Callable[[str], Traits]

    @property
    def atomic(self) -> bool:
        return self.moves and self.source.traits.atomic_move

    def refuses(self, queue: str, letter: Letter, body: bytes, sent_ms: SentMs | None, now_ms: int) -> str:
        """ "" or why this copy cannot arrive there. `sent_ms` is None for a copy with a new id."""
        target = self.traits_of(queue)
        why = cannot_carry(body, target)
        # Within one broker a copy travels under an id of its own; elsewhere under the message's.
        if why or self.moves or sent_ms is None or target.dedup_window_s is None:
            return why
        known = [at_ms for at_ms in (letter.created_ms, sent_ms(letter.id or "")) if at_ms is not None]
        return swallowed(max(known, default=None), target, now_ms)


#: When a message with this id was last sent back, as far as the ledger knows.
SentMs = Callable[[str], int | None]
Ready = tuple[Item, Outgoing]


class Sender:
    def __init__(
        self,
        ledger: Ledger,
        job_id: str,
        route: Route,
        spec: Spec,
        checks: Checks,
        patch: Patch | None = None,
        *,
        clock: Clock = SYSTEM,
        before: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._job = job_id
        self._route = route
        self._spec = spec
        self._checks = checks
        self._patch = patch
        self._clock = clock
        #: Told a target queue before anything is sent to it.
        self._before = before
        self.breaker = Breaker(spec.max_failure_ratio)
        #: Called with the number of messages that came to their end.
        self.progress: Callable[[int], None] = lambda _: None

    def send(self, items: Sequence[Item]) -> list[Delivery]:
        """Bring each item to its end as far as possible; what is still reserved afterwards."""
        confirmed = [item for item in items if item.line.state == LineState.PUBLISHED]
        fresh = [item for item in items if item.line.state != LineState.PUBLISHED]
        ready, ended = self._prepared(fresh)
        # Write ahead: from here on nobody may believe that these were not sent.
        self._mark([item for item, _ in ready], LineState.INTENT)
        self._mark(ended)
        left = [item.delivery for item in ended]
        for queue in dict.fromkeys(item.line.target for item, _ in ready):
            self._before(queue)
            left += self._deliver(queue, [pair for pair in ready if pair[0].line.target == queue])
        self._settle(confirmed)
        self.progress(len(items))
        return left

    # -- making copies

    def _prepared(self, items: Sequence[Item]) -> tuple[list[Ready], list[Item]]:
        ready: list[Ready] = []
        ended: list[Item] = []
        whys = self._checks.why([item.letter for item in items])
        generations = self._ledger.generations([item.letter.id for item in items if item.letter.id])
        for item, why in zip(items, whys, strict=True):
            generation = 1 + generations.get(item.letter.id or "", 0)
            made = item.with_line(generation=generation, target=self._target(item.letter))
            copy, why = (None, why) if why else self._copy(made)
            if copy is None:
                ended.append(made.with_line(state=LineState.SKIPPED, why=why))
                continue
            body, new_id = copy
            digest = sha256(body).hexdigest()[:DIGEST_CHARS]
            # An intent that nobody could check may have arrived: say so when this copy does.
            doubt = MAYBE_TWICE if item.line.state == LineState.INTENT and not self._route.atomic else ""
            headers = {**item.delivery.headers, **(BYPASS if self._spec.bypass else {})}
            ready.append(
                (
                    made.with_line(copy=digest, new_id=new_id, why=doubt),
                    Outgoing(body, headers, item.delivery.key),
                )
            )
        return ready, ended

    def _target(self, letter: Letter) -> str:
        return self._route.queue or letter.target(self._route.source.traits)

    def _copy(self, item: Item) -> tuple[tuple[bytes, str] | None, str]:
        """((body, new id), "") or (None, why not)."""
        try:
            letter = repaired(item.letter, self._spec.repair)
            body, new_id = copy_of(letter), ""
            if self._patch is not None:
                # The same id as before a crash, so that the copy is the same message.
                body, new_id = self._patch.apply(letter, body, item.line.new_id)
                why = self._checks.refused_copy(body)
                if why:
                    return None, why
        except ContractError as exc:
            return None, f"patch: {exc}"
        sent_ms = None if new_id else self._ledger.last_sent_ms
        why = self._route.refuses(item.line.target, item.letter, body, sent_ms, self._clock.epoch_ms())
        return (None, why) if why else ((body, new_id), "")

    # -- sending

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
        self.breaker.succeeded(len(moved))
        self._mark(moved, LineState.ACKED)
        if gone and self._route.atomic:
            late = [item.with_line(why="") for item, _ in pairs if id(item.delivery) in gone]
            self._mark(late, LineState.PLANNED)
        # Elsewhere a lapsed one may have been copied or not: its intent stands, and it will come again.
        return []

    def _confirmed(self, items: Sequence[Item]) -> list[Delivery]:
        self.breaker.succeeded(len(items))
        self._mark(items, LineState.PUBLISHED)
        self._settle(items)
        return []

    def _settle(self, items: Sequence[Item]) -> None:
        if not items:
            return
        lapsed = () if self._route.log else self._route.source.ack([item.delivery for item in items])
        gone = {id(delivery) for delivery in lapsed}
        self._mark([item for item in items if id(item.delivery) not in gone], LineState.ACKED)

    def _partly(self, pairs: Sequence[Ready], exc: PublishFailed) -> list[Delivery]:
        if exc.total != len(pairs):
            raise exc  # the indices speak of another batch: nothing is known, every intent stands
        missing = set(exc.unconfirmed)
        self._confirmed([item for at, (item, _) in enumerate(pairs) if at not in missing])
        return self._fail([item for at, (item, _) in enumerate(pairs) if at in missing], exc)

    def _refused(self, queue: str, pairs: Sequence[Ready], exc: BrokerError) -> list[Delivery]:
        """One message the broker will never take must not stop its neighbours."""
        if len(pairs) == 1:
            return self._fail([pairs[0][0]], exc)
        left: list[Delivery] = []
        for pair in pairs:
            left += self._deliver(queue, [pair])
        return left

    def _fail(self, items: Sequence[Item], exc: ShinarError) -> list[Delivery]:
        self.breaker.failed(len(items))
        self._mark([item.with_line(why=f"{exc.code}: {exc}"[:300]) for item in items], LineState.FAILED)
        return [item.delivery for item in items]

    def _mark(self, items: Sequence[Item], state: LineState | None = None) -> None:
        changes: Mapping[str, LineState] = {} if state is None else {"state": state}
        self._ledger.mark(self._job, [item.with_line(**changes).line for item in items])


def copy_of(letter: Letter) -> bytes:
    """The body as it is sent back: a message without its block, a record as the bytes it was made from."""
    body = letter.delivery.body
    if letter.nature is Nature.POISON:
        return unwrap_poison(body) if letter.reason is not None else body
    return redrive_copy(body) if letter.message is not None else body
