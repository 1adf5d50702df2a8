"""When a worker stops by itself: after so many messages, so long, so much memory, or when empty."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shinar.clock import Clock

#: Memory is looked at this often; reading it costs a system call.
MEMORY_CHECK_S: Final = 1.0


class StopReason(StrEnum):
    SIGNAL = "signal"
    EMPTY = "empty"
    MESSAGES = "max_messages"
    TIME = "max_time"
    MEMORY = "max_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_messages: int | None = None
    until_empty: bool = False
    #: How long the queue must have nothing before `until_empty` believes it.
    empty_wait_s: float = 1.0
    max_time_s: float | None = None
    max_memory_mb: float | None = None

    def watch(self, clock: Clock) -> LimitWatch:
        return LimitWatch(self, clock)


class LimitWatch:
    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._memory_check_s = self._started_s
        self.until_empty = limits.until_empty

    def left(self, received: int) -> int:
        """How many more may be reserved."""
        most = self._limits.max_messages
        return sys.maxsize if most is None else most - received

    def wait_s(self, longest_s: float) -> float:
        """How long an idle reserve may block."""
        if self.until_empty:
            longest_s = self._limits.empty_wait_s
        if self._limits.max_time_s is None:
            return longest_s
        left_s = self._started_s + self._limits.max_time_s - self._clock.monotonic_s()
        return max(0.0, min(longest_s, left_s))

    def exceeded(self, received: int) -> StopReason | None:
        limits, now_s = self._limits, self._clock.monotonic_s()
        if limits.max_messages is not None and received >= limits.max_messages:
            return StopReason.MESSAGES
        if limits.max_time_s is not None and now_s - self._started_s >= limits.max_time_s:
            return StopReason.TIME
        if limits.max_memory_mb is not None and now_s >= self._memory_check_s:
            self._memory_check_s = now_s + MEMORY_CHECK_S
            if resident_mb() > limits.max_memory_mb:
                return StopReason.MEMORY
        return None


def resident_mb() -> float:
    try:
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return pages * resource.getpagesize() / 2**20
    except OSError:  # not Linux: the peak is the best there is
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
