"""Messages into queues: what is refused before anything is written, what is ready now, what is due later.

Must not know leases or clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from shinar.clock import Clock
from shinar.phpmq.engine.catalogue import Catalogue
from shinar.phpmq.engine.changes import Changes
from shinar.phpmq.engine.options import Options, RequestRefused
from shinar.phpmq.engine.queue import Queue
from shinar.phpmq.protocol.extension import Extra, Item, pack_extra, unpack_extra
from shinar.phpmq.store import BrokerStore, DelayedRow, Entry

#: Headers and key of one message together.
MAX_EXTRA_BYTES: Final = 64 * 1024
#: Seconds between two looks at the free disk space.
DISK_CHECK_S: Final = 1.0
#: Headers of a message that was buried, beside its own: why, and where it was.
REASON_HEADER: Final = "phpmq-reason"
SOURCE_HEADER: Final = "phpmq-queue"


class Intake:
    def __init__(
        self, store: BrokerStore, catalogue: Catalogue, changes: Changes, options: Options, clock: Clock
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._changes = changes
        self._options = options
        self._clock = clock
        #: When the next delayed message is due, and when the next message may expire.
        self.due_ms = store.next_due_ms()
        self.expiry_ms = store.next_expiry_ms()
        self._disk_checked_s = float("-inf")
        self._disk_full = False

    def publish(self, name: str, items: Sequence[Item], create: bool = True) -> None:
        self.check(items)
        queue = self._catalogue.get(name, create)
        self.add(queue, items)
        queue.row.published += len(items)
        self._changes.totals.published += len(items)

    def send(self, name: str, bodies: Sequence[tuple[bytes, int]]) -> None:
        """Plain sends: bodies with their TTL in seconds."""
        self._check_disk()
        queue = self._catalogue.get(name)
        now_ms = self._clock.epoch_ms()
        entries: list[Entry] = [
            (key, body, None, now_ms, now_ms + ttl_s * 1000 if ttl_s else 0)
            for key, (body, ttl_s) in enumerate(bodies, queue.row.next)
        ]
        self.insert(queue, entries, entries)
        queue.row.published += len(entries)
        self._changes.totals.published += len(entries)

    def check(self, items: Sequence[Item]) -> None:
        """Refuse before anything is written what could not be written."""
        limit = self._options.limits.max_body_bytes
        for item in items:
            size = len(item.body)
            if size > limit:
                raise RequestRefused(
                    "too-large", f"a body of {size} bytes is over the limit of {limit}", (size, limit)
                )
            if item.extra is not None and (size := _extra_bytes(item.extra)) > MAX_EXTRA_BYTES:
                text = f"headers of {size} bytes are over the limit of {MAX_EXTRA_BYTES}"
                raise RequestRefused("too-large", text, (size, MAX_EXTRA_BYTES))
        self._check_disk()

    def _check_disk(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._disk_checked_s >= DISK_CHECK_S:
            self._disk_checked_s = now_s
            self._disk_full = self._store.free_bytes() < self._options.min_free_bytes
        if self._disk_full:
            self._changes.totals.limit_reached("disk")
            raise RequestRefused(
                "full", "the broker's disk is nearly full; consume messages or free some space"
            )

    def add(self, queue: Queue, items: Sequence[Item]) -> None:
        """Checked items into a queue, or aside until they are due."""
        now_ms = self._clock.epoch_ms()
        key = queue.row.next
        rows: list[Entry] = []
        entries: list[Entry] = []
        later: list[DelayedRow] = []
        for item in items:
            expires_ms = now_ms + item.ttl_ms if item.ttl_ms else 0
            extra = pack_extra(item.extra)
            if item.delay_ms:
                due_ms = now_ms + item.delay_ms
                later.append((due_ms, queue.row.id, item.body, extra, now_ms, expires_ms, 0))
                continue
            row = (key, item.body, extra, now_ms, expires_ms)
            rows.append(row)
            entries.append(row if extra is None else (key, item.body, msgspec.Raw(extra), now_ms, expires_ms))
            key += 1
        if rows:
            self.insert(queue, rows, entries)
        if later:
            self.delay(queue, later)

    def insert(self, queue: Queue, rows: Sequence[Entry], entries: list[Entry]) -> None:
        """The same messages twice: `rows` as the store keeps them, `entries` as memory does."""
        self._store.insert(rows)
        queue.published(entries)
        soonest = min((entry[4] for entry in entries if entry[4]), default=None)
        if soonest is not None:
            self.expiry_ms = soonest if self.expiry_ms is None else min(self.expiry_ms, soonest)
        self._changes.changed.add(queue)
        self._changes.wake(queue)

    def delay(self, queue: Queue, rows: Sequence[DelayedRow]) -> None:
        self._store.delay(rows)
        queue.row.delayed += len(rows)
        self._changes.changed.add(queue)
        soonest = min(row[0] for row in rows)
        self.due_ms = soonest if self.due_ms is None else min(self.due_ms, soonest)

    def bury(self, queue: Queue, entry: Entry, reason: str) -> None:
        """Move a message, with a note, to its queue's dead letters, where it never expires."""
        target = self._catalogue.dead_letters_of(queue)
        extra = unpack_extra(None if entry[2] is None else bytes(entry[2])) or Extra({})
        headers = {**extra.headers, REASON_HEADER: reason, SOURCE_HEADER: queue.name}
        self.add(target, [Item(entry[1], Extra(headers, extra.key))])
        target.row.published += 1
        self._store.delete([entry[0]])
        queue.discard(entry[0])
        queue.row.messages -= 1
        self._changes.changed.add(queue)


def _extra_bytes(extra: Extra) -> int:
    return sum(len(name) + len(value) for name, value in extra.headers.items()) + len(extra.key or b"")
