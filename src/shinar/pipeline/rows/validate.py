"""Bodies to judged columns at the speed of the Arrow hop, with exactly the verdict of `envelope.judge`.

The canonical envelope is decoded by one typed msgspec call a row, its payload kept as raw text; what that
call does not check (UTF-8 and numbers no double holds, both inside the payload) is looked for in the
column of payloads at once. Every row with anything unusual goes through `judge` itself. Columns are built
column by column. Must not know a broker or a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from shinar.envelope import Kind, Verdict, judge
from shinar.envelope.model import MAX_DEPTH, Int64
from shinar.envelope.text import scan_object
from shinar.errors import ConfigError
from shinar.pipeline.rows import schema
from shinar.pipeline.rows.prescan import suspicious_rows

#: What a message whose `data` is missing or null is presented with.
EMPTY_DATA: Final = "{}"
#: Rows decoded at a time: their Python objects should fit a core's own cache.
CHUNK_ROWS: Final = 1_024
#: First and last millisecond Spark, Python and Delta all can show (the years 1 to 9999).
TIME_MS: Final = (-62_135_596_800_000, 253_402_300_799_999)

_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SPACE: Final = 0x20
_OPEN_BRACE: Final = 0x7B


class _Meta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str
    queue: str
    lang: str
    schema_version: Literal[1]
    created_at: Int64


class _DeadLetter(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    failed_at: Int64 | None = None
    original_queue: str | None = None
    attempts: Int64 | None = None
    lang: str | None = None


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The canonical envelope. Slow rows are poured into the same shape, with None for what is absent."""

    job: str
    trace_id: str
    data: msgspec.Raw
    meta: _Meta
    attempts: Int64
    dead_letter: _DeadLetter | None = None


class _Payload(msgspec.Struct, gc=False):
    data: msgspec.Raw = msgspec.Raw(b"")


_NO_TEXT: Final = msgspec.Raw(b"")
_NO_META: Final = _Meta(None, None, None, 1, 0)  # type: ignore[arg-type]  # nulls of a row without a message
#: Stands for a body that gave no message.
_NOTHING: Final = _Row(None, None, _NO_TEXT, _NO_META, None)  # type: ignore[arg-type]  # likewise

_TIME: Final = schema.KINDS["time"][1]
#: Times are milliseconds until the end.
_DEAD_LETTER_TYPES: Final = {
    f"dl_{name}": pa.int64() if name == "failed_at" else schema.ARROW.field(f"dl_{name}").type
    for name in _DeadLetter.__struct_fields__
}
#: The canonical envelope around its values.
_FRAME_BYTES: Final = len(
    '{"job":"","trace_id":"","data":,"meta":{"id":"","queue":"","lang":"","schema_version":1,'
    '"created_at":},"attempts":}'
)
_TENS: Final = 10 ** np.arange(1, 19)

_decode: Final = msgspec.json.Decoder(_Row).decode
_decode_payload: Final = msgspec.json.Decoder(_Payload).decode


class Judged(NamedTuple):
    """The columns of schema.FROM_BODY by name, and what the body itself calls its queue."""

    columns: Mapping[str, pa.Array]
    meta_queue: pa.Array


def judge_column(bodies: pa.Array) -> Judged:
    """Judge a binary (or text) column. A null body is judged like an empty one."""
    bodies = _as_binary(bodies)
    found, exact = _decoded(bodies)
    # What the typed call took is right as it stands, or it is not a message at all.
    doubted = _doubted(bodies, found, exact)
    exact |= {row: judge(bodies[row].as_py()) for row in doubted}
    blank = [row for row in doubted if exact[row].message is None]
    if blank:
        found = {name: _blanked(column, blank) for name, column in found.items()}
    for name in ("created_at", "dl_failed_at"):
        found[name] = _times(found[name])
    no_object = np.flatnonzero(_first_bytes(found["data"]) != _OPEN_BRACE)
    found["data"] = _blanked(found["data"], no_object).view(pa.string())
    without = [row for row in no_object.tolist() if exact[row].kind is Kind.ACCEPTED]
    if without:
        # Contract chapter 5: a message whose data is missing or null is presented with an empty object.
        empty = np.zeros(len(bodies), bool)
        empty[without] = True
        found["data"] = pc.if_else(pa.array(empty), EMPTY_DATA, found["data"])
    queue = found.pop("queue")
    return Judged(found | _verdicts(len(bodies), exact), queue)


