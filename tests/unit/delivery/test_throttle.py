"""At most so many a second, for batches and for single calls."""

from __future__ import annotations

import pytest

from shinar.clock import PinnedClock
from shinar.delivery.throttle import Pace, Throttle


def test_single_calls_wait_for_their_turn_after_a_burst() -> None:
    clock = PinnedClock()
    throttle = Throttle(10, clock, burst=3)
    assert [throttle.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert throttle.take() == pytest.approx(0.1)
    clock.advance(60)  # earns no more than the burst
    assert [throttle.take() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert throttle.take() == pytest.approx(0.1)


def test_batches_keep_the_rate_over_time() -> None:
    clock = PinnedClock()
    pace = Pace(100, 500, clock)
    assert pace.step == 50
    began_s = clock.monotonic_s()
    for _ in range(20):
        pace.spend(pace.step)
        assert pace.rest(lambda: False)
    assert clock.monotonic_s() - began_s == pytest.approx(10, abs=0.01)


def test_a_pause_ends_when_stopped() -> None:
    clock = PinnedClock()
    pace = Pace(1, 500, clock)
    pace.spend(100)
    began_s = clock.monotonic_s()
    assert not pace.rest(lambda: clock.monotonic_s() - began_s > 1)
    assert clock.monotonic_s() - began_s < 2


def test_without_a_rate_nothing_waits() -> None:
    pace = Pace(None, 500, PinnedClock())
    pace.spend(10_000)
    assert (pace.step, pace.rest(lambda: False)) == (500, True)
