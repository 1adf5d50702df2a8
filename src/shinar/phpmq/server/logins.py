"""Failed logins by address: each one makes the next answer come later. Decides; waits for nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

#: The first refusal is answered after this, each further one after twice the time of the one before.
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 5.0
#: An address that was quiet for so long starts anew.
FORGET_S: Final = 60.0
#: Addresses remembered; of more, those that failed longest ago are forgotten.
REMEMBERED: Final = 10_000
#: Refusals of one address that may wait for their answer at a time; more connections are closed at once.
MAX_WAITING: Final = 16


class FailedLogins:
    def __init__(self) -> None:
        #: Address -> failures, time of the last one.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: dict[str, int] = {}

    def failed(self, address: str, now_s: float) -> float | None:
        """Seconds until this failure may be answered; None: do not answer, hang up."""
        failures, last_s = self._failures.pop(address, (0, now_s))
        failures = 1 if now_s - last_s > FORGET_S else failures + 1
        self._failures[address] = (failures, now_s)
        if len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)
        waiting = self._waiting.get(address, 0)
        if waiting >= MAX_WAITING:
            return None
        self._waiting[address] = waiting + 1
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * float(1 << min(failures - 1, 16)))

    def answered(self, address: str) -> None:
        """The refusal was sent, or its connection is gone."""
        left = self._waiting.get(address, 0) - 1
        if left > 0:
            self._waiting[address] = left
        else:
            self._waiting.pop(address, None)
