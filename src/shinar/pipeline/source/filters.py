"""What a filter pushed down by Spark saves: rows are dropped before they are validated or cross to the JVM.

Spark applies every filter again, so a filter may be used in part or not at all, but never too sharply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

#: Columns whose filters save work.
_USED: Final = frozenset({"urn", "queue", "created_at", "received_at", "broker", "verdict", "id", "trace_id"})
_COMPARE: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
#: Columns whose text stands literally in the body, unless it is escaped there.
_IN_BODY: Final = frozenset({"urn", "id", "trace_id"})


@dataclass(frozen=True, slots=True)
class PushedFilter:
    """One pushed filter in plain values: it travels to the executors."""

    column: str
    #: A name in pyarrow.compute, or is_in, or starts_with.
    op: str
    value: Any


def usable(filters: Iterable[Filter]) -> tuple[PushedFilter, ...]:
    return tuple(test for test in map(_test, filters) if test is not None)


def queues_left(queues: Iterable[str], tests: Iterable[PushedFilter]) -> list[str]:
    """The queues worth opening."""
    left = list(queues)
    for test in tests:
        if test.column == "queue" and test.op == "equal":
            left = [queue for queue in left if queue == test.value]
        elif test.column == "queue" and test.op == "is_in":
            left = [queue for queue in left if queue in test.value]
    return left


def worth_judging(batch: pa.RecordBatch, tests: Iterable[PushedFilter]) -> pa.RecordBatch:
    """Leave out bodies that cannot hold the wanted text: it is not in them, and nothing is escaped."""
    for test in tests:
        wanted = _texts(test)
        if test.column not in _IN_BODY or not wanted:
            continue
        body = batch.column("body")
        keep = pc.match_substring(body, "\\")
        for text in wanted:
            keep = pc.or_(keep, pc.match_substring(body, text))
        batch = batch.filter(keep)
    return batch


def passing(batch: pa.RecordBatch, tests: Iterable[PushedFilter]) -> pa.RecordBatch:
    for test in tests:
        column = batch.column(test.column)
        if test.op == "is_in":
            keep = pc.is_in(column, pa.array(list(test.value), column.type))
        elif test.op == "starts_with":
            keep = pc.starts_with(column, test.value)
        else:
            keep = getattr(pc, test.op)(column, pa.scalar(test.value, column.type))
        batch = batch.filter(keep)
    return batch


def _test(pushed: Filter) -> PushedFilter | None:
    column: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(column) != 1 or column[0] not in _USED:
        return None
    op = _COMPARE.get(type(pushed))
    if op is None:
        op = {In: "is_in", StringStartsWith: "starts_with"}.get(type(pushed))
    value = getattr(pushed, "value", None)
    if op is None or value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is None:
        return None  # a time without a zone depends on the session: leave it to Spark
    return PushedFilter(column[0], op, value)


def _texts(test: PushedFilter) -> list[str]:
    if test.op in ("equal", "starts_with"):
        return [test.value]
    return [text for text in test.value if text is not None] if test.op == "is_in" else []
