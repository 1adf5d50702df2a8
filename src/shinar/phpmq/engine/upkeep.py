"""What time and operators bring about: delays that end, leases that end, expiry, flush, transfer.

All of it in steps of bounded size, a step each tick, so that a million messages to flush delay nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from shinar.clock import Clock
from shinar.phpmq.engine.catalogue import Catalogue, damage_text
from shinar.phpmq.engine.changes import Changes
from shinar.phpmq.engine.dispatcher import Dispatcher
from shinar.phpmq.engine.intake import Intake
from shinar.phpmq.engine.leases import Leases
from shinar.phpmq.engine.options import RequestRefused
from shinar.phpmq.engine.queue import Queue
from shinar.phpmq.protocol.extension import Item, unpack_extra
from shinar.phpmq.store import BrokerStore, DamagedPage, Entry, Later, queue_of

#: Messages one step moves or buries.
STEP: Final = 500
#: Messages one step deletes, or only looks at.
LONG_STEP: Final = 2_000
#: Expired messages that somebody has reserved are looked at again after this.
RECHECK_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class JobClient:
    """Who asked for long work: told the number of messages at its end, or why it ended early."""

    done: Callable[[int], None]
    failed: Callable[[RequestRefused], None]


class Upkeep:
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
        self._jobs: deque[Iterator[None]] = deque()
        #: Where the sweep over expired messages goes on: expiry time and key of the last one it saw.
        self._swept = (0, 0)

    def run(self, now_ms: int, now_s: float) -> None:
        """One step of everything that is due."""
        if self._intake.due_ms is not None and self._intake.due_ms <= now_ms:
            self._promote(now_ms)
        end_s = self._leases.next_end_s
        if end_s is not None and end_s <= now_s:
            for lease, taken in self._leases.lapse(now_s, STEP):
                if not lease.ended:
                    self._changes.totals.lapsed += len(taken)
                counts = {key: count + 1 for key, count in taken.items()}
                self._dispatcher.give_back(lease.queue, counts)
        self._changes.write_counts()
        if self._intake.expiry_ms is not None and self._intake.expiry_ms <= now_ms:
            self._expire(now_ms)
        if self._jobs and next(self._jobs[0], self) is self:
            self._jobs.popleft()

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    # -- long work, one step a tick

    def flush(self, queue: Queue, client: JobClient) -> None:
        self._start(self._flush(queue, client), client, queue)

    def transfer(self, source: Queue, target: Queue, limit: int, client: JobClient) -> None:
        self._start(self._transfer(source, target, limit, client), client, source, target)

    def prune(self, keep_s: float) -> None:
        self._jobs.append(self._prune(keep_s))

    def _start(self, steps: Iterator[None], client: JobClient, *queues: Queue) -> None:
        for queue in queues:
            # Counted at once, not with the first step: a queue without messages might be dropped before.
            queue.jobs += 1
        self._jobs.append(self._guarded(steps, client, queues))

    def _guarded(self, steps: Iterator[None], client: JobClient, queues: tuple[Queue, ...]) -> Iterator[None]:
        try:
            yield from steps
        except DamagedPage as exc:
            damaged = self._catalogue.isolate(exc.queue, exc)
            client.failed(RequestRefused("failed", damage_text(damaged) if damaged else str(exc)))
        finally:
            for queue in queues:
                queue.jobs -= 1

    def _flush(self, queue: Queue, client: JobClient) -> Iterator[None]:
        """Delete what is ready and delayed now; what is reserved or comes later stays."""
        removed, after, last = 0, queue.row.first, queue.row.last
        queue.skip_all()
        while keys := self._store.keys(after, last, LONG_STEP):
            after = keys[-1]
            doomed = [key for key in keys if key not in queue.reserved]
            if doomed:
                self._store.delete(doomed)
                queue.row.messages -= len(doomed)
                removed += len(doomed)
                self._changes.totals.flushed += len(doomed)
                self._changes.changed.add(queue)
            yield
        while count := self._store.flush_delayed(queue.row.id, LONG_STEP):
            queue.row.delayed -= count
            removed += count
            self._changes.totals.flushed += count
            self._changes.changed.add(queue)
            yield
        client.done(removed)

    def _transfer(self, source: Queue, target: Queue, limit: int, client: JobClient) -> Iterator[None]:
        """Move ready messages, oldest first, to the end of another queue; each step is one commit."""
        left = limit or source.ready
        moved = 0
        while left > 0:
            now_ms = self._clock.epoch_ms()
            entries = self._dispatcher.take_ready(source, min(left, STEP), now_ms)
            if not entries:
                break
            try:
                self._intake.add(target, [_copy_of(entry, now_ms) for entry in entries])
            except DamagedPage:
                self._dispatcher.give_back(
                    source, {one[0]: one[5] if len(one) == 6 else 0 for one in entries}
                )
                raise
            target.row.published += len(entries)
            self._store.delete([entry[0] for entry in entries])
            source.row.messages -= len(entries)
            self._changes.totals.transferred += len(entries)
            self._changes.changed.add(source)
            moved += len(entries)
            left -= len(entries)
            yield
        client.done(moved)

    def _prune(self, keep_s: float) -> Iterator[None]:
        """Forget archived messages that are older than they need to be."""
        before_ms = self._clock.epoch_ms() - int(keep_s * 1000)
        while self._store.prune_archive(before_ms):
            yield

    # -- time

    def _promote(self, now_ms: int) -> None:
        """Delayed messages whose time has come join the end of their queues."""
        later = self._store.due(now_ms, STEP)
        by_queue: dict[int, list[Later]] = {}
        for row in later:
            by_queue.setdefault(row.queue, []).append(row)
        moved: list[int] = []
        for number, rows in by_queue.items():
            queue = self._catalogue.by_id[number]
            new: list[Entry] = []
            entries: list[Entry] = []
            counts: list[tuple[int, int]] = []
            for key, row in enumerate(rows, queue.row.next):
                raw = None if row.extra is None else msgspec.Raw(row.extra)
                new.append((key, row.body, row.extra, row.published_ms, row.expires_ms))
                entry: Entry = (key, row.body, raw, row.published_ms, row.expires_ms)
                entries.append((*entry, row.count) if row.count else entry)
                counts.extend([(key, row.count)] if row.count else [])
            try:
                self._intake.insert(queue, new, entries)
            except DamagedPage as exc:
                # They stay delayed, and are tried again once the queue was repaired and the broker restarted.
                self._catalogue.isolate(exc.queue, exc)
                continue
            self._changes.counts.extend(counts)
            queue.row.delayed -= len(rows)
            moved.extend(row.id for row in rows)
        if moved:
            self._store.delete_delayed(moved)
        upcoming = self._store.next_due_ms()
        stuck = upcoming is not None and len(moved) < len(later)
        self._intake.due_ms = max(upcoming or 0, now_ms + RECHECK_MS) if stuck else upcoming

    def _expire(self, now_ms: int) -> None:
        """Bury what expired unseen. Reserved messages are left to whoever has them."""
        rows = self._store.expired(now_ms, self._swept, LONG_STEP)
        buried = 0
        for expires_ms, key in rows:
            if buried == STEP:
                return
            self._swept = (expires_ms, key)
            queue = self._catalogue.by_id.get(queue_of(key))
            if queue is None or queue.damage or key in queue.reserved:
                continue
            try:
                entry = self._store.get(key, 0)
                if entry is not None:
                    self._dispatcher.bury_expired(queue, entry)
                    buried += 1
            except DamagedPage as exc:
                self._catalogue.isolate(exc.queue, exc)
        if len(rows) < LONG_STEP:
            self._swept = (0, 0)
            upcoming = self._store.next_expiry_ms()
            self._intake.expiry_ms = None if upcoming is None else max(upcoming, now_ms + RECHECK_MS)


def _copy_of(entry: Entry, now_ms: int) -> Item:
    extra = unpack_extra(None if entry[2] is None else bytes(entry[2]))
    return Item(entry[1], extra, 0, max(1, entry[4] - now_ms) if entry[4] else 0)
