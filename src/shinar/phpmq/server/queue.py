"""One queue in memory: a window onto the store, what came back, and who is waiting.

Every message of the queue at or below `loaded` is in the window, in `returned`, or held by a lease;
everything above it is on disk only. That keeps memory flat whatever the queue's length, and order by key.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, Protocol

from shinar.phpmq.server.leases import Lease
from shinar.phpmq.store import Entry, QueueRow, Store

#: What an entry costs beside its body: tuple, integers, object headers.
ENTRY_BYTES: Final = 300
#: One read from the store: enough to make the read cheap, little enough to keep latency low.
REFILL_ROWS: Final = 1000
REFILL_BYTES: Final = 2 * 1024 * 1024
#: Entries a window takes straight from publishers; later ones are read back from disk.
WINDOW_ROWS: Final = 4000
#: Bodies given out in one reply, and to a plain consumer in one go.
TAKE_BYTES: Final = 8 * 1024 * 1024
PLAIN_TAKE_BYTES: Final = 512 * 1024


class Peer(Protocol):
    """A connection, as far as a queue is concerned."""

    leases: dict[int, Lease]
    waiting: dict[Waiter, Queue]
    #: Messages under its leases.
    holding: int

    def writable(self) -> bool: ...
    def deliver(self, waiter: Waiter, lease: Lease | None, entries: list[Entry]) -> None: ...
    def dispatch(self, consumer: Consumer, entries: list[Entry]) -> None: ...


class Consumer:
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
    def __init__(self, row: QueueRow, store: Store, budget: Budget) -> None:
        self.row = row
        self._store = store
        self._budget = budget
        self._window: deque[Entry] = deque()
        self.loaded = row.first
        self._returned: list[int] = []
        self._returned_counts: dict[int, int] = {}
        #: Messages held by leases.
        self.inflight = 0
        #: Reserves in the order they came.
        self.waiters: dict[Waiter, None] = {}
        self.consumers: deque[Consumer] = deque()
        #: Taken entries whose time was over; the engine buries them.
        self.overdue: list[Entry] = []

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def never_used(self) -> bool:
        return self.row.next == self.row.first + 1 and not (
            self.row.delayed or self.waiters or self.consumers
        )

    @property
    def ready(self) -> int:
        return self.row.messages - self.inflight

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
        """Held messages return to their old places, delivered once more than before."""
        self.inflight -= len(counts)
        for key, count in counts.items():
            self._returned_counts[key] = count + 1
            heapq.heappush(self._returned, key)

    def take(self, limit: int, now_ms: int, max_bytes: int = TAKE_BYTES) -> list[Entry]:
        """Up to `limit` ready messages in order. They are out of the window, and nobody's yet."""
        taken: list[Entry] = []
        size = freed = 0
        window = self._window
        while len(taken) < limit and size < max_bytes:
            if self._returned:
                entry = self._take_returned()
                if entry is None:
                    continue
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
        return taken

    def _take_returned(self) -> Entry | None:
        """The first message that came back; None when it was flushed or expired meanwhile."""
        key = heapq.heappop(self._returned)
        count = self._returned_counts.pop(key, None)
        return None if count is None else self._store.get(key, count)

    def _refill(self) -> bool:
        if self.loaded == self.row.last:
            return False
        entries = self._store.load(self.loaded, self.row, REFILL_ROWS, REFILL_BYTES)
        self._window.extend(entries)
        self._budget.used += sum(len(entry[1]) + ENTRY_BYTES for entry in entries)
        self.loaded = entries[-1][0] if entries else self.row.last
        return bool(entries)

    def skip_all(self) -> None:
        """Forget what is ready, because it is being flushed."""
        self._budget.used -= sum(len(entry[1]) + ENTRY_BYTES for entry in self._window)
        self._window.clear()
        self._returned.clear()
        self._returned_counts.clear()
        self.loaded = self.row.last

    def demand(self) -> list[tuple[Waiter | Consumer, int]]:
        """Who would take how many now."""
        wanted: list[tuple[Waiter | Consumer, int]] = [
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
