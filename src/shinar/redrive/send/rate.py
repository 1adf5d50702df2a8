"""A redrive at so many messages a second: how many are in hand, and what happens while one waits.

Knows neither ledger nor broker; whoever paces says how to send and when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from shinar.brokers import Delivery
from shinar.delivery.throttle import Pace
from shinar.redrive.send.scan import BATCH, Send
from shinar.redrive.send.sender import MatchedLetter

#: Seconds' worth of messages in hand at once, also where no lease ends: a stop gives the rest back, and
#: others wait no longer than this for them.
IN_HAND_S: Final = 5.0
#: Seconds' worth of messages that go in one step: no second has more than a tenth over the rate.
STEP_S: Final = 0.1


def in_hand(rate_per_s: float, lease_s: float) -> int:
    """Messages to take at once: no more than fit into a lease."""
    if not rate_per_s:
        return BATCH
    return max(1, min(BATCH, round(rate_per_s * (min(IN_HAND_S, lease_s / 4) if lease_s else IN_HAND_S))))


def step_of(rate_per_s: float) -> int:
    """Messages that go at once."""
    return max(1, min(BATCH, round(rate_per_s * STEP_S))) if rate_per_s else BATCH


def paced(send: Send, pace: Pace, step: int, stopped: Callable[[], bool]) -> Send:
    """`send` in steps; after a stop the rest of the batch comes back unsent. `stopped` is asked several times
    a second, which makes it the runner's sign of life."""

    def steps(items: Sequence[MatchedLetter]) -> list[Delivery]:
        left: list[Delivery] = []
        for start in range(0, len(items), step):
            part = items[start : start + step]
            if not pace.rest(stopped):
                return left + [item.delivery for item in items[start:]]
            pace.spend(len(part))
            left += send(part)
        return left

    return steps
