"""What the ledger knows over all jobs: what was sent before, how often, and what is claimed. Read only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shinar.redrive.ledger.lines import CLAIMING, OPEN, SENT, Claims
from shinar.redrive.ledger.tables import Tables
from shinar.redrive.letters.letter import Name


def _quoted(states: Iterable[str]) -> str:
    return "(" + ", ".join(f"'{state}'" for state in states) + ")"


_SENT: Final = _quoted(SENT)
_CLAIMS: Final = (
    "SELECT l.digest, l.position, MAX(l.job), COUNT(*) FROM shinar_redrive_lines l "
    "JOIN shinar_redrive_jobs j ON j.id = l.job WHERE j.source_key = %s AND j.queue = %s AND j.id <> %s "
    f"AND j.state IN {_quoted(CLAIMING)} AND l.state IN {_quoted(OPEN)} "
    "AND l.{column} {{in_list}} GROUP BY l.digest, l.position"
)


class History:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def generations(self, ids: Iterable[str], *, besides: str = "") -> dict[str, int]:
        """How many redrives sent each message back before, patched copies followed. The job `besides` does
        not count: copies of one message inside one job are one generation."""
        wanted = list(ids)
        found: dict[str, int] = {}
        for column in ("id", "new_id"):
            sql = (
                f"SELECT {column}, MAX(generation) FROM shinar_redrive_lines WHERE state IN {_SENT} "
                f"AND job <> %s AND {column} {{in_list}} GROUP BY {column}"
            )
            for id_, most in self._tables.listed_rows(sql, (besides,), wanted):
                found[id_] = max(found.get(id_, 0), int(most))
        return found

    def sent_before(
        self, source_key: str, queue: str, names: Iterable[Name], *, besides: str = ""
    ) -> dict[Name, str]:
        """Letters already sent back from this very queue, and by which job. Only a position tells: identical
        letters without one may have come later."""
        wanted = {name for name in names if name.position}
        sql = (
            "SELECT l.digest, l.position, MAX(l.job) FROM shinar_redrive_lines l "
            "JOIN shinar_redrive_jobs j ON j.id = l.job WHERE j.source_key = %s AND j.queue = %s "
            f"AND j.id <> %s AND l.state IN {_SENT} AND l.position {{in_list}} GROUP BY l.digest, l.position"
        )
        rows = self._tables.listed_rows(sql, (source_key, queue, besides), {one.position for one in wanted})
        found = {Name(digest, position): str(job) for digest, position, job in rows}
        return {name: job for name, job in found.items() if name in wanted}

    def claims(self, source_key: str, queue: str, names: Iterable[Name], *, besides: str = "") -> Claims:
        """Letters of this queue that other jobs have not finished with."""
        wanted = set(names)
        by_position = all(name.position for name in wanted)
        column = "position" if by_position else "digest"
        values = {name.position if by_position else name.digest for name in wanted}
        rows = self._tables.listed_rows(_CLAIMS.format(column=column), (source_key, queue, besides), values)
        found = {Name(digest, position): (str(job), int(count)) for digest, position, job, count in rows}
        return {name: claim for name, claim in found.items() if name in wanted}

    def last_sent_ms(self, id_: str) -> int | None:
        """When a copy under this very id was sent; patched copies go by their new one."""
        sql = (
            f"SELECT MAX(at_ms) FROM shinar_redrive_lines WHERE state IN {_SENT} "
            "AND ((id = %s AND new_id = '') OR new_id = %s)"
        )
        found = self._tables.rows(sql, (id_, id_))[0][0] if id_ else None
        return None if found is None else int(found)

    def copies_sent(self, target: str, copies: Iterable[str], job_id: str = "") -> dict[str, int]:
        """How many copies of each digest one job, or all, know to have arrived in this queue."""
        sql = (
            f"SELECT copy, COUNT(*) FROM shinar_redrive_lines WHERE target = %s AND state IN {_SENT} "
            "AND %s IN ('', job) AND copy {in_list} GROUP BY copy"
        )
        return {copy: int(count) for copy, count in self._tables.listed_rows(sql, (target, job_id), copies)}

    def died_again(self, job_id: str, created_ms: int) -> int:
        """Sent by this job, and found dead once more by a later one."""
        sql = (
            "SELECT COUNT(*) FROM shinar_redrive_lines l WHERE l.job = %s AND l.id <> '' "
            f"AND l.state IN {_SENT} "
            "AND EXISTS (SELECT 1 FROM shinar_redrive_lines m "
            "JOIN shinar_redrive_jobs j ON j.id = m.job WHERE j.created_ms > %s "
            "AND m.id = CASE WHEN l.new_id = '' THEN l.id ELSE l.new_id END)"
        )
        return int(self._tables.rows(sql, (job_id, created_ms))[0][0])
