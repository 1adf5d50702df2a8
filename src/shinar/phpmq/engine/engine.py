"""The broker itself, put together from its parts. Synchronous, without sockets.

Requests change the store's open transaction and memory together; `tick` does one step of what is due, hands
out what can be handed out, and commits everything since the last tick at once. Only then may replies leave.
If the store fails, memory is not to be trusted any more: `reload` begins again from the file.
"""

from __future__ import annotations

from shinar.clock import Clock
from shinar.phpmq.engine.accounts import Accounts
from shinar.phpmq.engine.catalogue import Catalogue
from shinar.phpmq.engine.changes import Changes, Totals
from shinar.phpmq.engine.dispatcher import Dispatcher
from shinar.phpmq.engine.intake import Intake
from shinar.phpmq.engine.leases import Leases
from shinar.phpmq.engine.options import Options
from shinar.phpmq.engine.settler import Settler
from shinar.phpmq.engine.upkeep import Upkeep
from shinar.phpmq.store import BrokerStore


class BrokerEngine:
    def __init__(self, store: BrokerStore, options: Options, clock: Clock) -> None:
        self.store = store
        self.options = options
        self.clock = clock
        self.totals = Totals()
        self._damaged: dict[str, str] = {}
        self.reload()

    def reload(self) -> None:
        """Memory as after a start: no message is reserved, and nobody waits."""
        store, options, clock = self.store, self.options, self.clock
        store.rollback()
        self.accounts = Accounts()
        self.leases = leases = Leases()
        self._changes = changes = Changes(store, self.totals, clock)
        self.queues = queues = Catalogue(store, options, changes, self._damaged)
        self.intake = intake = Intake(store, queues, changes, options, clock)
        self.dispatcher = dispatcher = Dispatcher(store, queues, intake, leases, changes, options)
        self.settlement = Settler(
            store, queues, intake, dispatcher, leases=leases, changes=changes, clock=clock
        )
        self.upkeep = Upkeep(store, queues, intake, dispatcher, leases=leases, changes=changes, clock=clock)

    def tick(self) -> None:
        """Do what is due, hand out, and make it all durable. Replies may leave when this returns."""
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        self.upkeep.run(now_ms, now_s)
        self.dispatcher.run(now_ms, now_s)
        self._changes.commit()

    def wake(self, *names: str) -> None:
        """Somebody may be able to take from these queues now."""
        for name in names:
            queue = self.queues.find(name)
            if queue is not None:
                self._changes.wake(queue)

    def next_wake_s(self) -> float | None:
        """Seconds until `tick` has something to do of its own; None when nothing is planned."""
        if self._changes.awake or self.upkeep.busy:
            return 0.0
        now_ms, now_s = self.clock.epoch_ms(), self.clock.monotonic_s()
        due = (self.intake.due_ms, self.intake.expiry_ms)
        plans = [(ms - now_ms) / 1000 for ms in due if ms is not None]
        ends = (self.leases.next_end_s, self.dispatcher.next_deadline_s)
        plans += [end_s - now_s for end_s in ends if end_s is not None]
        return max(0.0, min(plans)) if plans else None
