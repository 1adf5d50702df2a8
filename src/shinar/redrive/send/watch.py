"""Whether a run has to end: told to, cancelled from elsewhere, or too much fails or comes back dead."""

from __future__ import annotations

from typing import Final

from shinar.clock import Clock
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import JobState
from shinar.redrive.send.breaker import Breaker
from shinar.redrive.send.scan import Growth

#: Between two looks whether somebody cancelled the job, and two signs of life.
CHECK_EVERY_S: Final = 1.0


class Stop:
    """Set from anywhere, for instance a signal handler."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True


class RunWatch:
    """`growth` is None where the depth of the source says nothing about new dead letters."""

    def __init__(
        self, ledger: Ledger, job_id: str, stop: Stop, breaker: Breaker, growth: Growth | None, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._job = job_id
        self._stop = stop
        self._breaker = breaker
        self._growth = growth
        self._clock = clock
        self._looked_s = clock.monotonic_s()

    def stopped(self) -> bool:
        """Asked several times a second; looks at the ledger once a second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= CHECK_EVERY_S:
            self._looked_s = now_s
            self._ledger.show_life(self._job)
            if self._ledger.state_of(self._job) != JobState.RUNNING:
                self._stop.ask()
            if self._growth is not None:
                self._breaker.arrived(self._growth.came(self._breaker.sent))
        if not self._stop.asked and (note := self._breaker.why()):
            self._ledger.pause(self._job, note)
            self._stop.ask()
        return self._stop.asked

    def took(self, count: int) -> None:
        if self._growth is not None:
            self._growth.took(count)
