"""A log that a flood cannot fill: of each kind of event one line a second, with the number of the others."""

from __future__ import annotations

import logging
from typing import Final

from shinar.clock import Clock
from shinar.printable import printable

log = logging.getLogger("shinar.phpmq")

#: Seconds between two lines of one kind.
INTERVAL_S: Final = 1.0
#: Characters of one line that a client may have caused.
MAX_TEXT: Final = 500


class EventLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Kind -> when its last line was written, and events since.
        self._kinds: dict[str, tuple[float, int]] = {}

    def warn(self, kind: str, text: str) -> None:
        """`kind` is one of a few fixed words; `text` may come from a client."""
        now_s = self._clock.monotonic_s()
        last_s, others = self._kinds.get(kind, (float("-inf"), 0))
        if now_s - last_s < INTERVAL_S:
            self._kinds[kind] = (last_s, others + 1)
            return
        self._write(kind, others)
        self._kinds[kind] = (now_s, 0)
        log.warning("%s", printable(text, MAX_TEXT))

    def summarise(self) -> None:
        """Called every now and then, so that the number of the last events is not kept back."""
        now_s = self._clock.monotonic_s()
        for kind, (last_s, others) in list(self._kinds.items()):
            if now_s - last_s >= INTERVAL_S:
                self._write(kind, others)
                del self._kinds[kind]

    def _write(self, kind: str, others: int) -> None:
        if others:
            log.warning("%s: %d more like the last one", kind, others)
