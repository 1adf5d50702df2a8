"""So many a second, in small even steps. Knows nothing of what is paced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shinar.clock import Clock

#: A step is this many seconds' worth: a rate is no burst and a pause.
STEP_S: Final = 0.5
#: The longest sleep between two questions whether to stop.
NAP_S: Final = 0.2
#: A millisecond more or less is below what a sleep keeps.
_EXACT_S: Final = 0.001


class Pace:
    def __init__(self, rate_per_s: float | None, most: int, clock: Clock) -> None:
        self._rate, self._clock = rate_per_s or 0.0, clock
        self._next_s = clock.monotonic_s()
        #: How many at once, at most.
        self.step = max(1, min(most, round(self._rate * STEP_S))) if self._rate else most

    def spend(self, count: int) -> None:
        """These go now. Time in which nothing went is no credit for later."""
        if self._rate:
            self._next_s = max(self._next_s, self._clock.monotonic_s()) + count / self._rate

    def rest(self, stopped: Callable[[], bool]) -> bool:
        """Until more may go; False when stopped first."""
        while not stopped():
            left_s = self._next_s - self._clock.monotonic_s()
            if not self._rate or left_s <= _EXACT_S:
                return True
            self._clock.sleep(min(NAP_S, left_s))
        return False
