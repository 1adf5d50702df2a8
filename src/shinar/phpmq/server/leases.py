"""Who holds which message, and until when. In memory only: after a restart nobody holds anything.

Messages handed out together share one lease and one random token; token and key are the receipt, and
whoever shows both may settle. Knows no store and no socket.
"""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from shinar.phpmq.store import Entry

if TYPE_CHECKING:
    from shinar.phpmq.server.queue import Consumer, Peer, Queue

#: Receipts remembered after their ack, so that a repeated ack is recognised and not called lapsed.
REMEMBERED: Final = 20_000
#: Ended leases keep a place in the heap until it has this many spare ones.
SPARE_ENDS: Final = 1000


class Lease:
    __slots__ = ("consumer", "held", "owner", "queue", "renewed", "token", "until_s")

    def __init__(self, queue: Queue, owner: Peer | None, consumer: Consumer | None, until_s: float) -> None:
        self.token = secrets.randbits(62) | 1
        self.queue = queue
        #: The connection whose end ends the lease; None for a detached one.
        self.owner = owner
        self.consumer = consumer
        self.until_s = until_s
        #: key -> deliveries before this one
        self.held: dict[int, int] = {}
        #: Keys whose end was moved on their own.
        self.renewed: dict[int, float] = {}


class Leases:
    def __init__(self) -> None:
        self._by_token: dict[int, Lease] = {}
        self._ends: list[tuple[float, int]] = []
        self._settled: OrderedDict[int, set[int]] = OrderedDict()
        self._remembered = 0
        #: Messages under all leases together.
        self.held = 0

    @property
    def next_end_s(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def grant(
        self, queue: Queue, entries: Iterable[Entry], until_s: float, *,
        owner: Peer | None, consumer: Consumer | None = None,
    ) -> Lease:  # fmt: skip
        lease = Lease(queue, owner, consumer, until_s)
        lease.held = {entry[0]: entry[5] if len(entry) == 6 else 0 for entry in entries}
        self._by_token[lease.token] = lease
        self.held += len(lease.held)
        self._plan(until_s, lease.token)
        if owner is not None:
            owner.leases[lease.token] = lease
            owner.holding += len(lease.held)
        return lease

    def claim(self, token: int, keys: Iterable[int]) -> tuple[Lease | None, dict[int, int], list[int]]:
        """Take keys out of their lease for settling: (lease, key -> earlier deliveries, not held)."""
        lease = self._by_token.get(token)
        if lease is None:
            return None, {}, list(keys)
        taken: dict[int, int] = {}
        missing: list[int] = []
        held = lease.held
        for key in keys:
            count = held.pop(key, None)
            if count is None:
                missing.append(key)
            else:
                taken[key] = count
        self.held -= len(taken)
        if lease.owner is not None:
            lease.owner.holding -= len(taken)
        if lease.consumer is not None:
            for key in taken:
                lease.consumer.held.pop(key, None)
        if not held:
            self._forget(lease)
        return lease, taken, missing

    def remember_settled(self, token: int, keys: Iterable[int]) -> None:
        known = self._settled.setdefault(token, set())
        before = len(known)
        known.update(keys)
        self._remembered += len(known) - before
        while self._remembered > REMEMBERED and len(self._settled) > 1:
            self._remembered -= len(self._settled.popitem(last=False)[1])

    def not_settled(self, token: int, keys: Iterable[int]) -> list[int]:
        """Those of `keys` that were not acknowledged with this token a while ago."""
        known = self._settled.get(token, ())
        return [key for key in keys if key not in known]

    def extend(self, token: int, keys: Iterable[int], until_s: float) -> list[int]:
        """Move the end of some receipts; returns those that are not held any more."""
        lease = self._by_token.get(token)
        if lease is None:
            return list(keys)
        missing = [key for key in keys if key not in lease.held]
        kept = [key for key in keys if key in lease.held]
        if len(kept) == len(lease.held):
            lease.until_s = until_s
            lease.renewed.clear()
        else:
            lease.renewed.update(dict.fromkeys(kept, until_s))
        self._plan(until_s, token)
        return missing

    def lapse(self, now_s: float) -> Iterator[tuple[Lease, dict[int, int]]]:
        """Leases that are over, with the keys that go back."""
        while self._ends and self._ends[0][0] <= now_s:
            _, token = heapq.heappop(self._ends)
            lease = self._by_token.get(token)
            if lease is None:
                continue
            ends = lease.renewed
            over = [key for key in lease.held if ends.get(key, lease.until_s) <= now_s]
            if over:
                _, taken, _ = self.claim(token, over)
                yield lease, taken

    def end(self, token: int) -> tuple[Lease | None, dict[int, int]]:
        """A lease ends before its time, and everything it still holds goes back."""
        lease = self._by_token.get(token)
        return (None, {}) if lease is None else (lease, self.claim(token, list(lease.held))[1])

    def keys_of(self, queue: Queue) -> set[int]:
        return {key for lease in self._by_token.values() if lease.queue is queue for key in lease.held}

    def all_keys(self) -> set[int]:
        return {key for lease in self._by_token.values() for key in lease.held}

    def _plan(self, until_s: float, token: int) -> None:
        if len(self._ends) > SPARE_ENDS + 2 * len(self._by_token):
            self._ends = [
                (end_s, lease.token)
                for lease in self._by_token.values()
                for end_s in {lease.until_s, *lease.renewed.values()}
            ]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (until_s, token))

    def _forget(self, lease: Lease) -> None:
        self._by_token.pop(lease.token, None)
        if lease.owner is not None:
            lease.owner.leases.pop(lease.token, None)
