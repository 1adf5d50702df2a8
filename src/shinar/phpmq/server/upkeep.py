"""What time and operators bring about: delays that end, leases that end, expiry, flush, transfer.

All of it in steps of bounded size, a step each tick, so that a million messages to flush hold up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from shinar.phpmq.protocol.extension import Extra, Item, unpack_extra
from shinar.phpmq.store import Entry, Later, queue_of

if TYPE_CHECKING:
    from shinar.phpmq.server.engine import Engine
    from shinar.phpmq.server.queue import Queue

#: Behind a queue's name: where its dead letters and its expired messages are kept.
DLQ_SUFFIX: Final = ".dlq"
#: Headers of a message that was buried, beside its own: why, and where it was.
REASON_HEADER: Final = "phpmq-reason"
SOURCE_HEADER: Final = "phpmq-queue"
DEAD: Final = "dead-letter"
EXPIRED: Final = "expired"
#: Messages one step touches.
STEP: Final = 500
#: Expired messages that somebody holds are looked at again after this.
RECHECK_MS: Final = 1000


def run(engine: Engine, now_ms: int, now_s: float) -> None:
    """Everything that is due."""
    if engine.due_ms is not None and engine.due_ms <= now_ms:
        _promote(engine, now_ms)
    end_s = engine.leases.next_end_s
    if end_s is not None and end_s <= now_s:
        for lease, taken in engine.leases.lapse(now_s):
            engine.totals.lapsed += len(taken)
            engine.give_back(lease.queue, taken)
    if engine.expiry_ms is not None and engine.expiry_ms <= now_ms:
        _expire(engine, now_ms)
    if engine.jobs and engine.counts:
        # A job deletes counts together with their messages, so they must be there already.
        engine.store.add_counts(engine.counts)
        engine.counts.clear()
    if engine.jobs and next(engine.jobs[0], engine) is engine:
        engine.jobs.popleft()


def bury(engine: Engine, queue: Queue, entry: Entry, reason: str) -> None:
    """Move a message, with a note, to its queue's dead letters; it never expires there."""
    name = queue.name + DLQ_SUFFIX
    target = queue if engine.too_long(name) else engine.find(name) or engine.create(name)
    extra = unpack_extra(None if entry[2] is None else bytes(entry[2])) or Extra({})
    headers = {**extra.headers, REASON_HEADER: reason, SOURCE_HEADER: queue.name}
    engine.add(target, [Item(entry[1], Extra(headers, extra.key))])
    engine.store.delete([entry[0]], counted=True)
    queue.row.messages -= 1
    engine.changed(queue)


def bury_overdue(engine: Engine, queue: Queue) -> None:
    """Messages that turned out to be expired when somebody wanted them."""
    overdue, queue.overdue = queue.overdue, []
    for entry in overdue:
        # The sweep may have been there first: then the row is gone, and counted.
        if engine.store.get(entry[0], 0) is not None:
            _bury_expired(engine, queue, entry)


def flush(engine: Engine, queue: Queue, done: Callable[[int], None]) -> Iterator[None]:
    """Delete what is ready and delayed now; what is held or comes later stays."""
    removed, after, last = 0, queue.row.first, queue.row.last
    queue.skip_all()
    while keys := engine.store.keys(after, last, STEP * 4):
        after = keys[-1]
        held = engine.leases.keys_of(queue) if queue.inflight else frozenset()
        doomed = [key for key in keys if key not in held]
        if doomed:
            engine.store.delete(doomed, counted=True)
            queue.row.messages -= len(doomed)
            removed += len(doomed)
            engine.changed(queue)
        yield
    while count := engine.store.flush_delayed(queue.row.id, STEP * 4):
        queue.row.delayed -= count
        removed += count
        engine.changed(queue)
        yield
    done(removed)


def transfer(
    engine: Engine, source: Queue, target: Queue, limit: int, done: Callable[[int], None]
) -> Iterator[None]:
    """Move ready messages, oldest first, to the end of another queue; each step is one commit."""
    left = limit or source.ready
    moved = 0
    while left > 0:
        entries = source.take(min(left, STEP), engine.clock.epoch_ms())
        bury_overdue(engine, source)
        if not entries:
            break
        items = []
        for entry in entries:
            extra = unpack_extra(None if entry[2] is None else bytes(entry[2]))
            items.append(
                Item(entry[1], extra, 0, max(0, entry[4] - engine.clock.epoch_ms()) if entry[4] else 0)
            )
        engine.add(target, items)
        target.row.published += len(items)
        engine.store.delete([entry[0] for entry in entries], counted=True)
        source.row.messages -= len(entries)
        engine.changed(source)
        moved += len(entries)
        left -= len(entries)
        yield
    done(moved)


def prune(engine: Engine, keep_s: float) -> Iterator[None]:
    """Forget archived messages that are older than they need to be."""
    before_ms = engine.clock.epoch_ms() - int(keep_s * 1000)
    while engine.store.prune_archive(before_ms):
        yield


def _promote(engine: Engine, now_ms: int) -> None:
    """Delayed messages whose time has come join the end of their queues."""
    later = engine.store.due(now_ms, STEP)
    by_queue: dict[int, list[Later]] = {}
    for row in later:
        by_queue.setdefault(row.queue, []).append(row)
    for number, rows in by_queue.items():
        queue = engine.by_id[number]
        new: list[Entry] = []
        entries: list[Entry] = []
        for key, row in enumerate(rows, queue.row.next):
            raw = None if row.extra is None else msgspec.Raw(row.extra)
            new.append((key, row.body, row.extra, row.published_ms, row.expires_ms))
            entry: Entry = (key, row.body, raw, row.published_ms, row.expires_ms)
            entries.append((*entry, row.count) if row.count else entry)
            engine.counts.extend([(key, row.count)] if row.count else [])
        engine.insert(queue, new, entries)
        queue.row.delayed -= len(rows)
    if later:
        engine.store.delete_delayed([row.id for row in later])
    engine.due_ms = engine.store.next_due_ms()


def _expire(engine: Engine, now_ms: int) -> None:
    """Bury what expired unseen. Held messages are left to whoever holds them."""
    held = engine.leases.all_keys()
    found: list[int] = []
    rows = engine.store.expired(now_ms)
    for key in rows:
        if key not in held:
            found.append(key)
            if len(found) == STEP:
                break
    rows.close()
    for key in found:
        entry = engine.store.get(key, 0)
        if entry is not None:
            _bury_expired(engine, engine.by_id[queue_of(key)], entry)
    if len(found) < STEP:
        upcoming = engine.store.next_expiry_ms()
        engine.expiry_ms = None if upcoming is None else max(upcoming, now_ms + RECHECK_MS)


def _bury_expired(engine: Engine, queue: Queue, entry: Entry) -> None:
    bury(engine, queue, entry, EXPIRED)
    queue.row.expired += 1
    engine.totals.expired += 1
