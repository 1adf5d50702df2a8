"""What a redrive would do, without doing it: counts, bytes, targets, a sample, and who stays and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from shinar.redrive.eligibility import Checks, Decision
from shinar.redrive.ledger.lines import Line, LineState
from shinar.redrive.letters.letter import Letter, Name, name_of
from shinar.redrive.model import ALREADY, kind_of
from shinar.settlement.traits import Traits

#: Letters checked at once.
CHUNK: Final = 200
#: Messages shown by a dry run.
SAMPLE: Final = 5

#: Gives the lines back as they are kept: some may be claimed by another job.
Record = Callable[[Sequence[Line]], Sequence[Line]]


class Shown(msgspec.Struct, frozen=True):
    """One message of the sample."""

    id: str | None
    urn: str | None
    target: str
    error: str | None
    exception: str | None


class Plan(msgspec.Struct):
    #: Dead letters looked at.
    looked: int = 0
    selected: int = 0
    #: Would be sent; selected = sendable + skipped.
    sendable: int = 0
    skipped: int = 0
    bytes: int = 0
    targets: dict[str, int] = {}
    why_skipped: dict[str, int] = {}
    #: Kind of reason -> the first one in full.
    examples: dict[str, str] = {}
    #: False when looking ended at a limit.
    complete: bool = True
    #: Sent back from this log before, and therefore not selected again.
    already: int = 0
    #: Of the sendable ones: sent back before, they died again.
    died_again: int = 0
    sample: list[Shown] = []
    #: Position, or else digest, of the first message that stays.
    anchor: str = ""
    #: Reserved by somebody at the time, or by a run that was killed: not looked at.
    reserved: int = 0

    def as_dict(self) -> dict[str, Any]:
        found = msgspec.structs.asdict(self) | {
            "sample": [msgspec.structs.asdict(one) for one in self.sample]
        }
        found.pop("anchor")
        return found


def make_plan(
    letters: Iterable[Letter],
    chosen: Callable[[Letter], bool],
    checks: Checks,
    traits: Traits,
    *,
    limit: int | None,
    record: Record,
) -> Plan:
    """`record` gets the lines, chunk by chunk. Looking ends once `limit` is reached and the first message
    that stays is known."""
    plan = Plan()
    for page in _pages(letters):
        names = [name_of(letter.delivery, traits) for letter in page]
        picked = [pair for pair in zip(page, names, strict=True) if chosen(pair[0])]
        plan.looked += len(page)
        lines = record(_lines(plan, picked, checks, limit))
        _count(plan, lines, {name: letter for letter, name in picked})
        going = {line.name for line in lines if line.state == LineState.PLANNED}
        plan.anchor = plan.anchor or next((x.position or x.digest for x in names if x not in going), "")
        if limit is not None and plan.selected >= limit and plan.anchor:
            plan.complete = False
            break
    return plan


def _lines(
    plan: Plan, picked: Sequence[tuple[Letter, Name]], checks: Checks, limit: int | None
) -> list[Line]:
    decisions = checks.decide([letter for letter, _ in picked])
    lines: list[Line] = []
    for (letter, name), made in zip(picked, decisions, strict=True):
        if limit is not None and plan.selected >= limit:
            break
        if kind_of(made.why) == ALREADY:
            plan.already += 1
            continue
        plan.selected += 1
        lines.append(_line(letter, name, made))
    return lines


def _line(letter: Letter, name: Name, made: Decision) -> Line:
    return Line(
        name.digest,
        id=letter.id or "",
        position=name.position,
        target=made.target,
        state=LineState.SKIPPED if made.why else LineState.PLANNED,
        why=made.why,
        bytes=len(letter.delivery.body),
        generation=made.generation,
    )


def _count(plan: Plan, lines: Sequence[Line], letters: dict[Name, Letter]) -> None:
    for line in lines:
        if line.state == LineState.SKIPPED:
            kind = kind_of(line.why)
            plan.skipped += 1
            plan.why_skipped[kind] = plan.why_skipped.get(kind, 0) + 1
            plan.examples.setdefault(kind, line.why)
            continue
        plan.sendable += 1
        plan.died_again += line.generation > 1
        plan.bytes += line.bytes
        plan.targets[line.target] = plan.targets.get(line.target, 0) + 1
        if len(plan.sample) < SAMPLE:
            shown = letters[line.name]
            plan.sample.append(Shown(shown.id, shown.urn, line.target, shown.error, shown.exception))


def _pages(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    page: list[Letter] = []
    for letter in letters:
        page.append(letter)
        if len(page) >= CHUNK:
            yield page
            page = []
    yield page
