"""At most so many a second. The one rate limit for bridge, redrive and the worker's `rate_limit` step; knows
nothing of what is limited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from shinar.clock import Clock

#: A step is this many seconds' worth: even sending, not a burst and a pause.
STEP_S: Final = 0.5
#: The longest sleep between two questions whether to stop.
NAP_S: Final = 0.2
#: A millisecond more or less is below what a sleep keeps.
_EXACT_S: Final = 0.001


class Throttle:
    """Virtual scheduling: the time at which all that was taken is paid for. Safe to share between threads."""

    def __init__(self, rate_per_s: float, clock: Clock, *, burst: int = 0) -> None:
        self._rate_per_s, self._clock = rate_per_s, clock
        self._burst_s = burst / rate_per_s
        self._lock = threading.Lock()
        self._paid_at_s = clock.monotonic_s()

    def take(self, count: int = 1) -> float:
        """These go now, or after the seconds returned. Time in which nothing went earns no credit beyond the
        burst."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._paid_at_s = max(self._paid_at_s, now_s) + count / self._rate_per_s
            return max(0.0, self._paid_at_s - self._burst_s - now_s)

    def wait_s(self) -> float:
        return max(0.0, self._paid_at_s - self._burst_s - self._clock.monotonic_s())


class Pace:
    """A throttle for batches, in small even steps; without a rate it never waits."""

    def __init__(self, rate_per_s: float | None, most: int, clock: Clock) -> None:
        self._clock = clock
        self._throttle = Throttle(rate_per_s, clock) if rate_per_s else None
        #: How many at once, at most.
        self.step = max(1, min(most, round(rate_per_s * STEP_S))) if rate_per_s else most

    def spend(self, count: int) -> None:
        """These go now."""
        if self._throttle is not None:
            self._throttle.take(count)

    def rest(self, stopped: Callable[[], bool]) -> bool:
        """Until more may go; False when stopped first."""
        while not stopped():
            wait_s = 0.0 if self._throttle is None else self._throttle.wait_s()
            if wait_s <= _EXACT_S:
                return True
            self._clock.sleep(min(NAP_S, wait_s))
        return False
