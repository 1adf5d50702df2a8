"""What ends a delivery: ack, release, extend, move; and a plain client's re-queue and dead letter.

Every method takes receipts out of their leases first, so that whatever happens to a message happens
once. They return the receipts that were not held any more. Nothing is durable before the next tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from shinar.clock import Clock
from shinar.phpmq.engine.catalogue import Catalogue
from shinar.phpmq.engine.changes import Changes
from shinar.phpmq.engine.dispatcher import Dispatcher
from shinar.phpmq.engine.intake import Intake
from shinar.phpmq.engine.leases import Leases
from shinar.phpmq.engine.queue import PlainConsumer, Queue
from shinar.phpmq.protocol.extension import Copy, Held, Item
from shinar.phpmq.store import BrokerStore, DelayedRow, Entry

#: Why a message was buried.
DEAD: Final = "dead-letter"


class Settler:
    def __init__(
        self, store: BrokerStore, catalogue: Catalogue, intake: Intake, dispatcher: Dispatcher,
        *, leases: Leases, changes: Changes, clock: Clock,
    ) -> None:  # fmt: skip
        self._store = store
        self._catalogue = catalogue
        self._intake = intake
        self._dispatcher = dispatcher
        self._leases = leases
        self._changes = changes
        self._clock = clock

    def ack(self, held: Iterable[Held]) -> list[Held]:
        """Done with these. A second ack of the same receipt is not called lapsed."""
        lapsed: list[Held] = []
        for part in held:
            lease, taken, missing = self._leases.claim(part.token, part.keys)
            if lease is not None and taken:
                self._remove(lease.queue, list(taken))
                self._leases.remember_settled(part.token, taken)
                lease.queue.row.acked += len(taken)
                self._changes.totals.acked += len(taken)
            if missing:
                missing = self._leases.not_settled(part.token, missing)
                lapsed.extend([Held(part.token, missing)] if missing else [])
        return lapsed

    def release(self, held: Iterable[Held], delay_ms: int, *, counted: bool = True) -> list[Held]:
        """Back to their places, or with a delay to the end of their queue when it is over.

        Not counted: as if they had not been handed out this time.
        """
        lapsed: list[Held] = []
        for part in held:
            lease, taken, missing = self._leases.claim(part.token, part.keys)
            lapsed.extend([Held(part.token, missing)] if missing else [])
            if lease is not None and taken:
                self._changes.totals.released += len(taken)
                counts = {key: count + counted for key, count in taken.items()}
                if delay_ms:
                    self._put_off(lease.queue, counts, delay_ms)
                    continue
                if not counted:
                    # The store counted the hand-out when it was committed.
                    self._changes.counts.extend(counts.items())
                self._dispatcher.give_back(lease.queue, counts)
        return lapsed

    def extend(self, held: Iterable[Held], lease_s: float) -> list[Held]:
        until_s = self._clock.monotonic_s() + lease_s
        missing = [(part.token, self._leases.extend(part.token, part.keys, until_s)) for part in held]
        return [Held(token, keys) for token, keys in missing if keys]

    def move(self, name: str, copies: Sequence[Copy], create: bool = True) -> list[Held]:
        """Publish each copy and delete its original, in one transaction."""
        self._intake.check([copy.item for copy in copies])
        target = self._catalogue.get(name, create)
        lapsed: list[Held] = []
        items: list[Item] = []
        sources: dict[Queue, list[int]] = {}
        for copy in copies:
            lease, taken, _ = self._leases.claim(copy.token, (copy.key,))
            if lease is None or not taken:
                lapsed.append(Held(copy.token, [copy.key]))
                continue
            sources.setdefault(lease.queue, []).extend(taken)
            items.append(copy.item)
        if items:
            self._intake.add(target, items)
            target.row.published += len(items)
            self._changes.totals.moved += len(items)
        for queue, keys in sources.items():
            self._remove(queue, keys)
            queue.row.acked += len(keys)
        return lapsed

    def requeue(self, consumer: PlainConsumer, key: int, ttl_s: int) -> bool:
        """To the end of its queue with a new TTL; False when this consumer does not hold it."""
        entry = self._taken(consumer, key)
        if entry is None:
            return False
        queue = consumer.queue
        self._store.delete([key])
        self._gone(queue, 1)
        extra = None if entry[2] is None else bytes(entry[2])
        expires_ms = self._clock.epoch_ms() + ttl_s * 1000 if ttl_s else 0
        new, count = queue.row.next, entry[5]
        self._changes.counts.append((new, count))
        row = (new, entry[1], extra, entry[3], expires_ms)
        self._intake.insert(queue, [row], [(new, entry[1], entry[2], entry[3], expires_ms, count)])
        self._changes.totals.released += 1
        return True

    def dead_letter(self, consumer: PlainConsumer, key: int) -> bool:
        """To the queue's dead letters; False when this consumer does not hold it."""
        entry = self._taken(consumer, key)
        if entry is None:
            return False
        self._intake.bury(consumer.queue, entry, DEAD)
        consumer.queue.row.dead += 1
        self._changes.totals.dead += 1
        self._dispatcher.freed(consumer.queue)
        return True

    def _taken(self, consumer: PlainConsumer, key: int) -> Entry | None:
        """A message out of its consumer's hands, with this delivery counted."""
        _, taken, _ = self._leases.claim(consumer.held.get(key, 0), (key,))
        return self._store.get(key, taken[key] + 1) if taken else None

    def _put_off(self, queue: Queue, counts: dict[int, int], delay_ms: int) -> None:
        due_ms = self._clock.epoch_ms() + delay_ms
        rows: list[DelayedRow] = []
        for key, count in counts.items():
            entry = self._store.get(key, count)
            if entry is not None:
                extra = None if entry[2] is None else bytes(entry[2])
                rows.append((due_ms, queue.row.id, entry[1], extra, entry[3], entry[4], count))
        self._store.delete(list(counts))
        self._gone(queue, len(counts))
        if rows:
            self._intake.delay(queue, rows)

    def _remove(self, queue: Queue, keys: list[int]) -> None:
        """Settled messages leave the store, for the archive if there is one."""
        if self._store.archiving:
            self._store.to_archive(keys, queue.name, self._clock.epoch_ms())
        self._store.delete(keys)
        self._gone(queue, len(keys))

    def _gone(self, queue: Queue, count: int) -> None:
        queue.row.messages -= count
        self._changes.changed.add(queue)
        self._dispatcher.freed(queue)
