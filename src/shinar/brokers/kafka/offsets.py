"""Which records of a partition are finished, how far its offset may be committed, and what goes round again.

Kafka commits a position, not a record: everything below it counts as done. With many records in
flight the position must therefore stop at the first unfinished one. Pure bookkeeping, no client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from shinar.brokers.contract import Delivery

#: Finished positions that the group has not stored for this long, and no more records are handed out: all
#: that is handled meanwhile would come again.
UNSTORED_S: Final = 1.0


class Track:
    """One partition for as long as we own it. `live` ends with the ownership, and with it every
    receipt that points here."""

    __slots__ = (
        "_done",
        "_open",
        "_turns",
        "committed",
        "live",
        "next_offset",
        "number",
        "sent",
        "topic",
        "verified",
    )

    def __init__(self, topic: str, number: int, start: int, committed: int) -> None:
        self.topic = topic
        self.number = number
        #: Offset of the next record we expect from the cluster.
        self.next_offset = start
        #: Position the group has stored as far as we know; negative when there is none.
        self.committed = committed
        #: Position we asked the group to store last; ahead of `committed` until it answers.
        self.sent = committed
        self.live = True
        #: The first record after an assignment was the expected one, or we asked again and it is
        #: a real gap; without a stored position nothing is expected.
        self.verified = committed < 0
        #: Offsets handed out and not yet passed by `position`, ascending.
        self._open: deque[int] = deque()
        #: Finished ones that an unfinished one below them holds up.
        self._done: set[int] = set()
        #: How often a record was handed back to us; absent means never.
        self._turns: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"{self.topic}/{self.number}"

    def took(self, offset: int) -> None:
        self._open.append(offset)
        self.next_offset = offset + 1

    def holds(self, offset: int, turn: int) -> bool:
        """False once the partition is gone, or somebody else was given the record since."""
        return self.live and (not self._turns or self._turns.get(offset, 0) == turn)

    def finish(self, offset: int, turn: int = 0) -> bool:
        """Idempotent; False when the receipt of this turn is void."""
        if not self.live or (self._turns and not self.holds(offset, turn)):
            return False
        opened = self._open
        if opened and offset >= opened[0]:
            if offset == opened[0] and not self._turns:
                opened.popleft()  # in order, as most are
            else:
                self._done.add(offset)
        return True

    def finished(self, offset: int) -> bool:
        return not self._open or offset < self._open[0] or offset in self._done

    def again(self, offset: int) -> int:
        """The record goes round once more; receipts of earlier turns are void."""
        turn = self._turns[offset] = self._turns.get(offset, 0) + 1
        return turn

    def position(self) -> int:
        """First offset that is not finished: what may be committed."""
        opened, done = self._open, self._done
        while opened and opened[0] in done:
            offset = opened.popleft()
            done.remove(offset)
            if self._turns:
                self._turns.pop(offset, None)
        return opened[0] if opened else self.next_offset

    def due(self) -> int | None:
        """The position to commit now, if it got further than the last one asked for."""
        at = self.position()
        # A fresh partition's position is its start, which says nothing is finished yet.
        return at if at > self.sent and (self.sent >= 0 or at > 0) else None


def any_unstored(tracks: Iterable[Track]) -> bool:
    """Is anything finished of which we do not know that the group has stored it?"""
    return any(track.sent != track.committed or track.due() is not None for track in tracks)


class KafkaReceipt(msgspec.Struct, frozen=True, gc=False):
    track: Track
    offset: int
    turn: int
    #: The client's message: headers as they came, for copies that must keep them.
    message: Any

    @property
    def held(self) -> bool:
        return self.track.holds(self.offset, self.turn)


class HandedBack:
    """Deliveries that go round again, each with the time (monotonic) from which it may."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Delivery]] = []

    def add(self, due_s: float, delivery: Delivery) -> None:
        self._waiting.append((due_s, delivery))

    def ripe(self, now_s: float, limit: int) -> list[Delivery]:
        """Those whose time has come; the lapsed ones among them are forgotten."""
        ripe: list[Delivery] = []
        waiting: list[tuple[float, Delivery]] = []
        for due_s, delivery in self._waiting:
            if not delivery.receipt.held:
                continue
            if due_s <= now_s and len(ripe) < limit:
                ripe.append(delivery)
            else:
                waiting.append((due_s, delivery))
        self._waiting = waiting
        return ripe

    def next_s(self, default_s: float) -> float:
        return min((due_s for due_s, _ in self._waiting), default=default_s)


class Unstored:
    """Since when something finished waits for the group to store it, None: nothing does."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def finished(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s

    def stored(self, now_s: float | None) -> None:
        """The group has answered; a time when there is more by now."""
        self._since_s = now_s

    def overdue(self, now_s: float) -> bool:
        return self._since_s is not None and now_s - self._since_s > UNSTORED_S
