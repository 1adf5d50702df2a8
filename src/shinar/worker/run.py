"""The worker: reserve, hand to threads, settle, and again, until told to stop.

One thread (the caller's) owns the broker: it reserves in batches, settles in batches, extends
leases while handlers run, and reconnects. It obeys `process` and `settle` and decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from shinar.brokers import Broker, BrokerUrl, Delivery, connect, parse
from shinar.brokers.projection import facts_of
from shinar.clock import SYSTEM, Clock
from shinar.delivery.leases import LOOK_EVERY, Renewals, lease_s_of
from shinar.errors import BrokerError, ConfigError, ShinarError
from shinar.observe import Metrics
from shinar.settlement import DEFAULT_POLICY, Policy, counts_deliveries, deliveries_before
from shinar.worker.handlers import Handler, Handlers, Step, compile_route
from shinar.worker.health import Health
from shinar.worker.limits import Limits, StopReason
from shinar.worker.pool import Done, LoopThread, Pool
from shinar.worker.process import Target, lookup, process
from shinar.worker.queues import SHARED_WAIT_S, Queues, Rotation, weights_of
from shinar.worker.settle import Settler

log = logging.getLogger("shinar.worker")

#: Longest blocking reserve while nothing is in hand: how fast a stop is noticed on an idle queue.
IDLE_WAIT_S: Final = 1.0
#: How long the loop waits for a handler before it looks after leases and the queue again.
BUSY_WAIT_S: Final = 0.05
#: Most deliveries in hand unless told otherwise; slow handlers get by with a second of work ahead (see Pool).
DEFAULT_PREFETCH: Final = 1000
#: Reconnect delays: doubled from the first to the last, with jitter.
RECONNECT_S: Final = (0.1, 30.0)
#: After its start a worker takes one message at a time for as long as each was lost before, but no longer
#: than this: a queue full of retries is not to be handled one by one.
CAREFUL_S: Final = 10.0


class Report(msgspec.Struct, frozen=True):
    """What a run did. `counts` is by outcome; with `handed_back` they add up to `received`."""

    received: int
    counts: dict[str, int]
    stopped_by: StopReason

    def count(self, outcome: str) -> int:
        return self.counts.get(outcome, 0)


class Worker:
    """Runs handlers over one queue or several. `run` blocks until `stop`, a limit or a fatal error.

    `queue` is a name, a list of names, or a mapping of names to weights: a queue of weight 3 is asked first
    three times as often as one of weight 1.
    """

    def __init__(
        self,
        url: str | BrokerUrl,
        handlers: Handlers | Mapping[str, Handler],
        *,
        queue: Queues = "",
        policy: Policy = DEFAULT_POLICY,
        steps: Iterable[Step] = (),
        concurrency: int = 1,
        prefetch: int = 0,
        limits: Limits | None = None,
        stop_timeout_s: float = 25.0,
        tracebacks: bool = False,
        metrics: Metrics | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if concurrency < 1:
            raise ConfigError("must be at least 1", setting="concurrency")
        self._url = parse(url) if isinstance(url, str) else url
        self.queues = weights_of(queue or self._url.queue)
        if not self.queues:
            raise ConfigError("name one in the URL (scheme://host/queue) or in the call", setting="queue")
        self._policy = policy
        self._clock = clock
        self._limits = limits or Limits()
        self._stop_timeout_s = stop_timeout_s
        self._tracebacks = tracebacks
        self._concurrency = concurrency
        self._prefetch = prefetch or max(DEFAULT_PREFETCH, 4 * concurrency)
        self._loop = LoopThread()
        routes = (handlers if isinstance(handlers, Handlers) else Handlers(handlers)).routes
        self._targets = {
            urn: Target(*compile_route(route, steps, self._loop.run), route.policy or policy)
            for urn, route in routes.items()
        }
        self.metrics = metrics or Metrics()
        self.health = Health(clock)
        self._stop = threading.Event()
        self._stop_now = threading.Event()

    def stop(self) -> None:
        """First call: finish or hand back what is in hand, then return. Second: return at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def run(self) -> Report:
        run = _Run(self)
        try:
            return run.loop()
        finally:
            run.pool.close()
            self._loop.close()
            with contextlib.suppress(BrokerError):  # hanging up on somebody who has gone already
                run.broker.close()


