"""Threads that run handlers. Deliveries go in by chunks, outcomes come out by chunks; the thread
that owns the broker never runs a handler, so leases and heartbeats stay alive under long ones."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from shinar.brokers import Delivery
from shinar.clock import Clock
from shinar.worker.context import leave_context
from shinar.worker.process import Outcome

log = logging.getLogger("shinar.worker")

#: A chunk should take about this long: short enough to share work fairly between threads, long
#: enough that handing it over costs nothing beside it.
CHUNK_S: Final = 0.005
MAX_CHUNK: Final = 250
#: Most messages that are handled between two looks at the clock and at a stop.
MAX_PART: Final = 64
#: How much work is reserved ahead: enough to keep busy, not so much that slow handlers keep other
#: workers idle.
AHEAD_S: Final = 1.0
#: How long a closing event loop is waited for: a handler that blocks it must not keep the process alive.
LOOP_CLOSE_S: Final = 2.0
#: What a delivery is thought to cost before anything is known: the first batch is small.
FIRST_GUESS_S: Final = 0.1

Process = Callable[[Delivery], Outcome | None]


class Done(msgspec.Struct, frozen=True):
    handled: list[Delivery]
    outcomes: list[Outcome]
    #: Not started before `drop`, in chunks that were running then.
    dropped: int = 0


class _Finished(msgspec.Struct, frozen=True):
    """A chunk and what became of it. `rest` was not started: one slow handler must not delay its
    neighbours while another thread is idle."""

    chunk: list[Delivery]
    handled: list[Delivery]
    outcomes: list[Outcome]
    rest: list[Delivery]
    #: A fault of ours, not of a handler: it ends the worker, in its owner's thread.
    fault: BaseException | None = None


class Pool:
    """`concurrency` threads over one inbox. All methods are for the owner's thread."""

    def __init__(self, process: Process, concurrency: int, clock: Clock) -> None:
        self._process = process
        self._clock = clock
        self._inbox: queue.SimpleQueue[list[Delivery] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[_Finished] = queue.SimpleQueue()
        #: Seconds a delivery takes, smoothed.
        self._cost_s = FIRST_GUESS_S
        #: What was handed in and has not come out, by identity of the chunk.
        self._chunks: dict[int, list[Delivery]] = {}
        #: How many deliveries that is.
        self.size = 0
        #: Since the first `withdraw`: nothing more is started, what is left over waits here.
        self._stopping = False
        self._left: list[Delivery] = []
        #: Chunks that were running at the last `drop`, by identity: what they have not started goes as well.
        self._stale: set[int] = set()
        #: Ordering keys that some chunk works on, and what waits behind them: messages of one key are never
        #: handled side by side. Unused with one thread.
        self._lanes: dict[bytes, list[Delivery]] = {}
        self._threads = [
            threading.Thread(target=self._run, name=f"shinar-handler-{n}", daemon=True)
            for n in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def in_hand(self) -> Iterator[Delivery]:
        return itertools.chain.from_iterable([*self._chunks.values(), *self._lanes.values()])

    def appetite(self) -> int:
        """How many deliveries are worth having in hand at the present pace."""
        return len(self._threads) * max(2, int(AHEAD_S / max(self._cost_s, 1e-6)))

    def submit(self, deliveries: list[Delivery]) -> None:
        self.size += len(deliveries)
        fair = -(-len(deliveries) // len(self._threads))
        length = max(1, min(MAX_CHUNK, fair, int(CHUNK_S / max(self._cost_s, 1e-6))))
        if len(self._threads) > 1 and any(delivery.key is not None for delivery in deliveries):
            for chunk in self._by_key(deliveries, length):
                self._start(chunk)
            return
        for start in range(0, len(deliveries), length):
            self._start(deliveries[start : start + length])

    def _by_key(self, deliveries: list[Delivery], length: int) -> list[list[Delivery]]:
        """Chunks of about `length`, each key in one of them; what has to wait for its key is put aside."""
        chunks: list[list[Delivery]] = [[]]
        placed: dict[bytes, list[Delivery]] = {}
        for delivery in deliveries:
            key = delivery.key
            # Behind its own key: in the chunk of this round, or in the lane of a running one.
            behind = None if key is None else placed.get(key, self._lanes.get(key))
            if behind is not None:
                behind.append(delivery)
                continue
            if len(chunks[-1]) >= length:
                chunks.append([])
            chunks[-1].append(delivery)
            if key is not None:
                placed[key] = chunks[-1]
                self._lanes[key] = []
        return [chunk for chunk in chunks if chunk]

    def _free(self, chunk: list[Delivery], rest: list[Delivery]) -> None:
        """Let go of the keys this chunk is through with, and start what waited for them."""
        kept = {delivery.key for delivery in rest}
        for key in {delivery.key for delivery in chunk} - kept:
            if key is not None and (waiting := self._lanes.pop(key, None)):
                self._lanes[key] = []
                self._start(waiting)

    def _start(self, chunk: list[Delivery]) -> None:
        self._chunks[id(chunk)] = chunk
        self._inbox.put(chunk)

    def collect(self, wait_s: float) -> Done:
        """What has been finished; waits at most `wait_s` for the first."""
        handled: list[Delivery] = []
        outcomes: list[Outcome] = []
        dropped = 0
        try:
            done = self._results.get(timeout=wait_s) if wait_s > 0 else self._results.get_nowait()
            while True:
                del self._chunks[id(done.chunk)]
                if done.fault is not None:
                    raise done.fault
                rest = done.rest
                if id(done.chunk) in self._stale:
                    self._stale.discard(id(done.chunk))
                    dropped += len(rest)
                    rest = []
                if self._lanes:
                    self._free(done.chunk, rest)
                if self._stopping:
                    self._left += rest
                elif rest:
                    self._start(rest)
                handled += done.handled
                outcomes += done.outcomes
                done = self._results.get_nowait()
        except queue.Empty:
            pass
        self.size -= len(handled) + len(outcomes) + dropped
        return Done(handled, outcomes, dropped)

    def withdraw(self) -> list[Delivery]:
        """Take back what no thread has started; from now on, nothing is."""
        self._stopping = True
        idle = self._take_idle()
        self._lanes.clear()
        return idle

    def drop(self) -> list[Delivery]:
        """Forget what no thread has started, because its reservations have ended. Work goes on; what running
        chunks have not come to is left out as well and counted by `collect`."""
        idle = self._take_idle()
        self._stale = set(self._chunks)
        running = itertools.chain.from_iterable(self._chunks.values())
        self._lanes = {delivery.key: [] for delivery in running if delivery.key is not None}
        return idle

    def _take_idle(self) -> list[Delivery]:
        idle, self._left = self._left, []
        try:
            while True:
                chunk = self._inbox.get_nowait() or []
                self._chunks.pop(id(chunk), None)
                idle += chunk
        except queue.Empty:
            pass
        for waiting in self._lanes.values():
            idle += waiting
        self.size -= len(idle)
        return idle

    def close(self) -> None:
        """Let the threads end after what they are doing; a stuck handler cannot be ended."""
        for _ in self._threads:
            self._inbox.put(None)

    def _run(self) -> None:
        while (chunk := self._inbox.get()) is not None:
            try:
                self._run_chunk(chunk)
            except BaseException as exc:  # a chunk that never comes out would be waited for without an end
                self._results.put(_Finished(chunk, [], [], [], exc))

    def _run_chunk(self, chunk: list[Delivery]) -> None:
        outcomes: list[Outcome] = []
        now_s = self._clock.monotonic_s
        started_s = now_s()
        done, part = 0, 1
        # Only another thread could take the rest of a slow chunk; with one, it would lose its place.
        longest_s = 2 * CHUNK_S if len(self._threads) > 1 else math.inf
        # A look at the clock after 1 message, 2 more, 4 more: a bad guess is noticed at once, and a good
        # one hardly costs a look.
        while done < len(chunk) and (done == 0 or not (self._ends(chunk) or now_s() - started_s > longest_s)):
            outcomes.extend(filter(None, map(self._process, chunk[done : done + part])))
            done += part
            part = min(2 * part, MAX_PART)
        leave_context()
        handled, rest = chunk[:done], chunk[done:]
        cost_s = (now_s() - started_s) / len(handled)
        self._cost_s = cost_s if self._cost_s == FIRST_GUESS_S else (self._cost_s + cost_s) / 2
        if outcomes:
            others = {id(outcome.delivery) for outcome in outcomes}
            handled = [delivery for delivery in handled if id(delivery) not in others]
        self._results.put(_Finished(chunk, handled, outcomes, rest))

    def _ends(self, chunk: list[Delivery]) -> bool:
        """Nothing more of it is to be started."""
        return self._stopping or id(chunk) in self._stale


class LoopThread:
    """One event loop in a thread of its own, for async handlers; started on first use."""

    def __init__(self) -> None:
        self._running: _RunningLoop | None = None
        self._lock = threading.Lock()

    def run(self, work: Awaitable[object]) -> object:
        async def whole() -> object:
            return await work

        with self._lock:
            if self._running is None:
                self._running = _RunningLoop()
            loop = self._running.loop
        return asyncio.run_coroutine_threadsafe(whole(), loop).result()

    def close(self) -> None:
        with self._lock:
            running, self._running = self._running, None
        if running is not None and not running.close(LOOP_CLOSE_S):
            log.warning("an async handler blocks its event loop and is left behind; use await in it")


class _RunningLoop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._forever, name="shinar-async", daemon=True)
        self._thread.start()

    def _forever(self) -> None:
        while not self._closing:
            # sys.exit in a task: its waiter gets it, but asyncio lets it out here as well, and with this
            # thread every other task would end.
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def close(self, wait_s: float) -> bool:
        """False when a handler blocks the loop; its thread ends with the process."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            return False
        self.loop.close()
        return True
