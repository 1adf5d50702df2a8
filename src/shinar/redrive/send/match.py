"""Which ledger line a letter in hand answers to. The rule is pure; `Matcher` asks the ledger for it.

Letters with a stable position are known exactly. Others are a multiset: of byte-identical ones those that
were surely not sent come first, and a letter is acknowledged unsent only if it must be one whose copy is
confirmed. Knows no way through a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from shinar.brokers import Delivery
from shinar.redrive.ledger.ledger import Ledger
from shinar.redrive.ledger.lines import Job, Line, LineState
from shinar.redrive.letters.letter import Letter, Name, name_of, read
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.sender import MatchedLetter
from shinar.settlement.traits import Traits


class Doubt(Enum):
    """What to do with a letter whose only open line says published."""

    #: It is the very letter whose copy is confirmed.
    ACK = "acknowledge"
    #: It is not that letter: a later one, or one that the job leaves where it is.
    LEAVE = "leave"
    #: It may be either: sending it once more loses nothing.
    SEND_AGAIN = "send again"


def settle_doubt(letter: Letter, traits: Traits, *, all_counted: bool, others_stay: bool) -> Doubt:
    """`all_counted`: every identical letter had a line before the first was sent. `others_stay`: some of
    them ended unsent and are still in the queue."""
    if traits.stable_position and letter.delivery.position:
        return Doubt.ACK
    if others_stay:
        return Doubt.LEAVE
    if not all_counted:
        return Doubt.SEND_AGAIN
    if letter.delivery.redelivered is not None:
        return Doubt.ACK if letter.delivery.redelivered else Doubt.LEAVE
    return Doubt.ACK if letter.names_its_death else Doubt.SEND_AGAIN


class Matcher:
    """`chosen` makes a line where there was none; None for a job whose lines are all there."""

    def __init__(
        self, ledger: Ledger, job: Job, traits: Traits, *, chosen: Chosen | None, limit: int | None
    ) -> None:
        self._ledger = ledger
        self._job = job
        self._traits = traits
        self._chosen = chosen
        self._limit = limit
        self._all_counted = chosen is None and limit is None
        self._selected = ledger.receipt(job.id).selected
        #: Digest -> lines of an earlier run that ended unsent and whose letter was not met yet.
        self._ended = Counter(ledger.staying(job.id) if chosen is not None else {})
        self._passed: Counter[Name] = Counter()

    def split(self, batch: Sequence[Delivery]) -> tuple[list[MatchedLetter], list[Delivery]]:
        """(letters to bring to their end, letters to leave as they are)"""
        names = [name_of(delivery, self._traits) for delivery in batch]
        lines = self._ledger.open_lines(self._job.id, names)
        staying = self._ledger.staying(self._job.id, names)
        items: list[MatchedLetter] = []
        fresh: list[tuple[Letter, Name]] = []
        for delivery, name in zip(batch, names, strict=True):
            line = lines[name].pop(0) if lines[name] else None
            if line is not None:
                item = self._item(delivery, line, others_stay=name.digest in staying)
                items += [item] if item is not None else []
            elif self._chosen is not None and self._is_new(letter := read(delivery, self._traits), name):
                fresh.append((letter, name))
        items += self._claimed(fresh)
        taken = {id(item.delivery): item for item in items}
        return (
            [taken[id(delivery)] for delivery in batch if id(delivery) in taken],
            [delivery for delivery in batch if id(delivery) not in taken],
        )

    def _item(self, delivery: Delivery, line: Line, *, others_stay: bool) -> MatchedLetter | None:
        letter = read(delivery, self._traits)
        if line.state != LineState.PUBLISHED:
            return MatchedLetter(letter, line)
        doubt = settle_doubt(letter, self._traits, all_counted=self._all_counted, others_stay=others_stay)
        return None if doubt is Doubt.LEAVE else MatchedLetter(letter, line, again=doubt is Doubt.SEND_AGAIN)

    def _is_new(self, letter: Letter, name: Name) -> bool:
        """Whether a job without a plan takes this one too."""
        if self._ended[name.digest]:
            self._ended[name.digest] -= 1  # its line is there: an earlier run left it in the queue
            return False
        if self._limit is not None and self._selected >= self._limit:
            return False
        if self._chosen is None or not self._chosen(letter):
            return False
        self._selected += 1
        return True

    def _claimed(self, fresh: Sequence[tuple[Letter, Name]]) -> list[MatchedLetter]:
        """Lines for these, without those that another job has claimed."""
        lines = [
            Line(name.digest, 0, letter.id or "", name.position, bytes=len(letter.delivery.body))
            for letter, name in fresh
        ]
        kept = self._ledger.claim(self._job, lines, self._passed)
        found = zip(fresh, kept, strict=True)
        return [MatchedLetter(letter, line) for (letter, _), line in found if line.state == LineState.PLANNED]
