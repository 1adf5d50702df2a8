"""Who has reserved which message, and until when. In memory only: a restart ends every lease.

Messages handed out together share one lease and one random token; token and key are the receipt, and
whoever shows both may settle. Must not know the store or a socket.
"""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from shinar.phpmq.store import Entry

if TYPE_CHECKING:
    from shinar.phpmq.engine.accounts import Account
    from shinar.phpmq.engine.queue import Peer, PlainConsumer, Queue

#: Receipts remembered after their ack, so that a repeated ack is recognised and not called lapsed.
REMEMBERED: Final = 20_000
#: Ended leases stay in the heap until it has this many spare rows.
SPARE_ENDS: Final = 1000
#: When a lease that was ended before its time is over: before everything else.
ENDED_S: Final = float("-inf")


class Lease:
    __slots__ = ("account", "consumer", "ended", "held", "owner", "queue", "renewed", "token", "until_s")

    def __init__(
        self, queue: Queue, account: Account, until_s: float, *, owner: Peer | None,
        consumer: PlainConsumer | None,
    ) -> None:  # fmt: skip
        self.token = secrets.randbits(62) | 1
        self.queue = queue
        #: The client whose limit the messages count against, detached or not.
        self.account = account
        #: The connection whose end ends the lease; None for a detached one.
        self.owner = owner
        self.consumer = consumer
        self.until_s = until_s
        #: key -> deliveries before this one
        self.held: dict[int, int] = {}
        #: Keys whose end was moved on their own.
        self.renewed: dict[int, float] = {}
        #: True: its connection is gone, and what is left goes back with the next ticks.
        self.ended = False


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
        account: Account, owner: Peer | None, consumer: PlainConsumer | None = None,
    ) -> Lease:  # fmt: skip
        lease = Lease(queue, account, until_s, owner=owner, consumer=consumer)
        lease.held = {entry[0]: entry[5] if len(entry) == 6 else 0 for entry in entries}
        self._by_token[lease.token] = lease
        queue.reserved.update(lease.held)
        self.held += len(lease.held)
        account.reserved += len(lease.held)
        self._plan(until_s, lease.token)
        if owner is not None:
            owner.leases[lease.token] = lease
        return lease

    def claim(self, token: int, keys: Iterable[int]) -> tuple[Lease | None, dict[int, int], list[int]]:
        """Take keys out of their lease for settling: (lease, key -> earlier deliveries, not held)."""
        lease = self._by_token.get(token)
        if lease is None or lease.ended:
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
        self._let_go(lease, taken)
        return lease, taken, missing

    def _let_go(self, lease: Lease, taken: dict[int, int]) -> None:
        lease.queue.reserved.difference_update(taken)
        self.held -= len(taken)
        lease.account.reserved -= len(taken)
        if lease.consumer is not None:
            for key in taken:
                lease.consumer.held.pop(key, None)
        if not lease.held:
            self._forget(lease)

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
        if lease is None or lease.ended:
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

    def lapse(self, now_s: float, most: int) -> Iterator[tuple[Lease, dict[int, int]]]:
        """Leases that are over, with the keys that go back; about `most` keys are looked at."""
        while most > 0 and self._ends and self._ends[0][0] <= now_s:
            _, token = heapq.heappop(self._ends)
            lease = self._by_token.get(token)
            most -= 1
            if lease is None:
                continue
            most -= len(lease.held)
            ends = lease.renewed
            over = [key for key in lease.held if lease.ended or ends.get(key, lease.until_s) <= now_s]
            if over:
                taken = {key: lease.held.pop(key) for key in over}
                self._let_go(lease, taken)
                yield lease, taken

    def end(self, token: int) -> None:
        """A lease ends before its time: nobody may settle it, and `lapse` gives back what it holds."""
        lease = self._by_token.get(token)
        if lease is not None and not lease.ended:
            lease.ended = True
            heapq.heappush(self._ends, (ENDED_S, token))

    def _plan(self, until_s: float, token: int) -> None:
        if len(self._ends) > SPARE_ENDS + 2 * len(self._by_token):
            self._ends = [
                (end_s, lease.token)
                for lease in self._by_token.values()
                for end_s in ({ENDED_S} if lease.ended else {lease.until_s, *lease.renewed.values()})
            ]
            heapq.heapify(self._ends)
        heapq.heappush(self._ends, (until_s, token))

    def _forget(self, lease: Lease) -> None:
        self._by_token.pop(lease.token, None)
        if lease.owner is not None:
            lease.owner.leases.pop(lease.token, None)
