"""The ledger: every redrive as a job, every chosen message as a line, written before it is sent.

SQLite or PostgreSQL. A line goes planned -> intent -> published -> acked, or ends as skipped or
failed; whoever finds it after a crash knows from its state what may have happened. No broker here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from shinar.brokers.registry import parse
from shinar.clock import SYSTEM, Clock
from shinar.database.session import Database, check_options
from shinar.errors import ConfigError, UsageError
from shinar.redrive.ledger.owner import lives, this_process
from shinar.redrive.letters.letter import whole
from shinar.redrive.model import Receipt

#: Rows per statement or page.
CHUNK: Final = 500
#: A job whose runner on another machine has not shown itself for this long may be taken over.
STALE_MS: Final = 60_000
#: Layout of the tables; a newer one is refused.
VERSION: Final = "1"


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


SENT: Final = (LineState.PUBLISHED, LineState.ACKED)


class JobState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    #: Stopped by a person, a crash or the failure ratio; `resume` goes on.
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"


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
    #: Digest of the first message that stays: where a turned queue begins again.
    anchor: str = ""
    #: Ends of the target's logs before the first message was sent, as JSON.
    marks: str = ""
    runner: str = ""
    seen_ms: int = 0
    note: str = ""


class Line(msgspec.Struct, frozen=True):
    digest: str
    #: Number among byte-identical messages.
    n: int
    id: str = ""
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
    def key(self) -> tuple[str, int]:
        return self.digest, self.n


_JOB_COLUMNS: Final = Job.__struct_fields__
_LINE_COLUMNS: Final = Line.__struct_fields__
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS shinar_redrive_jobs (id {name} PRIMARY KEY, who {text} NOT NULL, "
    "created_ms {bigint} NOT NULL, source {text} NOT NULL, queue {text} NOT NULL, target {text} NOT NULL, "
    "spec {text} NOT NULL, state {name} NOT NULL, planned {bigint} NOT NULL, anchor {text} NOT NULL, "
    "marks {text} NOT NULL, runner {text} NOT NULL, seen_ms {bigint} NOT NULL, note {text} NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shinar_redrive_lines (job {name} NOT NULL, digest {name} NOT NULL, "
    "n {bigint} NOT NULL, id {text} NOT NULL, position {text} NOT NULL, target {text} NOT NULL, "
    "state {name} NOT NULL, why {text} NOT NULL, bytes {bigint} NOT NULL, new_id {text} NOT NULL, "
    "generation {bigint} NOT NULL, copy {text} NOT NULL, at_ms {bigint} NOT NULL, "
    "PRIMARY KEY (job, digest, n))",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_id ON shinar_redrive_lines (id)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_new ON shinar_redrive_lines (new_id)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_state ON shinar_redrive_lines (job, state)",
    "CREATE INDEX IF NOT EXISTS shinar_redrive_lines_digest ON shinar_redrive_lines (digest)",
    "CREATE TABLE IF NOT EXISTS shinar_redrive_version (version {name} PRIMARY KEY)",
    f"INSERT INTO shinar_redrive_version (version) VALUES ('{VERSION}')",
)


def default_path() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "shinar" / "redrive.db"


class Ledger:
    """Opened on a file or a postgresql:// URL. One thread at a time."""

    def __init__(self, place: str | os.PathLike[str] = "", clock: Clock = SYSTEM) -> None:
        text = os.fspath(place) or str(default_path())
        if "://" not in text:
            try:
                Path(text).expanduser().parent.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise ConfigError(f"{text} cannot be made: {exc.strerror}", setting="ledger") from None
            text = f"sqlite://{Path(text).expanduser().absolute()}"
        url = parse(text)
        if url.scheme not in ("sqlite", "postgresql"):
            raise ConfigError("a ledger is a SQLite file or a postgresql:// URL", setting="ledger")
        check_options(url, frozenset())
        self.clock = clock
        self._database = Database(url, clock)
        self._dialect = self._database.dialect
        schema = tuple(self._dialect.render(sql) for sql in _SCHEMA)
        self._database.ensure("shinar_redrive_version", schema, create=True)
        found = self._rows("SELECT version FROM shinar_redrive_version ORDER BY version DESC LIMIT 1", ())
        if found != [(VERSION,)]:
            self.close()
            raise ConfigError(f"has layout {found}, this is {VERSION}; use a newer shinar", setting="ledger")

    def close(self) -> None:
        self._database.close()

    # -- jobs

    def create(self, job: Job) -> None:
        marks = ", ".join(["%s"] * len(_JOB_COLUMNS))
        sql = f"INSERT INTO shinar_redrive_jobs ({', '.join(_JOB_COLUMNS)}) VALUES ({marks})"
        self._write(sql, [_values(job)])

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
        rows = self._rows(f"SELECT {', '.join(_JOB_COLUMNS)} FROM shinar_redrive_jobs {where}", values)
        return [
            Job(**(dict(zip(_JOB_COLUMNS, row, strict=True)) | {"planned": bool(row[8])})) for row in rows
        ]

    def change(self, job_id: str, **values: Any) -> None:
        sets = ", ".join(f"{name} = %s" for name in values)
        plain = [int(value) if isinstance(value, bool) else value for value in values.values()]
        self._write(f"UPDATE shinar_redrive_jobs SET {sets} WHERE id = %s", [(*plain, job_id)])

    def take_over(self, job: Job) -> str:
        """Become the only runner of a job. A runner that died, or has been silent, is replaced."""
        me = this_process()
        current = self.job(job.id)
        if current.state == JobState.RUNNING and current.runner != me and self.alive(current):
            raise UsageError(
                f"redrive {job.id} is being run by {current.runner}; stop it there, or wait for its end"
            )
        # Of two that come at the same time one finds the row as it was.
        sql = self._dialect.render(
            "UPDATE shinar_redrive_jobs SET runner = %s, state = %s, seen_ms = %s "
            "WHERE id = %s AND runner = %s AND state = %s AND seen_ms = %s"
        )
        mine = (me, str(JobState.RUNNING), self.clock.epoch_ms())
        with self._database.transaction() as cursor:
            cursor.execute(sql, (*mine, job.id, current.runner, current.state, current.seen_ms))
            taken = cursor.rowcount == 1
        if not taken:
            raise UsageError(f"redrive {job.id} was taken by another runner just now; see its status")
        return me

    def alive(self, job: Job) -> bool:
        """Whether the runner of a running job is still there, as far as can be seen from here."""
        there = lives(job.runner, job.seen_ms)
        if there is not None:
            return there
        return self.clock.epoch_ms() - job.seen_ms < STALE_MS

    def state_of(self, job_id: str) -> str:
        rows = self._rows("SELECT state FROM shinar_redrive_jobs WHERE id = %s", (job_id,))
        return str(rows[0][0]) if rows else JobState.CANCELLED

    # -- lines

    def add(self, job_id: str, lines: Sequence[Line]) -> None:
        marks = ", ".join(["%s"] * (len(_LINE_COLUMNS) + 1))
        sql = f"INSERT INTO shinar_redrive_lines (job, {', '.join(_LINE_COLUMNS)}) VALUES ({marks})"
        now_ms = self.clock.epoch_ms()
        stamped = [msgspec.structs.replace(line, at_ms=now_ms) for line in lines]
        self._write(sql, [(job_id, *_values(line)) for line in stamped])

    def mark(self, job_id: str, lines: Sequence[Line]) -> None:
        """Write state, why, target and copy of these lines, all or none of them, durably."""
        sql = (
            "UPDATE shinar_redrive_lines SET state = %s, why = %s, target = %s, new_id = %s, copy = %s, "
            "generation = %s, at_ms = %s WHERE job = %s AND digest = %s AND n = %s"
        )
        now_ms = self.clock.epoch_ms()
        rows = [
            (
                *(str(line.state), line.why, line.target, line.new_id, line.copy, line.generation),
                *(now_ms, job_id, line.digest, line.n),
            )
            for line in lines
        ]
        self._write(sql, rows)

    def lines_of(self, job_id: str, digests: Iterable[str]) -> dict[str, list[Line]]:
        found: dict[str, list[Line]] = {}
        for rows in self._listed("job = %s AND digest {in_list} ORDER BY n", (job_id,), digests):
            for line in rows:
                found.setdefault(line.digest, []).append(line)
        return found

    def lines_in(self, job_id: str, *states: str) -> Iterator[Line]:
        """Page by page; lines may change state while this runs."""
        after = ("", -1)
        select = f"SELECT {', '.join(_LINE_COLUMNS)} FROM shinar_redrive_lines WHERE job = %s AND state "
        where = "{in_list} AND (digest > %s OR (digest = %s AND n > %s)) ORDER BY digest, n LIMIT %s"
        sql = self._dialect.render(select + where)
        wanted = self._dialect.listed([str(state) for state in states])
        while True:
            rows = self._run(sql, (job_id, wanted, after[0], after[0], after[1], CHUNK))
            for row in rows:
                yield _line(row)
            if len(rows) < CHUNK:
                return
            after = (rows[-1][0], rows[-1][1])

    def open_count(self, job_id: str) -> int:
        states = "('planned', 'intent', 'published')"
        sql = f"SELECT COUNT(*) FROM shinar_redrive_lines WHERE job = %s AND state IN {states}"
        return int(self._rows(sql, (job_id,))[0][0])

    def close_open(self, job_id: str, state: LineState, why: str | None, *states: str) -> int:
        """Every line in one of `states` ends so; None keeps what it says already."""
        sql = self._dialect.render(
            "UPDATE shinar_redrive_lines SET state = %s, why = COALESCE(%s, why), at_ms = %s "
            "WHERE job = %s AND state {in_list}"
        )
        listed = self._dialect.listed([str(one) for one in states])
        with self._database.transaction() as cursor:
            cursor.execute(sql, (str(state), why, self.clock.epoch_ms(), job_id, listed))
            return int(cursor.rowcount)

    def doubt_acks(self, job_id: str, window_ms: int) -> None:
        """The last settlements before a crash may not have reached the broker: their lines are published
        only, until the queue was searched once more."""
        sql = (
            "UPDATE shinar_redrive_lines SET state = 'published' WHERE job = %s AND state = 'acked' "
            "AND at_ms >= (SELECT MAX(at_ms) FROM shinar_redrive_lines WHERE job = %s) - %s"
        )
        self._write(sql, [(job_id, job_id, window_ms)])

    # -- over all jobs

    def generations(self, ids: Iterable[str]) -> dict[str, int]:
        """How often each message was sent back before, patched copies followed."""
        found: dict[str, int] = {}
        for column in ("id", "new_id"):
            sql = self._dialect.render(
                f"SELECT {column}, MAX(generation) FROM shinar_redrive_lines "
                f"WHERE {column} {{in_list}} AND state IN ('published', 'acked') GROUP BY {column}"
            )
            for chunk in _chunks(ids):
                for id_, most in self._run(sql, (self._dialect.listed(chunk),)):
                    found[id_] = max(found.get(id_, 0), int(most))
        return found

    def sent_before(self, source: str, queue: str, digests: Iterable[str]) -> dict[str, str]:
        """Digests already sent back from this very queue, and by which job: for logs, which keep them."""
        sql = self._dialect.render(
            "SELECT l.digest, MAX(l.job) FROM shinar_redrive_lines l "
            "JOIN shinar_redrive_jobs j ON j.id = l.job "
            "WHERE j.source = %s AND j.queue = %s AND l.state IN ('published', 'acked') "
            "AND l.digest {in_list} GROUP BY l.digest"
        )
        found: dict[str, str] = {}
        for chunk in _chunks(digests):
            found.update(self._run(sql, (source, queue, self._dialect.listed(chunk))))
        return found

    def last_sent_ms(self, id_: str) -> int | None:
        """When a copy under this very id was sent; patched copies go by their new one."""
        sql = (
            "SELECT MAX(at_ms) FROM shinar_redrive_lines WHERE state IN ('published', 'acked') "
            "AND ((id = %s AND new_id = '') OR new_id = %s)"
        )
        found = self._rows(sql, (id_, id_))[0][0] if id_ else None
        return None if found is None else int(found)

    def receipt(self, job_id: str) -> Receipt:
        columns = "state, why, COUNT(*), SUM(bytes)"
        sql = f"SELECT {columns} FROM shinar_redrive_lines WHERE job = %s GROUP BY state, why"
        counts: dict[str, dict[str, int]] = {}
        size = 0
        for state, why, count, bytes_ in self._rows(sql, (job_id,)):
            per = counts.setdefault(state, {})
            per[why] = per.get(why, 0) + int(count)
            size += int(bytes_ or 0) if state in SENT else 0
        found = Receipt.of(job_id, self.state_of(job_id), counts, size)
        return msgspec.structs.replace(found, died_again=self._died_again(job_id))

    def _died_again(self, job_id: str) -> int:
        """Sent by this job, and found dead once more by a later one."""
        sql = (
            "SELECT COUNT(*) FROM shinar_redrive_lines l WHERE l.job = %s AND l.id <> '' "
            "AND l.state IN ('published', 'acked') AND EXISTS (SELECT 1 FROM shinar_redrive_lines m "
            "JOIN shinar_redrive_jobs j ON j.id = m.job WHERE j.created_ms > %s "
            "AND m.id = CASE WHEN l.new_id = '' THEN l.id ELSE l.new_id END)"
        )
        made = self._rows("SELECT created_ms FROM shinar_redrive_jobs WHERE id = %s", (job_id,))
        return int(self._rows(sql, (job_id, made[0][0]))[0][0]) if made else 0

    # -- statements

    def _listed(self, where: str, before: tuple[Any, ...], values: Iterable[str]) -> Iterator[list[Line]]:
        sql = self._dialect.render(
            f"SELECT {', '.join(_LINE_COLUMNS)} FROM shinar_redrive_lines WHERE {where}"
        )
        for chunk in _chunks(values):
            yield [_line(row) for row in self._run(sql, (*before, self._dialect.listed(chunk)))]

    def _rows(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        return self._run(self._dialect.render(sql), values)

    def _run(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with self._database.statement() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def _write(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        try:
            with self._database.transaction() as cursor:
                cursor.executemany(self._dialect.render(sql), rows)
        except UnicodeEncodeError:  # half an emoji in somebody's error text; nothing was written
            clean = [tuple(whole(one) if isinstance(one, str) else one for one in row) for row in rows]
            with self._database.transaction() as cursor:
                cursor.executemany(self._dialect.render(sql), clean)


def _values(value: Job | Line) -> tuple[Any, ...]:
    fields: Mapping[str, Any] = msgspec.structs.asdict(value)
    return tuple(
        int(item) if isinstance(item, bool) else str(item) if isinstance(item, StrEnum) else item
        for item in fields.values()
    )


def _line(row: Any) -> Line:
    return Line(**dict(zip(_LINE_COLUMNS, row, strict=True)))


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    listed = list(dict.fromkeys(values))
    for start in range(0, len(listed), CHUNK):
        yield listed[start : start + CHUNK]
