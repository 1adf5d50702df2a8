"""The circuit breaker of a redrive: too many of the last sends fail, or too much of what was sent is dead
again. Asks no broker and no ledger; it is told."""

from __future__ import annotations

from collections import deque
from typing import Final

#: Sends the ratio is taken of: after 30,000 good ones a broken target must still be noticed at once.
WINDOW: Final = 200
#: A ratio says nothing before so many were sent.
FEWEST: Final = 20


class Breaker:
    """With a ratio of 0 it never stops."""

    def __init__(self, ratio: float = 0.0) -> None:
        self.ratio = ratio
        self._last: deque[bool] = deque(maxlen=WINDOW)
        #: Copies the target confirmed in this run.
        self.sent = 0
        #: Dead letters that came into the queue since it began.
        self._arrived = 0

    def succeeded(self, count: int) -> None:
        self.sent += count
        self._last.extend([True] * min(count, WINDOW))

    def failed(self, count: int) -> None:
        self._last.extend([False] * min(count, WINDOW))

    def arrived(self, count: int) -> None:
        """So many more are in the dead-letter queue than there should be."""
        self._arrived = max(self._arrived, count)

    def why(self) -> str:
        """ "" or why to stop."""
        if not self.ratio:
            return ""
        failed = self._last.count(False)
        if len(self._last) >= FEWEST and failed > self.ratio * len(self._last):
            last = len(self._last)
            return f"stopped: {failed} of the last {last} sends failed, over the ratio of {self.ratio:g}"
        if self.sent >= FEWEST and self._arrived > self.ratio * self.sent:
            return (
                f"stopped: {self.sent} were sent and {self._arrived} new dead letters came into the queue "
                f"meanwhile, over the ratio of {self.ratio:g}"
            )
        return ""