def judge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` over an archive: needs `body`; takes every delivery column it finds by name."""
    for batch in batches:
        yield judged_batch(batch)


def judged_batch(batch: pa.RecordBatch, broker: str = "archive") -> pa.RecordBatch:
    body = _as_binary(batch.column("body"))
    judged = judge_column(body)
    known = {name: batch.column(name) for name in batch.schema.names if name in _DELIVERY_TYPES}
    given = {name: column.cast(_DELIVERY_TYPES[name]) for name, column in known.items()}
    queue = given.get("queue")
    given["queue"] = judged.meta_queue if queue is None else pc.coalesce(queue, judged.meta_queue)
    given.setdefault("broker", repeated(broker, len(body)))
    given["body"] = body
    return assemble(judged, given, len(body))


def judged_frame(archive: DataFrame) -> DataFrame:
    """A DataFrame with a `body` column (and any of the delivery columns) as judged rows."""
    return archive.select(*raw_columns(archive)).mapInArrow(judge_batches, schema.SPARK)


def raw_columns(archive: DataFrame) -> list[str]:
    if "body" not in archive.columns:
        raise ConfigError(f"there is no column body; there are {', '.join(archive.columns)}", setting="body")
    return [name for name in archive.columns if name in _DELIVERY_TYPES]


def assemble(judged: Judged, delivery: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
    """All columns in the order of the schema; what is not known is null."""
    found = {**judged.columns, **delivery}
    arrays = [found[f.name] if f.name in found else pa.nulls(rows, f.type) for f in schema.ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.ARROW)


def repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def one_or_many(values: list[Any], kind: pa.DataType) -> pa.Array:
    """For columns that nearly always hold the same in every row."""
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


_DELIVERY_TYPES: Final = {column.name: schema.KINDS[column.kind][1] for column in schema.FROM_DELIVERY}


def _as_binary(bodies: pa.Array) -> pa.Array:
    if not pa.types.is_binary(bodies.type):
        bodies = bodies.cast(pa.binary())
    return pc.fill_null(bodies, b"") if bodies.null_count else bodies


def _decoded(bodies: pa.Array) -> tuple[dict[str, pa.Array], dict[int, Verdict]]:
    """What the bodies say, column by column, and the verdicts of those that the typed call refused."""
    exact: dict[int, Verdict] = {}
    parts: list[dict[str, pa.Array]] = []
    decode = _decode
    for start in range(0, max(len(bodies), 1), CHUNK_ROWS):
        rows: list[_Row] = []
        append = rows.append
        for text in bodies.slice(start, CHUNK_ROWS).to_pylist():
            try:
                append(decode(text))
            except _REFUSALS:
                verdict = exact[start + len(rows)] = judge(text)
                append(_poured(verdict, text))
        parts.append(_columns(rows))
    return {name: pa.concat_arrays([part[name] for part in parts]) for name in parts[0]}, exact


def _doubted(bodies: pa.Array, found: Mapping[str, pa.Array], exact: Mapping[int, Verdict]) -> list[int]:
    """Rows the typed call accepted without having seen everything: blank texts, a payload that is not an
    object, and what may hide in the payload, or in a member that a later one of the same name replaced."""
    data = found["data"]
    doubt = _starts_low(found["urn"]) | _starts_low(found["trace_id"]) | (_first_bytes(data) != _OPEN_BRACE)
    doubt[list(suspicious_rows(data, MAX_DEPTH - 1))] = True
    accepted = np.ones(len(bodies), bool)
    accepted[list(exact)] = False
    # A body of exactly the length its values need has room for nothing else.
    longer = np.flatnonzero(accepted & (_lengths(bodies) != _needed_lengths(found)))
    if longer.size:
        doubt[longer[list(suspicious_rows(bodies.take(pa.array(longer)), MAX_DEPTH))]] = True
    return np.flatnonzero(doubt & accepted).tolist()


def _blanked(column: pa.Array, rows: Any) -> pa.Array:
    """The column with nulls in these rows: a new bitmap over the same values."""
    if column.null_count == len(column):
        return column
    valid = column.is_valid().to_numpy(zero_copy_only=False).copy()
    valid[rows] = False
    _, *values = column.buffers()
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [bitmap, *values])


def _needed_lengths(found: Mapping[str, pa.Array]) -> Any:
    """Bytes of the shortest canonical envelope with these values, without a dead letter."""
    texts = sum(_lengths(found[name]) for name in ("urn", "trace_id", "data", "id", "queue", "lang"))
    return _FRAME_BYTES + texts + _digits(found["created_at"]) + _digits(found["attempts"])


def _digits(column: pa.Array) -> Any:
    values = np.asarray(column.fill_null(0))
    return np.searchsorted(_TENS, np.abs(values), side="right") + (values < 0) + 1


def _poured(verdict: Verdict, text: bytes) -> _Row:
    if verdict.message is None:
        return _NOTHING
    message = verdict.message
    data = _payload(text)
    meta, dead = message.meta, message.dead_letter
    return _Row(
        _plain(message.urn),
        _plain(message.trace_id),
        msgspec.Raw(b"" if data == b"null" else data),
        _Meta(_plain(meta.id), _plain(meta.queue), _plain(meta.lang), 1, meta.created_at),
        message.attempts,
        None
        if dead is None
        else _DeadLetter(
            _plain(dead.reason),
            _plain(dead.error),
            _plain(dead.exception),
            dead.failed_at,
            _plain(dead.original_queue),
            dead.attempts,
            _plain(dead.lang),
        ),
    )


def _payload(text: bytes) -> bytes:
    try:
        return bytes(_decode_payload(text).data)
    except _REFUSALS:
        member = scan_object(text).last("data")
        return b"" if member is None else member.value(text)


def _plain(text: Any) -> Any:
    """Arrow and Spark hold no lone surrogates: such text is shown with its escapes, as it was sent."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _columns(rows: list[_Row]) -> dict[str, pa.Array]:
    """What the rows say, column by column, times still in milliseconds. The contract presents what is
    missing as empty text; a table says null."""
    return {
        "urn": pa.array([row.job or None for row in rows], pa.string()),
        "trace_id": pa.array([row.trace_id or None for row in rows], pa.string()),
        "data": _join_raw([row.data for row in rows]),
        **_metas([row.meta for row in rows]),
        "attempts": pa.array([row.attempts for row in rows], pa.int64()),
        **_dead_letters([row.dead_letter for row in rows]),
    }


def _metas(metas: list[_Meta]) -> dict[str, pa.Array]:
    return {
        "id": pa.array([meta.id or None for meta in metas], pa.string()),
        "queue": pa.array([meta.queue or None for meta in metas], pa.string()),
        "lang": pa.array([meta.lang or None for meta in metas], pa.string()),
        "created_at": pa.array([meta.created_at for meta in metas], pa.int64()),
    }


def _verdicts(count: int, exact: Mapping[int, Verdict]) -> dict[str, pa.Array]:
    kinds: list[str] = [Kind.ACCEPTED.value] * count
    reasons: list[str | None] = [None] * count
    pointers: list[str | None] = [None] * count
    warnings: list[list[str] | None] = [None] * count
    for row, verdict in exact.items():
        kinds[row] = verdict.kind.value
        reasons[row] = verdict.reason.value or None
        pointers[row] = verdict.pointer or None
        warnings[row] = [warning.pointer for warning in verdict.warnings] or None
    return {
        "verdict": one_or_many(kinds, pa.string()),
        "reason": one_or_many(reasons, pa.string()),
        "pointer": one_or_many(pointers, pa.string()),
        "warnings": one_or_many(warnings, pa.list_(pa.string())),
    }


def _dead_letters(blocks: list[_DeadLetter | None]) -> dict[str, pa.Array]:
    if not any(blocks):
        return {name: pa.nulls(len(blocks), kind) for name, kind in _DEAD_LETTER_TYPES.items()}
    blank = _DeadLetter()
    filled = [block or blank for block in blocks]
    return {
        name: pa.array([getattr(block, name.removeprefix("dl_")) for block in filled], kind)
        for name, kind in _DEAD_LETTER_TYPES.items()
    }


def _times(column: pa.Array) -> pa.Array:
    """Epoch milliseconds as timestamps. 0 is the contract's "missing"; both that and what no calendar
    shows become null (the body keeps it)."""
    if column.null_count == len(column):
        return pa.nulls(len(column), _TIME)
    millis = np.asarray(column.fill_null(0))
    absent = (millis == 0) | (millis < TIME_MS[0]) | (millis > TIME_MS[1])
    micros = np.where(absent, 0, millis) * 1000
    return pa.array(micros, pa.int64(), mask=absent if absent.any() else None).view(_TIME)


def _join_raw(parts: list[msgspec.Raw]) -> pa.Array:
    """One binary column from raw JSON texts without an object for each: join them, find the seams.
    No JSON text holds a NUL byte, so it can mark the seams."""
    ends = np.flatnonzero(np.frombuffer(b"\0".join([*parts, b""]), np.uint8) == 0)
    offsets = np.zeros(len(parts) + 1, np.int32)
    offsets[1:] = ends - np.arange(len(parts))
    values = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), values)


def _offsets(column: pa.Array) -> Any:
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _lengths(column: pa.Array) -> Any:
    return np.diff(_offsets(column))


def _first_bytes(column: pa.Array) -> Any:
    """First byte of every value; 0 for what is empty or null."""
    offsets = _offsets(column)
    buffer = column.buffers()[2]
    values = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    starts = np.minimum(offsets[:-1], len(values) - 1)
    return np.where(offsets[:-1] < offsets[1:], values[starts], 0)


def _starts_low(column: pa.Array) -> Any:
    return _first_bytes(column) <= _SPACE
