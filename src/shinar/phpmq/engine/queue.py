"""One queue in memory: a window onto the store, what came back, and who is waiting.

Every message of the queue at or below `loaded` is in the window, in `returned`, or reserved under a lease;
everything above it is on disk only. That keeps memory flat whatever the queue's length, and order by key:
what came back is older than the window, and the window is older than the rest on disk.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from shinar.phpmq.engine.accounts import Account
from shinar.phpmq.engine.leases import Lease
from shinar.phpmq.engine.options import RequestRefused
from shinar.phpmq.store import BrokerStore, Entry, QueueRow

#: What an entry costs beside its body: tuple, integers, object headers.
ENTRY_BYTES: Final = 300
#: One read from the store: enough to make the read cheap, little enough to keep latency low.
REFILL_ROWS: Final = 1000
REFILL_BYTES: Final = 2 * 1024 * 1024
#: Entries a window takes straight from publishers; later ones are read back from disk.
WINDOW_ROWS: Final = 4000
#: Bodies given out in one reply, and to a plain consumer in one go.
TAKE_BYTES: Final = 4 * 1024 * 1024
PLAIN_TAKE_BYTES: Final = 512 * 1024
#: Returned messages read from the store in one go.
RETURNED_ROWS: Final = 200
#: Up to so many returned messages are sorted in one by one; more are merged at once.
INSERT_ONE_BY_ONE: Final = 8


class Peer(Protocol):
    """A connection, as far as a queue is concerned."""

    leases: dict[int, Lease]
    waiting: dict[Waiter, Queue]

    @property
    def account(self) -> Account: ...
    def writable(self) -> bool: ...
    def deliver(self, waiter: Waiter, lease: Lease | None, entries: list[Entry]) -> None: ...
    def dispatch(self, consumer: PlainConsumer, entries: list[Entry]) -> None: ...
    def refuse(self, tag: int, refused: RequestRefused) -> None: ...
    def cut_off(self, reason: Exception | str) -> None: ...


class PlainConsumer:
    """A plain PHPMQ consumer: it may hold `window` messages at a time."""

    __slots__ = ("held", "peer", "queue", "window")

    def __init__(self, peer: Peer, queue: Queue, window: int) -> None:
        self.peer = peer
        self.queue = queue
        self.window = window
        #: key -> token of its lease
        self.held: dict[int, int] = {}

    @property
    def credit(self) -> int:
        return self.window - len(self.held) if self.peer.writable() else 0


class Waiter:
    """A reserve that waits for its first message."""

    __slots__ = ("deadline_s", "detached", "done", "lease_s", "limit", "peer", "tag")

    def __init__(
        self, peer: Peer, tag: int, limit: int, *, deadline_s: float, lease_s: float, detached: bool
    ) -> None:
        self.peer = peer
        self.tag = tag
        self.limit = limit
        self.deadline_s = deadline_s
        self.lease_s = lease_s
        self.detached = detached
        self.done = False


class Budget:
    """Bytes of bodies in all windows together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Queue:
    def __init__(self, row: QueueRow, store: BrokerStore, budget: Budget) -> None:
        self.row = row
        self._store = store
        self._budget = budget
        self._window: deque[Entry] = deque()
        self.loaded = row.first
        #: Keys that came back, negated and ascending: the oldest is the last. A key without a count is gone.
        self._returned: list[int] = []
        self._returned_counts: dict[int, int] = {}
        #: Keys under leases.
        self.reserved: set[int] = set()
        #: What is wrong with it on disk; "" for a sound queue.
        self.damage = ""
        #: Flushes and transfers that still refer to it.
        self.jobs = 0
        #: Reserves in the order they came.
        self.waiters: dict[Waiter, None] = {}
        self.consumers: deque[PlainConsumer] = deque()
        #: Taken entries whose TTL had ended; the dispatcher buries them.
        self.overdue: list[Entry] = []

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def never_used(self) -> bool:
        return self.row.next == self.row.first + 1 and not (
            self.row.delayed or self.waiters or self.consumers or self.jobs
        )

    @property
    def ready(self) -> int:
        return self.row.messages - len(self.reserved)

    def published(self, entries: list[Entry]) -> None:
        """New messages, already in the store; keep them in memory if nothing on disk is before them."""
        row = self.row
        whole = self.loaded == row.last
        row.next += len(entries)
        row.messages += len(entries)
        if whole and len(self._window) < WINDOW_ROWS and self._budget.used < self._budget.limit:
            self._window.extend(entries)
            self._budget.used += sum([len(entry[1]) for entry in entries]) + ENTRY_BYTES * len(entries)
            self.loaded = row.last

    def give_back(self, counts: dict[int, int]) -> None:
        """Messages return to their old places: key -> how often each has been delivered."""
        self._returned_counts.update(counts)
        if len(counts) <= INSERT_ONE_BY_ONE:
            for key in counts:
                bisect.insort(self._returned, -key)
        else:
            self._returned.extend([-key for key in counts])
            self._returned.sort()  # two sorted runs, merged in linear time

    def discard(self, key: int) -> None:
        """The message left the store without being taken from here."""
        self._returned_counts.pop(key, None)

    def browse(self, after: int, limit: int, max_bytes: int, now_ms: int) -> list[Entry]:
        """Ready messages behind a key, oldest first. Nothing is taken, and reserved ones cost nothing."""
        found: list[Entry] = []
        size = 0
        for entry in self._in_memory(after, now_ms):
            if len(found) >= limit or size >= max_bytes:
                return found
            found.append(entry)
            size += len(entry[1])
        if len(found) < limit and size < max_bytes and self.loaded < self.row.last:
            after = max(after, self.loaded)
            found += self._store.load(after, self.row, limit - len(found), max_bytes - size)
        return found

    def _in_memory(self, after: int, now_ms: int) -> Iterable[Entry]:
        for index in range(bisect.bisect_left(self._returned, -after) - 1, -1, -1):
            key = -self._returned[index]
            count = self._returned_counts.get(key)
            entry = None if count is None else self._store.get(key, count)
            if entry is not None:
                yield entry
        if self._window and self._window[-1][0] > after:
            for entry in self._window:
                # One whose time is over may have been buried already.
                if entry[0] > after and not 0 < entry[4] <= now_ms:
                    yield entry

    def take(self, limit: int, now_ms: int, max_bytes: int = TAKE_BYTES) -> list[Entry]:
        """Up to `limit` ready messages in order. They are out of the window, and nobody's yet."""
        taken: list[Entry] = []
        size = freed = 0
        window = self._window
        returned: deque[Entry] = deque()
        while len(taken) < limit and size < max_bytes:
            if self._returned and not returned:
                returned = self._take_returned(min(limit - len(taken), RETURNED_ROWS))
                if not returned:
                    continue
            if returned:
                entry = returned.popleft()
            elif window or self._refill():
                entry = window.popleft()
                freed += len(entry[1]) + ENTRY_BYTES
            else:
                break
            if entry[4] and entry[4] <= now_ms:
                self.overdue.append(entry)
                continue
            taken.append(entry)
            size += len(entry[1])
        self._budget.used -= freed
        if returned:
            self.give_back({entry[0]: entry[5] if len(entry) == 6 else 0 for entry in returned})
        return taken

    def _take_returned(self, limit: int) -> deque[Entry]:
        """The first messages that came back, without those that were flushed or expired meanwhile."""
        keys = [-key for key in reversed(self._returned[-limit:])]
        del self._returned[-limit:]
        counts = {key: self._returned_counts.pop(key) for key in keys if key in self._returned_counts}
        return deque(self._store.get_many(counts)) if counts else deque()

    def _refill(self) -> bool:
        if self.loaded == self.row.last:
            return False
        entries = self._store.load(self.loaded, self.row, REFILL_ROWS, REFILL_BYTES)
        self._window.extend(entries)
        self._budget.used += sum(len(entry[1]) + ENTRY_BYTES for entry in entries)
        self.loaded = entries[-1][0] if entries else self.row.last
        return bool(entries)

    def skip_all(self) -> None:
        """Drop what is ready from memory, because it is being flushed."""
        self._budget.used -= sum(len(entry[1]) + ENTRY_BYTES for entry in self._window)
        self._window.clear()
        self._returned.clear()
        self._returned_counts.clear()
        self.loaded = self.row.last

    def demand(self) -> list[tuple[Waiter | PlainConsumer, int]]:
        """Who would take how many now."""
        wanted: list[tuple[Waiter | PlainConsumer, int]] = [
            (waiter, waiter.limit) for waiter in self.waiters if waiter.peer.writable()
        ]
        for consumer in self.consumers:
            credit = consumer.credit
            if credit > 0:
                wanted.append((consumer, credit))
        if len(self.consumers) > 1:
            # Who came first this time comes last the next time.
            self.consumers.rotate(-1)
        return wanted
