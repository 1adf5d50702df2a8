"""Jobs and lines as values: their states, and which of them are open. No database here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from shinar.redrive.letters.letter import Name
from shinar.redrive.model import ALREADY, CLAIMED, kind_of


class LineState(StrEnum):
    PLANNED = "planned"
    #: About to be sent: after a crash it may or may not have arrived.
    INTENT = "intent"
    #: The copy is confirmed; the original may still be there.
    PUBLISHED = "published"
    #: The copy is confirmed and the original settled.
    ACKED = "acked"
    SKIPPED = "skipped"
    FAILED = "failed"


#: Lines that are not finished, in the order in which byte-identical letters answer to them: what was surely
#: not sent comes first, what only waits for its acknowledgement last.
OPEN: Final = (LineState.PLANNED, LineState.INTENT, LineState.PUBLISHED)
SENT: Final = (LineState.PUBLISHED, LineState.ACKED)
#: Lines whose letter was not sent and stays in the queue.
STAYS: Final = (LineState.SKIPPED, LineState.FAILED)


#: Kind of `why` of a failed line that may have arrived all the same.
UNCONFIRMED: Final = "unconfirmed"


class JobState(StrEnum):
    #: Its lines are being written: after a crash nobody knows which are missing, and nothing was sent.
    PLANNING = "planning"
    PLANNED = "planned"
    RUNNING = "running"
    #: Stopped by a person, a crash or the failure ratio; `resume` continues it.
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"


#: Jobs whose open lines are claims: no other job sends those letters.
CLAIMING: Final = (JobState.PLANNING, JobState.PLANNED, JobState.RUNNING, JobState.PAUSED)


class Job(msgspec.Struct, frozen=True):
    id: str
    who: str
    created_ms: int
    #: URLs are kept without their secrets.
    source: str
    queue: str
    target: str
    #: The choices of the job as JSON; see `model.Spec`.
    spec: str
    state: str = JobState.PLANNED
    #: Whether its lines were all written before the first message was sent.
    planned: bool = False
    #: Position, or else digest, of the first message that stays: where a turned queue begins again.
    anchor: str = ""
    #: Ends of the target's logs before the first message was sent, as JSON.
    marks: str = ""
    runner: str = ""
    seen_ms: int = 0
    note: str = ""
    #: The source's server, as `model.endpoint` names it.
    source_key: str = ""


class Line(msgspec.Struct, frozen=True):
    digest: str
    #: Number among byte-identical messages.
    n: int = 0
    id: str = ""
    #: "" where the broker gives no stable one.
    position: str = ""
    target: str = ""
    state: str = LineState.PLANNED
    why: str = ""
    bytes: int = 0
    #: meta.id of a patched copy.
    new_id: str = ""
    #: 1 for the first redrive of this message, 2 for the second…
    generation: int = 1
    #: Digest of the copy, to find it on the target.
    copy: str = ""
    at_ms: int = 0

    @property
    def name(self) -> Name:
        return Name(self.digest, self.position)


def reopened(line: Line) -> Line | None:
    """How a line that ended unsent is tried once more; None when it stays ended."""
    kind = kind_of(line.why)
    if line.state == LineState.SKIPPED and kind == CLAIMED:
        return msgspec.structs.replace(line, state=LineState.PLANNED, why="")
    if line.state == LineState.FAILED:
        state = LineState.INTENT if kind == UNCONFIRMED else LineState.PLANNED
        return msgspec.structs.replace(line, state=state, why="")
    return None


def without_sent(lines: Sequence[Line], sent: Mapping[Name, str]) -> list[Line]:
    """The lines, those skipped whose letter another job has sent back."""
    return [
        msgspec.structs.replace(line, state=LineState.SKIPPED, why=f"{ALREADY}: by redrive {sent[line.name]}")
        if line.name in sent
        else line
        for line in lines
    ]


#: name -> the job that claims letters of this name, and how many
Claims = Mapping[Name, tuple[str, int]]


def without_claimed(lines: Sequence[Line], claims: Claims, passed: Counter[Name]) -> list[Line]:
    """The lines, those skipped that belong to another job. Of identical letters the first ones met are the
    other job's; `passed` counts them from call to call."""
    kept: list[Line] = []
    for line in lines:
        job, count = claims.get(line.name, ("", 0))
        if line.state == LineState.PLANNED and passed[line.name] < count:
            passed[line.name] += 1
            why = f"{CLAIMED}: redrive {job} has it; resume or cancel that one"
            line = msgspec.structs.replace(line, state=LineState.SKIPPED, why=why)
        kept.append(line)
    return kept
