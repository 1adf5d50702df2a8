"""What a redrive would do, without doing it: counts, bytes, targets, a sample, and who stays and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from shinar.clock import SYSTEM, Clock
from shinar.envelope.text import scan_object
from shinar.errors import ContractError
from shinar.redrive.eligibility import Checks
from shinar.redrive.ledger.ledger import Line, LineState
from shinar.redrive.letters.letter import Letter, digest
from shinar.redrive.letters.repair import repaired
from shinar.redrive.send.patch import Patch
from shinar.redrive.send.sender import Route, SentMs, copy_of

#: Letters checked at once.
CHUNK: Final = 200
#: Messages shown by a dry run, and characters of a payload in it.
SAMPLE: Final = 5
SAMPLE_CHARS: Final = 2_000


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
    #: Digest of the first message that stays.
    anchor: str = ""

    def as_dict(self) -> dict[str, Any]:
        found = msgspec.structs.asdict(self) | {
            "sample": [msgspec.structs.asdict(one) for one in self.sample]
        }
        found.pop("anchor")
        return found


class Planner:
    def __init__(
        self,
        route: Route,
        checks: Checks,
        patch: Patch | None = None,
        clock: Clock = SYSTEM,
        repair: str = "",
    ) -> None:
        self._repair = repair
        self._route = route
        self._checks = checks
        self._patch = patch
        self._clock = clock
        #: Digests that a log keeps though they were sent back; given by the ledger.
        self.sent_before: Callable[[Iterable[str]], Iterable[str]] = lambda _: ()
        self.generations: Callable[[Iterable[str]], Any] = lambda _: {}
        self.last_sent_ms: SentMs = lambda _: None

    def plan(
        self,
        letters: Iterable[Letter],
        chosen: Callable[[Letter], bool],
        limit: int | None = None,
        write: Callable[[Sequence[Line]], None] = lambda _: None,
    ) -> Plan:
        """`write` gets the lines, chunk by chunk, and numbers identical ones. Looking ends once `limit`
        is reached and the first message that stays is known."""
        plan = Plan()
        for page in _pages(letters):
            names = [digest(letter.delivery, self._route.source.traits) for letter in page]
            before = set(self.sent_before(names)) if self._route.log else set()
            picked: list[tuple[Letter, str]] = []
            for letter, name in zip(page, names, strict=True):
                plan.looked += 1
                if (limit is not None and plan.selected >= limit) or not chosen(letter):
                    continue
                if name in before:
                    plan.already += 1
                    continue
                plan.selected += 1
                picked.append((letter, name))
            lines = self._lines(plan, picked)
            going = {line.digest for line in lines if line.state == LineState.PLANNED}
            plan.anchor = plan.anchor or next((name for name in names if name not in going), "")
            write(lines)
            if limit is not None and plan.selected >= limit and plan.anchor:
                plan.complete = False
                break
        return plan

    def _lines(self, plan: Plan, picked: list[tuple[Letter, str]]) -> list[Line]:
        letters = [letter for letter, _ in picked]
        again = self.generations([letter.id for letter in letters if letter.id])
        lines: list[Line] = []
        for (letter, name), why in zip(picked, self._checks.why(letters), strict=True):
            target = self._route.queue or letter.target(self._route.source.traits)
            why = why or self._refusal(letter, target)
            size = len(letter.delivery.body)
            state = LineState.SKIPPED if why else LineState.PLANNED
            position = letter.delivery.position
            lines.append(Line(name, 0, letter.id or "", position, target, state, why, size))
            if why:
                kind = why.partition(":")[0]
                plan.skipped += 1
                plan.why_skipped[kind] = plan.why_skipped.get(kind, 0) + 1
                plan.examples.setdefault(kind, why)
                continue
            plan.sendable += 1
            plan.died_again += letter.id in again
            plan.bytes += size
            plan.targets[target] = plan.targets.get(target, 0) + 1
            if len(plan.sample) < SAMPLE:
                plan.sample.append(self._shown(letter, target))
        return lines

    def _shown(self, letter: Letter, target: str) -> Shown:
        changed, before, after = repaired(letter, self._repair), "", ""
        if self._patch is not None or changed is not letter:
            body = copy_of(changed)
            before = _payload(letter.delivery.body)
            after = _payload(body if self._patch is None else self._patch.changed(changed, body))
        return Shown(changed.id, changed.urn, target, letter.error, letter.exception, before, after)

    def _refusal(self, letter: Letter, target: str) -> str:
        letter = repaired(letter, self._repair)
        try:
            body, new_id = copy_of(letter), ""
            if self._patch is not None:
                body, new_id = self._patch.apply(letter, body)
        except ContractError as exc:
            return f"patch: {exc}"
        why = self._checks.refused_copy(body) if self._patch is not None else ""
        sent_ms = None if new_id else self.last_sent_ms
        return why or self._route.refuses(target, letter, body, sent_ms, self._clock.epoch_ms())


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
