"""The only reader of time (tests/architecture/test_time.py). What decides by "now" is given a Clock, so that
tests can pin it; a driver's own threads and timeouts read SYSTEM."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    def epoch_s(self) -> float:
        return time.time()

    def epoch_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def utc_now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_s(), UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class PinnedClock(Clock):
    """Stands still until `advance`; `sleep` advances it."""

    def __init__(self, epoch_s: float = 1_000_000.0) -> None:
        self._now_s = epoch_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def pin(self, epoch_s: float) -> None:
        self._now_s = epoch_s

    def epoch_s(self) -> float:
        return self._now_s

    def epoch_ms(self) -> int:
        return int(self._now_s * 1000)

    def monotonic_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)


SYSTEM = Clock()
