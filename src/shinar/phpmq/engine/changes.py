"""What happened since the last commit: queues to write, queues to look at, delivery counts; and the counters.

Every part of the engine notes its effects here, and the tick commits them. Must not know a rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shinar.clock import Clock
from shinar.phpmq.engine.queue import Queue
from shinar.phpmq.store import BrokerStore


@dataclass(slots=True)
class Totals:
    """Counters since the start, for metrics."""

    published: int = 0
    delivered: int = 0
    acked: int = 0
    released: int = 0
    moved: int = 0
    lapsed: int = 0
    expired: int = 0
    dead: int = 0
    flushed: int = 0
    transferred: int = 0
    commits: int = 0
    commit_s: float = 0.0
    store_failures: int = 0
    damaged_queues: int = 0
    failed_logins: int = 0
    #: Requests refused because their client, or the broker, was at a limit: limit -> requests.
    limited: dict[str, int] = field(default_factory=dict)
    cut_off: dict[str, int] = field(default_factory=dict)

    def limit_reached(self, limit: str) -> None:
        self.limited[limit] = self.limited.get(limit, 0) + 1


class Changes:
    def __init__(self, store: BrokerStore, totals: Totals, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.totals = totals
        #: Queues whose figures go into the next commit.
        self.changed: set[Queue] = set()
        #: Queues from which somebody may be able to take now, in the order they were noted.
        self.awake: dict[Queue, None] = {}
        #: (key, deliveries so far) for the next commit; a later row of the same key replaces an earlier one.
        self.counts: list[tuple[int, int]] = []

    def wake(self, queue: Queue) -> None:
        self.awake[queue] = None

    def forget(self, queue: Queue) -> None:
        """The queue was dropped."""
        self.changed.discard(queue)
        self.awake.pop(queue, None)

    def write_counts(self) -> None:
        """Before messages are deleted whose counts are still to be written, or the rows would be orphans."""
        if self.counts:
            self._store.add_counts(self.counts)
            self.counts.clear()

    def commit(self) -> None:
        started_s = self._clock.monotonic_s()
        self._store.commit([queue.row for queue in self.changed], self.counts)
        self.totals.commit_s += self._clock.monotonic_s() - started_s
        self.totals.commits += 1
        self.changed.clear()
        self.counts.clear()
