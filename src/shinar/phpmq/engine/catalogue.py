"""Queues by name: finding, creating, the limit on their number, and the damaged ones.

Must not know messages, leases or clients.
"""

from __future__ import annotations

import logging
from typing import Final

from shinar.phpmq.engine.changes import Changes
from shinar.phpmq.engine.options import Options, RequestRefused
from shinar.phpmq.engine.queue import Budget, Queue
from shinar.phpmq.store import BrokerStore

log = logging.getLogger("shinar.phpmq")

#: Behind a queue's name: where its dead letters and its expired messages are kept.
DLQ_SUFFIX: Final = ".dlq"


class Catalogue:
    def __init__(
        self, store: BrokerStore, options: Options, changes: Changes, damaged: dict[str, str]
    ) -> None:
        self._store = store
        self._options = options
        self._changes = changes
        self._budget = Budget(options.memory_bytes)
        #: Name -> what is wrong with it. It outlives a reload of the engine, so that a queue fails only once.
        self._damaged = damaged
        self.by_name = {row.name: Queue(row, store, self._budget) for row in store.queues()}
        self.by_id = {queue.row.id: queue for queue in self.by_name.values()}
        for queue in self.by_name.values():
            queue.damage = damaged.get(queue.name, "")

    @property
    def window_bytes(self) -> int:
        return self._budget.used

    def find(self, name: str) -> Queue | None:
        return self.by_name.get(name)

    def get(self, name: str, create: bool = True) -> Queue:
        """A queue that can be used; created if need be."""
        found = self.by_name.get(name)
        if found is not None:
            if found.damage:
                raise RequestRefused("failed", damage_text(found))
            return found
        if not create:
            raise RequestRefused("no-queue", f"queue {name} does not exist; publish to it first")
        if not name or not name.isprintable() or self.too_long(name):
            raise RequestRefused("bad-request", "a queue name is 1 to 255 bytes of printable text")
        if self._at_limit(name) and not (self._drop_unused() and not self._at_limit(name)):
            self._changes.totals.limit_reached("queues")
            limit = self._options.max_queues
            raise RequestRefused("full", f"the broker has {limit} queues already; raise --max-queues")
        return self._create(name)

    def dead_letters_of(self, queue: Queue) -> Queue:
        """Where a queue's dead letters go; those of a dead-letter queue stay where they are."""
        name = queue.name + DLQ_SUFFIX
        if queue.name.endswith(DLQ_SUFFIX) or self.too_long(name):
            return queue
        return self.by_name.get(name) or self._create(name)

    def too_long(self, name: str) -> bool:
        return len(name.encode("utf-8", "surrogatepass")) > self._options.limits.max_queue_bytes

    def isolate(self, number: int, error: Exception) -> Queue | None:
        """A page of this queue cannot be read: the queue is closed until it is repaired, others go on."""
        queue = self.by_id.get(number)
        if queue is None:
            return None
        if not queue.damage:
            queue.damage = self._damaged[queue.name] = str(error)
            self._changes.totals.damaged_queues += 1
            log.error("queue %s is closed, others go on: %s", queue.name, error)
        return queue

    def _at_limit(self, name: str) -> bool:
        """A queue and its dead-letter queue count as one, so burying a message never needs a free slot."""
        if len(self.by_name) < self._options.max_queues:
            return False
        if name.endswith(DLQ_SUFFIX) and name.removesuffix(DLQ_SUFFIX) in self.by_name:
            return False
        companions = sum(
            1
            for one in self.by_name
            if one.endswith(DLQ_SUFFIX) and one.removesuffix(DLQ_SUFFIX) in self.by_name
        )
        return len(self.by_name) - companions >= self._options.max_queues

    def _create(self, name: str) -> Queue:
        queue = Queue(self._store.create_queue(name), self._store, self._budget)
        self.by_name[name] = queue
        self.by_id[queue.row.id] = queue
        return queue

    def _drop_unused(self) -> bool:
        """Forget queues that were only ever waited for."""
        unused = [queue for queue in self.by_name.values() if queue.never_used]
        for queue in unused:
            self._store.drop_queue(queue.row.id)
            del self.by_name[queue.name], self.by_id[queue.row.id]
            self._changes.forget(queue)
        return bool(unused)


def damage_text(queue: Queue) -> str:
    return (
        f"queue {queue.name} is damaged on disk and closed ({queue.damage}); stop the broker and run "
        "`shinar broker fsck`, or restore a backup"
    )
