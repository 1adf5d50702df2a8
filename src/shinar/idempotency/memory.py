"""Marks in this process only: bounded by count and age. For tests, and for queues nobody else reads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from shinar.clock import SYSTEM, Clock
from shinar.idempotency.guard import TTL_S, each

#: The oldest marks go first once there are more: about 100 MB of ids.
MAX_IDS: Final = 500_000


class MemoryStore:
    def __init__(self, *, ttl_s: float = TTL_S, max_ids: int = MAX_IDS, clock: Clock = SYSTEM) -> None:
        self._ttl_s = ttl_s
        self._max_ids = max_ids
        self._clock = clock
        self._lock = threading.Lock()
        #: id -> end of its mark, in the order of marking; one ttl for all, so the first ends first.
        self._ends_s: OrderedDict[str, float] = OrderedDict()

    def seen(self, ids: Iterable[str]) -> set[str]:
        now_s = self._clock.monotonic_s()
        with self._lock:
            return {id_ for id_ in each(ids) if self._ends_s.get(id_, now_s) > now_s}

    def remember(self, ids: Iterable[str]) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            for id_ in each(ids):
                self._ends_s[id_] = now_s + self._ttl_s
                self._ends_s.move_to_end(id_)
            self._evict(now_s)

    def forget(self, ids: Iterable[str]) -> None:
        with self._lock:
            for id_ in each(ids):
                self._ends_s.pop(id_, None)

    def close(self) -> None:
        with self._lock:
            self._ends_s.clear()

    def _evict(self, now_s: float) -> None:
        while self._ends_s:
            oldest = next(iter(self._ends_s))
            if len(self._ends_s) <= self._max_ids and self._ends_s[oldest] > now_s:
                return
            del self._ends_s[oldest]
