"""The ledger: every redrive as a job, every chosen message as a line, written before it is sent.

A line goes planned -> intent -> published -> acked, or ends as skipped or failed; whoever finds it after a
crash knows from its state what may have happened. Every change of a state is a method here. No broker here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from shinar.clock import SYSTEM, Clock
from shinar.errors import UsageError
from shinar.redrive.ledger.history import History
from shinar.redrive.ledger.lines import (
    OPEN,
    SENT,
    STAYS,
    Job,
    JobState,
    Line,
    LineState,
    reopened,
    without_claimed,
    without_sent,
)
from shinar.redrive.ledger.owner import lives, this_process
from shinar.redrive.ledger.tables import CHUNK, Tables, default_path, write_rows
from shinar.redrive.letters.letter import Name
from shinar.redrive.model import Receipt

__all__ = ["Job", "JobState", "Ledger", "Line", "LineState", "default_path"]

#: A job whose runner on another machine has not shown itself for this long may be taken over.
STALE_MS: Final = 60_000
#: `why` of the lines that a cancelled job did not send.
CANCELLED: Final = "cancelled"

_JOB_COLUMNS: Final = Job.__struct_fields__
_LINE_COLUMNS: Final = Line.__struct_fields__
_LINE_LIST: Final = ", ".join(_LINE_COLUMNS)
_RECORD: Final = (
    "UPDATE shinar_redrive_lines SET state = %s, why = %s, target = %s, new_id = %s, copy = %s, "
    "id = %s, generation = %s, at_ms = %s WHERE job = %s AND digest = %s AND n = %s"
)


class Ledger(History):
    """Opened on a file or a postgresql:// URL. One thread at a time."""

    def __init__(self, place: str | os.PathLike[str] = "", clock: Clock = SYSTEM) -> None:
        super().__init__(Tables(place, clock))
        self.clock = clock

    def close(self) -> None:
        self._tables.close()

    # -- jobs

    def create(self, job: Job) -> None:
        marks = ", ".join(["%s"] * len(_JOB_COLUMNS))
        sql = f"INSERT INTO shinar_redrive_jobs ({', '.join(_JOB_COLUMNS)}) VALUES ({marks})"
        self._tables.write(sql, [_values(job)])

    def job(self, text: str) -> Job:
        """By its id, or by the beginning of it if only one begins so."""
        found = self._jobs(
            "WHERE id LIKE %s ORDER BY created_ms DESC LIMIT 2", (text.replace("%", "") + "%",)
        )
        exact = [job for job in found if job.id == text]
        if exact or len(found) == 1:
            return (exact or found)[0]
        raise UsageError(
            f"{'more than one' if found else 'no'} redrive begins with {text!r}; see `shinar redrive list`"
        )

    def jobs(self, limit: int = 50) -> list[Job]:
        return self._jobs("ORDER BY created_ms DESC, id DESC LIMIT %s", (limit,))

    def _jobs(self, where: str, values: tuple[Any, ...]) -> list[Job]:
        sql = f"SELECT {', '.join(_JOB_COLUMNS)} FROM shinar_redrive_jobs {where}"
        found = [dict(zip(_JOB_COLUMNS, row, strict=True)) for row in self._tables.rows(sql, values)]
        return [Job(**(row | {"planned": bool(row["planned"])})) for row in found]

    def state_of(self, job_id: str) -> str:
        rows = self._tables.rows("SELECT state FROM shinar_redrive_jobs WHERE id = %s", (job_id,))
        return str(rows[0][0]) if rows else JobState.CANCELLED

    def alive(self, job: Job) -> bool:
        """Whether the runner of a running job is still there, as far as can be seen from here."""
        there = lives(job.runner, job.seen_ms)
        if there is not None:
            return there
        return self.clock.epoch_ms() - job.seen_ms < STALE_MS

    def take_over(self, job: Job) -> bool:
        """Become the only runner of a job; True if the runner before was killed or has been silent."""
        me = this_process()
        current = self.job(job.id)
        if current.state == JobState.PLANNING:
            raise UsageError(
                f"redrive {job.id} was not planned to its end, and nothing was sent; cancel it and start anew"
            )
        crashed = current.state == JobState.RUNNING and current.runner != me
        if crashed and self.alive(current):
            raise UsageError(
                f"redrive {job.id} is being run by {current.runner}; stop it there, or wait for its end"
            )
        # Of two that come at the same time one finds the row as it was.
        sql = (
            "UPDATE shinar_redrive_jobs SET runner = %s, state = %s, seen_ms = %s "
            "WHERE id = %s AND runner = %s AND state = %s AND seen_ms = %s"
        )
        mine = (me, str(JobState.RUNNING), self.clock.epoch_ms())
        if self._tables.update(sql, (*mine, job.id, current.runner, current.state, current.seen_ms)) != 1:
            raise UsageError(f"redrive {job.id} was taken by another runner just now; see its status")
        return crashed

    def show_life(self, job_id: str) -> None:
        self._change(job_id, seen_ms=self.clock.epoch_ms())

    def planned(self, job_id: str, anchor: str) -> None:
        """All its lines are written."""
        self._change(job_id, state=JobState.PLANNED, anchor=anchor)

    def remember_marks(self, job_id: str, marks: str) -> None:
        self._change(job_id, marks=marks)

    def pause(self, job_id: str, note: str = "") -> None:
        self._change(job_id, state=JobState.PAUSED, **({"note": note[:500]} if note else {}))

    def finish(self, job_id: str) -> None:
        self._change(job_id, state=JobState.DONE, note="")

    def cancel(self, job_id: str, note: str = CANCELLED) -> bool:
        """End a job for good: what is only planned is not sent. True when its runner is at work: it stops
        after the batch in hand and calls this again."""
        job = self.job(job_id)
        running = job.state == JobState.RUNNING and job.runner != this_process() and self.alive(job)
        self._change(job_id, state=JobState.CANCELLED, note=note)
        if not running:
            self._turn(job_id, LineState.SKIPPED, CANCELLED, LineState.PLANNED)
        return running

    def _change(self, job_id: str, **values: Any) -> None:
        sets = ", ".join(f"{name} = %s" for name in values)
        plain = [str(value) if isinstance(value, StrEnum) else value for value in values.values()]
        self._tables.write(f"UPDATE shinar_redrive_jobs SET {sets} WHERE id = %s", [(*plain, job_id)])

    # -- lines of a plan

    def claim(self, job: Job, lines: Sequence[Line], passed: Counter[Name]) -> list[Line]:
        """Write lines, and with them this job's claim on their letters; those that another job has claimed
        are skipped. Byte-identical ones get a number each. Of two jobs that claim at once one is first."""
        if not lines:
            return []
        with self._tables.exclusive(alone=True) as cursor:
            names = [line.name for line in lines]
            claims = self.claims(job.source_key, job.queue, names, besides=job.id)
            kept = self._numbered(job.id, without_claimed(lines, claims, passed))
            marks = ", ".join(["%s"] * (len(_LINE_COLUMNS) + 1))
            sql = f"INSERT INTO shinar_redrive_lines (job, {_LINE_LIST}) VALUES ({marks})"
            write_rows(cursor, self._tables.dialect.render(sql), [(job.id, *_values(line)) for line in kept])
        return kept

    def _numbered(self, job_id: str, lines: Sequence[Line]) -> list[Line]:
        sql = (
            "SELECT digest, MAX(n) FROM shinar_redrive_lines WHERE job = %s AND digest {in_list} "
            "GROUP BY digest"
        )
        rows = self._tables.listed_rows(sql, (job_id,), [line.digest for line in lines])
        last = Counter({digest: int(n) + 1 for digest, n in rows})
        now_ms = self.clock.epoch_ms()
        numbered: list[Line] = []
        for line in lines:
            numbered.append(msgspec.structs.replace(line, n=last[line.digest], at_ms=now_ms))
            last[line.digest] += 1
        return numbered

    # -- what happens to a line

    def record_intent(self, job_id: str, lines: Sequence[Line]) -> None:
        """Write ahead: from here on nobody may believe that these were not sent."""
        self._record(job_id, lines, LineState.INTENT)

    def record_unsent(self, job_id: str, lines: Sequence[Line]) -> None:
        """They surely did not arrive."""
        self._record(job_id, lines, LineState.PLANNED)

    def record_published(self, job_id: str, lines: Sequence[Line]) -> None:
        self._record(job_id, lines, LineState.PUBLISHED)

    def record_acked(self, job_id: str, lines: Sequence[Line]) -> None:
        self._record(job_id, lines, LineState.ACKED)

    def record_skipped(self, job_id: str, lines: Sequence[Line]) -> None:
        self._record(job_id, lines, LineState.SKIPPED)

    def record_failed(self, job_id: str, lines: Sequence[Line]) -> None:
        self._record(job_id, lines, LineState.FAILED)

    def _record(self, job_id: str, lines: Sequence[Line], state: LineState) -> None:
        if lines:
            changed = [msgspec.structs.replace(line, state=state) for line in lines]
            self._tables.write(_RECORD, self._recorded(job_id, changed))

    def _recorded(self, job_id: str, lines: Sequence[Line]) -> list[tuple[Any, ...]]:
        now_ms = self.clock.epoch_ms()
        return [
            (
                *(str(line.state), line.why, line.target, line.new_id, line.copy, line.id),
                *(line.generation, now_ms, job_id, line.digest, line.n),
            )
            for line in lines
        ]

    # -- what happens to all lines of a state

    def retry(self, job: Job) -> None:
        """Failed lines, and those that another job had claimed, are planned again unless they are claimed
        by another job now, or another job has sent them."""
        ended = map(reopened, self.lines_in(job.id, LineState.FAILED, LineState.SKIPPED))
        again = [line for line in ended if line is not None]
        passed: Counter[Name] = Counter()
        for start in range(0, len(again), CHUNK):
            page = again[start : start + CHUNK]
            with self._tables.exclusive(alone=True) as cursor:
                names = [line.name for line in page]
                sent = self.sent_before(job.source_key, job.queue, names, besides=job.id)
                claims = self.claims(job.source_key, job.queue, names, besides=job.id)
                rows = self._recorded(job.id, without_claimed(without_sent(page, sent), claims, passed))
                write_rows(cursor, self._tables.dialect.render(_RECORD), rows)

    def settle_published(self, job_id: str) -> None:
        """The originals of all published lines are gone, or need no acknowledgement."""
        self._turn(job_id, LineState.ACKED, None, LineState.PUBLISHED)

    def settle_intents(self, job_id: str) -> None:
        """The originals are gone, and nothing but our own moves takes them."""
        self._turn(job_id, LineState.ACKED, None, LineState.INTENT)

    def give_up(self, job_id: str, why: str) -> None:
        """Lines whose letter was not found in the whole queue."""
        self._turn(job_id, LineState.SKIPPED, why, LineState.PLANNED, LineState.INTENT)

    def doubt_acks(self, job_id: str, window_ms: int) -> None:
        """The last settlements before a crash may not have reached the broker: their lines are published
        only, until the queue was searched once more."""
        sql = (
            "UPDATE shinar_redrive_lines SET state = 'published' WHERE job = %s AND state = 'acked' "
            "AND at_ms >= (SELECT MAX(at_ms) FROM shinar_redrive_lines WHERE job = %s) - %s"
        )
        self._tables.write(sql, [(job_id, job_id, window_ms)])

    def _turn(self, job_id: str, state: LineState, why: str | None, *states: LineState) -> int:
        """Every line in one of `states` gets another; None keeps what its `why` says."""
        sql = (
            "UPDATE shinar_redrive_lines SET state = %s, why = COALESCE(%s, why), at_ms = %s "
            "WHERE job = %s AND state {in_list}"
        )
        listed = self._tables.dialect.listed([str(one) for one in states])
        return self._tables.update(sql, (str(state), why, self.clock.epoch_ms(), job_id, listed))

    # -- questions about one job

    def open_lines(self, job_id: str, names: Sequence[Name]) -> dict[Name, list[Line]]:
        """Open lines that letters of these names answer to, as many of each name as are asked for, in the
        order of `OPEN`."""
        by_position = all(name.position for name in names)
        column = "position" if by_position else "digest"
        most = max(Counter(names).values(), default=0)
        sql = (
            f"SELECT {_LINE_LIST} FROM (SELECT {_LINE_LIST}, "
            "ROW_NUMBER() OVER (PARTITION BY digest, position, state ORDER BY n) AS at "
            "FROM shinar_redrive_lines WHERE job = %s AND state IN ('planned', 'intent', 'published') "
            f"AND {column} {{in_list}}) AS numbered WHERE at <= {most}"
        )
        wanted = set(names)
        found: dict[Name, list[Line]] = {name: [] for name in names}
        for row in self._tables.listed_rows(sql, (job_id,), [getattr(name, column) for name in names]):
            line = _line(row)
            key = line.name if by_position else Name(line.digest)
            if key in wanted:
                found[key].append(line)
        for lines in found.values():
            lines.sort(key=lambda line: (OPEN.index(LineState(line.state)), line.n))
        return found

    def staying(self, job_id: str, names: Iterable[Name] | None = None) -> dict[str, int]:
        """Digest -> how many lines of it ended without being sent; of all digests if none are named."""
        states = ", ".join(f"'{state}'" for state in STAYS)
        sql = f"SELECT digest, COUNT(*) FROM shinar_redrive_lines WHERE job = %s AND state IN ({states}) "
        if names is None:
            rows: Iterable[Any] = self._tables.rows(sql + "GROUP BY digest", (job_id,))
        else:
            listed = [name.digest for name in names]
            rows = self._tables.listed_rows(sql + "AND digest {in_list} GROUP BY digest", (job_id,), listed)
        return {digest: int(count) for digest, count in rows}

    def lines_in(self, job_id: str, *states: str) -> Iterator[Line]:
        """Page by page; lines may change state while this runs."""
        after = ("", -1)
        sql = (
            f"SELECT {_LINE_LIST} FROM shinar_redrive_lines WHERE job = %s AND state {{in_list}} "
            "AND (digest > %s OR (digest = %s AND n > %s)) ORDER BY digest, n LIMIT %s"
        )
        wanted = self._tables.dialect.listed([str(state) for state in states])
        while True:
            rows = self._tables.rows(sql, (job_id, wanted, after[0], after[0], after[1], CHUNK))
            yield from map(_line, rows)
            if len(rows) < CHUNK:
                return
            after = (rows[-1][0], rows[-1][1])

    def open_count(self, job_id: str) -> int:
        sql = (
            "SELECT COUNT(*) FROM shinar_redrive_lines WHERE job = %s "
            "AND state IN ('planned', 'intent', 'published')"
        )
        return int(self._tables.rows(sql, (job_id,))[0][0])

    def receipt(self, job_id: str) -> Receipt:
        columns = "state, why, COUNT(*), SUM(bytes)"
        sql = f"SELECT {columns} FROM shinar_redrive_lines WHERE job = %s GROUP BY state, why"
        counts: dict[str, dict[str, int]] = {}
        size = 0
        for state, why, count, bytes_ in self._tables.rows(sql, (job_id,)):
            per = counts.setdefault(state, {})
            per[why] = per.get(why, 0) + int(count)
            size += int(bytes_ or 0) if state in SENT else 0
        made = self._tables.rows("SELECT created_ms FROM shinar_redrive_jobs WHERE id = %s", (job_id,))
        found = Receipt.of(job_id, self.state_of(job_id), counts, size)
        again = self.died_again(job_id, int(made[0][0])) if made else 0
        return msgspec.structs.replace(found, died_again=again)


def _values(value: Job | Line) -> tuple[Any, ...]:
    fields: Mapping[str, Any] = msgspec.structs.asdict(value)
    return tuple(
        int(item) if isinstance(item, bool) else str(item) if isinstance(item, StrEnum) else item
        for item in fields.values()
    )


def _line(row: Any) -> Line:
    return Line(**dict(zip(_LINE_COLUMNS, row, strict=True)))
