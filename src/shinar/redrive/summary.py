"""Failures grouped by fingerprint: counters only, so memory does not grow with the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from shinar.envelope.fingerprint import error_template
from shinar.redrive.letters import Letter, Nature

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


class Group(msgspec.Struct):
    """One kind of failure."""

    fingerprint: str
    count: int = 0
    bytes: int = 0
    nature: str = Nature.DEAD
    reason: str | None = None
    exception: str | None = None
    template: str = ""
    urn: str | None = None
    lang: str | None = None
    original_queue: str | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    sample_id: str | None = None
    sample_error: str | None = None
    #: Of these, sent back before: they died again.
    died_again: int = 0
    times: Times = msgspec.field(default_factory=Times)

    def seen(self, at_ms: int | None) -> None:
        if at_ms is None:
            return
        self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
        self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)


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
        if letter.id and (group.sample_id is None or letter.id < group.sample_id):
            # The smallest id speaks for its group, whatever the order of reading.
            group.sample_id, group.sample_error = letter.id, letter.error
            group.exception, group.reason = letter.exception, letter.reason
        return group

    def _new(self, name: str, letter: Letter) -> Group:
        if len(self.groups) >= MOST_GROUPS:
            return self.groups.setdefault(OTHER, Group(OTHER))
        group = self.groups[name] = Group(
            name,
            nature=letter.nature,
            reason=letter.reason,
            exception=letter.exception,
            template=error_template(letter.error),
            urn=letter.urn,
            lang=letter.lang,
            original_queue=letter.said_queue,
            sample_error=letter.error,
        )
        return group

    def merge(self, other: Summary) -> None:
        self.total += other.total
        self.bytes += other.bytes
        for name, theirs in other.groups.items():
            ours = self.groups.get(name)
            if ours is None:
                self.groups[name] = theirs
                continue
            ours.count += theirs.count
            ours.bytes += theirs.bytes
            ours.died_again += theirs.died_again
            ours.seen(theirs.first_ms)
            ours.seen(theirs.last_ms)
            ours.times.merge(theirs.times)
            if theirs.sample_id and (ours.sample_id is None or theirs.sample_id < ours.sample_id):
                ours.sample_id, ours.sample_error = theirs.sample_id, theirs.sample_error
                ours.exception, ours.reason = theirs.exception, theirs.reason

    def ranked(self) -> list[Group]:
        return sorted(self.groups.values(), key=lambda group: (-group.count, group.fingerprint))

    def rows(self, new_since_ms: int | None = None) -> list[dict[str, Any]]:
        """One plain row per group, most frequent first; what --json prints."""
        firsts = [group.first_ms for group in self.groups.values() if group.first_ms is not None]
        lasts = [group.last_ms for group in self.groups.values() if group.last_ms is not None]
        span = (min(firsts), max(lasts)) if firsts and lasts else (0, 0)
        rows = []
        for group in self.ranked():
            row = {name: getattr(group, name) for name in group.__struct_fields__ if name != "times"}
            row["nature"] = str(group.nature)
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