class _Run:
    """The state of one `Worker.run`."""

    def __init__(self, worker: Worker) -> None:
        self.w = worker
        self.broker = self._connect_first()
        self.settler = Settler(self.broker, worker._clock, tracebacks=worker._tracebacks)
        decide = partial(process, lookup(worker._targets), worker._policy, self.broker.traits)
        self.pool = Pool(decide, worker._concurrency, worker._clock)
        self.watch = worker._limits.watch(worker._clock)
        self.rotation = Rotation(worker.queues)
        self.received = 0
        #: Reserve one message at a time: this process has just started, and what comes first may be what
        #: ended the last one. Its neighbours must not be lost with it again and again.
        self.careful = counts_deliveries(self.broker.traits)
        self.careful_until_s = worker._clock.monotonic_s() + CAREFUL_S
        #: Seconds until the queue is asked again while handlers are busy and it was empty last time.
        self.pause_s = 0.0
        self.ask_again_s = 0.0
        self.next_renewal_s = 0.0
        #: The next pause before connecting again; None while the broker answers.
        self.retry_s: float | None = None
        #: Length of the leases this broker gives; None when they last as long as the connection.
        self.lease_s: float | None = None
        self.renewals = Renewals()

    def loop(self) -> Report:
        while True:
            try:
                reason = self._turn()
                if reason is not None:
                    return self._finish(reason)
            except BrokerError as exc:
                if not exc.transient:
                    raise
                self._drop_unstarted()
                if not self._reconnect(exc):
                    return self._report(StopReason.SIGNAL)

    def _turn(self) -> StopReason | None:
        """One round: reserve if there is room, settle what is done, renew leases."""
        if self.w._stop.is_set():
            return StopReason.SIGNAL
        reason = self.watch.exceeded(self.received)
        if reason is not None:
            return reason
        idle = self._reserve()
        if self.pool.size:
            self._settle(self.pool.collect(BUSY_WAIT_S))
            self._renew()
        elif idle and self.watch.until_empty:
            return StopReason.EMPTY
        return None

    def _reserve(self) -> bool:
        """True when the queue was asked and had nothing."""
        now_s = self.w._clock.monotonic_s()
        in_hand = self.pool.size
        wanted = 1 if self.careful else min(self.w._prefetch, self.pool.appetite())
        room = min(wanted - in_hand, self.watch.left(self.received))
        if room <= 0 or (in_hand and (now_s < self.ask_again_s or room < wanted // 4)):
            return False
        batch = self._first_batch(room, 0.0 if in_hand else self.watch.wait_s(IDLE_WAIT_S))
        if not batch:
            self.pause_s = min(1.0, max(0.02, 2 * self.pause_s))
            self.ask_again_s = now_s + self.pause_s
            return True
        self.pause_s = self.ask_again_s = 0.0
        self.received += len(batch)
        self.lease_s = lease_s_of(batch[0]) or self.lease_s
        batch = self._lost_first(batch)
        self.w.metrics.add("shinar_received_total", len(batch), queue=batch[0].queue)
        self.pool.submit(batch)
        return False

    def _first_batch(self, room: int, wait_s: float) -> list[Delivery]:
        """From the first queue that has something; each is asked once."""
        queues = len(self.rotation)
        if queues > 1:
            wait_s = wait_s / queues if self.watch.until_empty else min(wait_s, SHARED_WAIT_S)
        for queue in self.rotation.order():
            batch = self.broker.reserve(queue, room, wait_s)
            self._answered()
            self.w.health.polled(len(batch))
            if batch:
                return batch
        return []

    def _lost_before(self, delivery: Delivery) -> bool:
        """It was delivered before, and as far as the broker knows without an outcome."""
        traits = self.broker.traits
        attempts = (facts_of(delivery.body).attempts or 0) if traits.lapse_counts else 0
        return deliveries_before(traits, attempts, delivery.native_count) > 0

    def _lost_first(self, batch: list[Delivery]) -> list[Delivery]:
        """Messages that were lost before are started first, not lost once more behind a neighbour."""
        if not counts_deliveries(self.broker.traits):
            return batch
        # Nearly all are first deliveries: one comparison each must be enough.
        first = self.broker.traits.count_base
        lost = [d for d in batch if (first is None or d.native_count != first) and self._lost_before(d)]
        self.careful = self.careful and bool(lost) and self.w._clock.monotonic_s() < self.careful_until_s
        if not lost or any(delivery.key is not None for delivery in batch):
            return batch  # nothing overtakes its own key
        known = {id(delivery) for delivery in lost}
        return lost + [delivery for delivery in batch if id(delivery) not in known]

    def _settle(self, done: Done) -> None:
        self.settler.counts["connection_lost"] += done.dropped
        if len(self.rotation) == 1:
            self._settle_of(self._any_queue(), done)
            return
        for queue in self.w.queues:
            handled = [delivery for delivery in done.handled if delivery.queue == queue]
            outcomes = [outcome for outcome in done.outcomes if outcome.delivery.queue == queue]
            self._settle_of(queue, Done(handled, outcomes))

    def _settle_of(self, queue: str, done: Done) -> None:
        before = dict(self.settler.counts)
        try:
            if done.handled:
                self.settler.ack(done.handled)
            if done.outcomes:
                self.settler.settle(done.outcomes)
        finally:
            for outcome, count in self.settler.counts.items():
                if count > before.get(outcome, 0):
                    amount = count - before.get(outcome, 0)
                    self.w.metrics.add("shinar_outcomes_total", amount, queue=queue, outcome=outcome)

    def _renew(self) -> None:
        """Extend the leases of what is still being handled, well before they end."""
        now_s = self.w._clock.monotonic_s()
        if self.lease_s is None or now_s < self.next_renewal_s:
            return
        self.next_renewal_s = now_s + self.lease_s * LOOK_EVERY
        for lease_s, deliveries in self.renewals.due(self.pool.in_hand, self.w._clock.epoch_ms()).items():
            self.broker.extend(deliveries, lease_s)

    def _finish(self, reason: StopReason) -> Report:
        """Hand back what no handler has started, wait for the rest, settle, report."""
        deadline_s = self.w._clock.monotonic_s() + self.w._stop_timeout_s
        while self.pool.size and not self.w._stop_now.is_set():
            if reason is StopReason.SIGNAL:
                self._hand_back(self.pool.withdraw(), started=False)
            if self.w._clock.monotonic_s() > deadline_s:
                log.warning("handlers still run after %g s: handing back", self.w._stop_timeout_s)
                break
            self._settle(self.pool.collect(BUSY_WAIT_S))
            self._renew()
        self._hand_back(self.pool.withdraw(), started=False)
        self._hand_back(list(self.pool.in_hand), started=True)
        return self._report(reason)

    def _hand_back(self, deliveries: Sequence[Delivery], *, started: bool) -> None:
        """What no handler has seen goes back as if it had never been handed out."""
        if deliveries:
            self.broker.release(deliveries, count=started)
            self.settler.counts["handed_back"] += len(deliveries)

    def _drop_unstarted(self) -> None:
        """The reservations have ended with the connection, and the broker hands these messages out again:
        whoever handled them now would do it twice. Handlers that run finish."""
        if not self.broker.traits.lasting_lease:
            self.settler.counts["connection_lost"] += len(self.pool.drop())

    def _any_queue(self) -> str:
        return next(iter(self.w.queues))

    def _report(self, reason: StopReason) -> Report:
        # With the broker gone nobody takes back what is in hand: it ends with its lease or connection.
        self.settler.unsettled(self._any_queue(), self.received - self.settler.counts.total())
        return Report(self.received, {str(k): v for k, v in self.settler.counts.items() if v}, reason)

    def _connect_first(self) -> Broker:
        broker = connect(self.w._url, self.w._clock)
        self.w.health.connected(True)
        return broker

    def _reconnect(self, cause: ShinarError) -> bool:
        """Connect again, with growing pauses; False when told to stop. Says once that the broker is gone,
        and that it is back only when it has answered: some clients connect to nobody without an error."""
        if self.retry_s is None:
            self.retry_s = RECONNECT_S[0]
            self.w.health.connected(False)
            log.warning("lost the broker, reconnecting: %s", cause, extra={"broker": self.broker.traits.name})
            self.w.metrics.add("shinar_reconnects_total", queue=",".join(self.w.queues))
        while not self.w._stop.wait(self.retry_s * random.uniform(0.5, 1.0)):
            self.retry_s = min(RECONNECT_S[1], 2 * self.retry_s)
            try:
                with contextlib.suppress(BrokerError):  # a dead line needs no goodbye
                    self.broker.close()
                self.broker = self.settler.broker = connect(self.w._url, self.w._clock)
            except ShinarError as exc:
                if not exc.transient:
                    raise
                continue
            return True
        return False

    def _answered(self) -> None:
        if self.retry_s is not None:
            self.retry_s = None
            self.w.health.connected(True)
            log.warning("the broker is back", extra={"broker": self.broker.traits.name})
