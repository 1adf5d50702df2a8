"""So many messages a second: how many are in hand, sent at once, and what happens while one waits.

Knows neither ledger nor broker; whoever paces says how to send and when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from shinar.brokers import Delivery
from shinar.clock import Clock
from shinar.redrive.passes import BATCH, Send
from shinar.redrive.send import Item

#: Seconds' worth of messages in hand at once, also where no lease ends: a stop gives the rest back, and
#: others wait no longer than this for them.
IN_HAND_S: Final = 5.0
#: The longest sleep between two questions whether to stop, which are also the runner's signs of life.
NAP_S: Final = 0.5


class Pace:
    """In small even steps, and no more in hand than fits into a lease."""

    def __init__(self, rate_per_s: float, lease_s: float, clock: Clock) -> None:
        self._rate, self._clock = rate_per_s, clock
        #: Messages sent at once, and messages in hand at once.
        self.step = self.batch = BATCH
        if rate_per_s:
            in_hand_s = min(IN_HAND_S, lease_s / 4) if lease_s else IN_HAND_S
            self.step = max(1, min(BATCH, round(rate_per_s / 2)))
            self.batch = max(1, min(BATCH, round(rate_per_s * in_hand_s)))
        self._next_s = clock.monotonic_s()

    def wait(self, count: int, stopped: Callable[[], bool]) -> bool:
        """Until `count` more may be sent; False when stopped first."""
        if not self._rate:
            return not stopped()
        now_s = self._clock.monotonic_s()
        due_s = max(self._next_s, now_s)
        while not stopped():
            if now_s >= due_s:
                self._next_s = due_s + count / self._rate
                return True
            self._clock.sleep(min(NAP_S, due_s - now_s))
            now_s = self._clock.monotonic_s()
        return False


def paced(send: Send, pace: Pace, stopped: Callable[[], bool]) -> Send:
    """`send` in steps; after a stop the rest of the batch comes back unsent."""

    def steps(items: Sequence[Item]) -> list[Delivery]:
        left: list[Delivery] = []
        for start in range(0, len(items), pace.step):
            step = items[start : start + pace.step]
            if not pace.wait(len(step), stopped):
                return left + [item.delivery for item in items[start:]]
            left += send(step)
        return left

    return steps
