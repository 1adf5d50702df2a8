"""What payloads are made of: every field of every URN and language, counted. Drift and proposals read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from shinar.pipeline.lake.store import to_spark
from shinar.pipeline.typed import types as typed

#: Largest integer every language of the contract reads exactly (JavaScript and PHP on JSON use doubles).
SAFE_INTEGER: Final = 2**53 - 1
#: Distinct short texts remembered per field and task: more, and it is not an enumeration.
MAX_CHOICES: Final = 12
_CHOICE_CHARS: Final = 40
#: Fields counted per URN and language in one task; a payload with ids as keys has no end.
MAX_FIELDS: Final = 2000
#: Rows a task counts before it hands on what it has.
_FLUSH_ROWS: Final = 200_000

FIELDS: Final = pa.schema(
    [
        pa.field("urn", pa.string()),
        pa.field("lang", pa.string()),
        pa.field("pointer", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("seen", pa.int64()),
        pa.field("unsafe_integers", pa.int64()),
        pa.field("first_at", pa.timestamp("us", tz="UTC")),
        pa.field("last_at", pa.timestamp("us", tz="UTC")),
        pa.field("choices", pa.list_(pa.string())),
        pa.field("sample_id", pa.string()),
    ]
)


def fields(messages: DataFrame) -> DataFrame:
    """One row per URN, language, field and kind of value. `pointer` "" counts the messages themselves.

    Array items have the pointer of the array and `/*`. `choices` has the distinct short texts, or null when
    there were too many.
    """
    at = F.coalesce("created_at", "received_at").alias("at")
    parts = messages.select("urn", "lang", "data", at, "id").mapInArrow(_count, to_spark(FIELDS))
    many = F.max(F.col("choices").isNull() & (F.col("kind") == "string"))
    merged = F.array_sort(F.array_distinct(F.flatten(F.collect_list("choices"))))
    return (
        parts.groupBy("urn", "lang", "pointer", "kind")
        .agg(
            F.sum("seen").alias("seen"),
            F.sum("unsafe_integers").alias("unsafe_integers"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.when(~many, merged).alias("choices"),
            F.min("sample_id").alias("sample_id"),
        )
        .withColumn("choices", F.when(F.size("choices") <= MAX_CHOICES, F.col("choices")))
    )


class _Field:
    __slots__ = ("choices", "first", "last", "sample", "seen", "unsafe")

    def __init__(self, at: Any, sample: str | None) -> None:
        self.seen = 0
        self.unsafe = 0
        self.first = self.last = at
        self.sample = sample
        self.choices: set[str] | None = set()

    def add(self, value: Any, at: Any) -> None:
        self.seen += 1
        if at is not None:
            self.first = at if self.first is None or at < self.first else self.first
            self.last = at if self.last is None or at > self.last else self.last
        if type(value) is int and not -SAFE_INTEGER <= value <= SAFE_INTEGER:
            self.unsafe += 1
        elif type(value) is str and self.choices is not None:
            if len(value) > _CHOICE_CHARS or not value.isprintable():
                self.choices = None
            else:
                self.choices.add(value)
                if len(self.choices) > MAX_CHOICES:
                    self.choices = None


_Key = tuple[str, str | None, str, str]


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found: dict[_Key, _Field] = {}
    kinds: dict[tuple[str, str | None], int] = defaultdict(int)
    rows = 0
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("urn", "lang", "data", "at", "id")]
        for urn, lang, data, at, sample in zip(*columns, strict=True):
            walk = _Walk(found, kinds, (urn, lang), at, sample)
            walk.message(_payload(data))
        rows += len(batch)
        if rows >= _FLUSH_ROWS:
            yield _rows(found)
            found, rows = {}, 0
            kinds.clear()
    yield _rows(found)


def _payload(data: str | None) -> dict[str, Any]:
    try:
        return typed.decode(data) if data else {}
    except Exception:  # the boundary around one message: it counts, and shows no fields
        return {}


class _Walk:
    """One payload on its way through the counters."""

    __slots__ = ("_at", "_found", "_group", "_kinds", "_sample")

    def __init__(
        self,
        found: dict[_Key, _Field],
        kinds: dict[tuple[str, str | None], int],
        group: tuple[str, str | None],
        at: Any,
        sample: str | None,
    ) -> None:
        self._found = found
        self._kinds = kinds
        self._group = group
        self._at = at
        self._sample = sample

    def message(self, payload: dict[str, Any]) -> None:
        self._add("", "message", None)
        self._object("", payload, 0)

    def _object(self, prefix: str, payload: dict[str, Any], depth: int) -> None:
        for key, value in payload.items():
            pointer = f"{prefix}/{key.replace('~', '~0').replace('/', '~1')}"
            self._value(pointer, value, depth + 1)

    def _value(self, pointer: str, value: Any, depth: int) -> None:
        kind = _KINDS.get(type(value), "number")
        self._add(pointer, kind, value)
        if depth >= 2 * typed.MAX_DEPTH:
            return
        if kind == "object":
            self._object(pointer, value, depth)
        elif kind == "array":
            for item in value[:100]:
                self._value(f"{pointer}/*", item, depth + 1)

    def _add(self, pointer: str, kind: str, value: Any) -> None:
        key = (*self._group, pointer, kind)
        field = self._found.get(key)
        if field is None:
            if self._kinds[self._group] >= MAX_FIELDS:
                return
            self._kinds[self._group] += 1
            field = self._found[key] = _Field(self._at, self._sample)
        field.add(value, self._at)


_KINDS: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    dict: "object",
    list: "array",
    type(None): "null",
}


def _rows(found: dict[_Key, _Field]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "urn": urn,
                "lang": lang,
                "pointer": _utf8(pointer),
                "kind": kind,
                "seen": field.seen,
                "unsafe_integers": field.unsafe,
                "first_at": field.first,
                "last_at": field.last,
                "choices": sorted(field.choices) if field.choices is not None and kind == "string" else None,
                "sample_id": field.sample,
            }
            for (urn, lang, pointer, kind), field in found.items()
        ],
        schema=FIELDS,
    )


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
