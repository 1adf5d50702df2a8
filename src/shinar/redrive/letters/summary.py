"""Failures grouped by fingerprint: counters only, so memory does not grow with the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from shinar.envelope.fingerprint import error_template
from shinar.redrive.letters.letter import Letter, Nature, whole

#: More kinds of failure than this are counted together: a text that is different each time must not
#: fill the memory.
MOST_GROUPS: Final = 10_000
OTHER: Final = "other"
#: Bars of a sparkline.
BARS: Final = 24
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
#: Distinct moments kept per group; beyond, they are kept more coarsely.
_MOMENTS: Final = 1500
_MINUTE_MS: Final = 60_000
_COARSER: Final = 60

#: ids -> how often each was sent back before.
Generations = Callable[[Iterable[str]], Mapping[str, int]]


class Times(msgspec.Struct):
    """Counts by moment, minutes first, coarser when there are too many."""

    width_ms: int = _MINUTE_MS
    counts: dict[int, int] = {}

    def add(self, at_ms: int, count: int = 1) -> None:
        place = at_ms // self.width_ms
        self.counts[place] = self.counts.get(place, 0) + count
        if len(self.counts) > _MOMENTS:
            self._coarsen(self.width_ms * _COARSER)

    def merge(self, other: Times) -> None:
        if other.width_ms > self.width_ms:
            self._coarsen(other.width_ms)
        for place, count in other.counts.items():
            self.add(place * other.width_ms, count)

    def _coarsen(self, width_ms: int) -> None:
        old, old_ms = self.counts, self.width_ms
        self.width_ms, self.counts = width_ms, {}
        for place, count in old.items():
            wide = place * old_ms // width_ms
            self.counts[wide] = self.counts.get(wide, 0) + count

    def bars(self, first_ms: int, last_ms: int, bars: int = BARS) -> list[int]:
        found = [0] * bars
        span_ms = max(1, last_ms - first_ms + 1)
        for place, count in self.counts.items():
            at_ms = min(max(place * self.width_ms, first_ms), last_ms)
            found[min(bars - 1, (at_ms - first_ms) * bars // span_ms)] += count
        return found


class Sample(msgspec.Struct, frozen=True, order=True):
    """The dead letter that speaks for its kind: the smallest of them, so that it does not matter in which
    order, or by how many, they were read. Those with an id come first."""

    no_id: bool
    id: str
    error: str
    nature: str
    reason: str
    exception: str
    lang: str
    queue: str

    @classmethod
    def of(cls, letter: Letter) -> Sample:
        texts = (letter.reason, letter.exception, letter.lang, letter.said_queue)
        plain = [whole(text or "") for text in texts]
        return cls(letter.id is None, letter.id or "", whole(letter.error or ""), letter.nature, *plain)


class Group(msgspec.Struct):
    """One kind of failure."""

    fingerprint: str
    count: int = 0
    bytes: int = 0
    template: str = ""
    urn: str | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    #: Of these, sent back before: they died again.
    died_again: int = 0
    #: None for what is counted together as OTHER.
    sample: Sample | None = None
    times: Times = msgspec.field(default_factory=Times)

    @property
    def nature(self) -> str:
        return self.sample.nature if self.sample else Nature.DEAD

    @property
    def reason(self) -> str | None:
        return (self.sample.reason or None) if self.sample else None

    @property
    def exception(self) -> str | None:
        return (self.sample.exception or None) if self.sample else None

    @property
    def lang(self) -> str | None:
        return (self.sample.lang or None) if self.sample else None

    @property
    def original_queue(self) -> str | None:
        return (self.sample.queue or None) if self.sample else None

    def seen(self, at_ms: int | None) -> None:
        if at_ms is None:
            return
        self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
        self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)

    def heard(self, letter: Letter) -> None:
        ours = self.sample
        if ours is None or (not ours.no_id and (letter.id is None or letter.id > ours.id)):
            return  # nearly always
        self.sample = min(ours, Sample.of(letter))

    def merge(self, other: Group) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.died_again += other.died_again
        self.seen(other.first_ms)
        self.seen(other.last_ms)
        self.times.merge(other.times)
        if self.sample is not None and other.sample is not None:
            self.sample = min(self.sample, other.sample)

    def row(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "count": self.count,
            "bytes": self.bytes,
            "nature": str(self.nature),
            "reason": self.reason,
            "exception": self.exception,
            "template": self.template,
            "urn": self.urn,
            "lang": self.lang,
            "original_queue": self.original_queue,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "sample_id": (self.sample.id or None) if self.sample else None,
            "sample_error": (self.sample.error or None) if self.sample else None,
            "died_again": self.died_again,
        }


class Summary(msgspec.Struct):
    total: int = 0
    bytes: int = 0
    groups: dict[str, Group] = {}

    def add(self, letter: Letter) -> Group:
        name = letter.fingerprint
        group = self.groups.get(name)
        if group is None:
            group = self._new(name, letter)
        size = len(letter.delivery.body)
        self.total += 1
        self.bytes += size
        group.count += 1
        group.bytes += size
        at_ms = letter.at_ms
        group.seen(at_ms)
        if at_ms is not None:
            group.times.add(at_ms)
        group.heard(letter)
        return group

    def _new(self, name: str, letter: Letter) -> Group:
        if len(self.groups) >= MOST_GROUPS:
            return self.groups.setdefault(OTHER, Group(OTHER))
        group = self.groups[name] = Group(
            name,
            template=whole(error_template(letter.error)),
            urn=letter.urn and whole(letter.urn),
            sample=Sample.of(letter),
        )
        return group

    def merge(self, other: Summary) -> None:
        self.total += other.total
        self.bytes += other.bytes
        for name, theirs in other.groups.items():
            ours = self.groups.get(name)
            if ours is None and len(self.groups) >= MOST_GROUPS:
                ours = self.groups.setdefault(OTHER, Group(OTHER))
            if ours is None:
                self.groups[name] = theirs
            else:
                ours.merge(theirs)

    def ranked(self) -> list[Group]:
        return sorted(self.groups.values(), key=lambda group: (-group.count, group.fingerprint))

    def rows(self, new_since_ms: int | None = None) -> list[dict[str, Any]]:
        """One plain row per group, most frequent first; what --json prints."""
        firsts = [group.first_ms for group in self.groups.values() if group.first_ms is not None]
        lasts = [group.last_ms for group in self.groups.values() if group.last_ms is not None]
        span = (min(firsts), max(lasts)) if firsts and lasts else (0, 0)
        rows = []
        for group in self.ranked():
            row = group.row()
            row["share"] = group.count / self.total if self.total else 0.0
            row["new"] = new_since_ms is not None and (group.first_ms or 0) >= new_since_ms
            row["bars"] = group.times.bars(*span)
            rows.append(row)
        return rows


def summarise(
    letters: Iterable[Letter],
    chosen: Callable[[Letter], bool] | None = None,
    generations: Generations | None = None,
) -> Summary:
    """Group what `letters` yields; with `generations` also tell which of them died again."""
    summary = Summary()
    waiting: list[tuple[str, Group]] = []
    for letter in letters:
        if chosen is not None and not chosen(letter):
            continue
        group = summary.add(letter)
        if generations is not None and letter.id:
            waiting.append((letter.id, group))
            if len(waiting) >= 500:
                _tell_again(waiting, generations)
    if generations is not None:
        _tell_again(waiting, generations)
    return summary


def _tell_again(waiting: list[tuple[str, Group]], generations: Generations) -> None:
    known = generations([id_ for id_, _ in waiting])
    for id_, group in waiting:
        group.died_again += id_ in known
    waiting.clear()


def sparkline(bars: list[int]) -> str:
    most = max(bars, default=0)
    if most == 0:
        return ""
    return "".join(" " if not bar else _BLOCKS[(bar * (len(_BLOCKS) - 1)) // most] for bar in bars)
