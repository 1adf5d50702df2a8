"""What a redrive would do, without doing it: counts, bytes, targets, a sample, and who stays and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from shinar.envelope.text import scan_object
from shinar.redrive.eligibility import Checks, Decision
from shinar.redrive.ledger.lines import Line, LineState
from shinar.redrive.letters.letter import Letter, Name, name_of
from shinar.redrive.model import ALREADY, kind_of
from shinar.settlement.traits import Traits

#: Letters checked at once.
CHUNK: Final = 200
#: Messages shown by a dry run, and characters of a payload in it.
SAMPLE: Final = 5
SAMPLE_CHARS: Final = 2_000

#: Gives the lines back as they are kept: some may be claimed by another job.
Record = Callable[[Sequence[Line]], Sequence[Line]]


class Shown(msgspec.Struct, frozen=True):
    """One message of the sample."""

    id: str | None
    urn: str | None
    target: str
    error: str | None
    exception: str | None
    #: The payload before and after --set, --patch or --repair, as JSON; "" where nothing changes it.
    before: str = ""
    after: str = ""


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
        going = _recorded(plan, _decided(plan, picked, checks, limit), record)
        plan.anchor = plan.anchor or next((x.position or x.digest for x in names if x not in going), "")
        if limit is not None and plan.selected >= limit and plan.anchor:
            plan.complete = False
            break
    return plan


def _recorded(plan: Plan, decided: Sequence[tuple[Letter, Name, Decision]], record: Record) -> set[Name]:
    """The names of what goes."""
    lines = record([_line(*one) for one in decided])
    for line, (letter, _, made) in zip(lines, decided, strict=True):
        _count(plan, line, letter, made)
    return {line.name for line in lines if line.state == LineState.PLANNED}


def _decided(
    plan: Plan, picked: Sequence[tuple[Letter, Name]], checks: Checks, limit: int | None
) -> list[tuple[Letter, Name, Decision]]:
    decisions = checks.decide([letter for letter, _ in picked])
    decided: list[tuple[Letter, Name, Decision]] = []
    for (letter, name), made in zip(picked, decisions, strict=True):
        if limit is not None and plan.selected >= limit:
            break
        if kind_of(made.why) == ALREADY:
            plan.already += 1
            continue
        plan.selected += 1
        decided.append((letter, name, made))
    return decided


def _line(letter: Letter, name: Name, made: Decision) -> Line:
    return Line(
        name.digest,
        id=made.letter.id or "",
        position=name.position,
        target=made.target,
        state=LineState.SKIPPED if made.why else LineState.PLANNED,
        why=made.why,
        bytes=len(letter.delivery.body),
        generation=made.generation,
    )


def _count(plan: Plan, line: Line, letter: Letter, made: Decision) -> None:
    if line.state == LineState.SKIPPED:
        kind = kind_of(line.why)
        plan.skipped += 1
        plan.why_skipped[kind] = plan.why_skipped.get(kind, 0) + 1
        plan.examples.setdefault(kind, line.why)
        return
    plan.sendable += 1
    plan.died_again += line.generation > 1
    plan.bytes += line.bytes
    plan.targets[line.target] = plan.targets.get(line.target, 0) + 1
    if len(plan.sample) < SAMPLE:
        plan.sample.append(_shown(letter, made))


def _shown(letter: Letter, made: Decision) -> Shown:
    before = after = ""
    if made.letter.message is not None:
        before, after = _payload(letter.delivery.body), _payload(made.body)
    if before == after:
        before = after = ""
    return Shown(made.letter.id, made.letter.urn, made.target, letter.error, letter.exception, before, after)


def _payload(body: bytes) -> str:
    """The text of `data`, as far as a person wants to read it in a sample."""
    found = scan_object(body).last("data")
    text = found.value(body).decode("utf-8", "backslashreplace") if found is not None else "null"
    return text if len(text) <= SAMPLE_CHARS else f"{text[:SAMPLE_CHARS]}…"


def _pages(letters: Iterable[Letter]) -> Iterator[list[Letter]]:
    page: list[Letter] = []
    for letter in letters:
        page.append(letter)
        if len(page) >= CHUNK:
            yield page
            page = []
    yield page
