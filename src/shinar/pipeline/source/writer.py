"""Rows to a broker: bodies as they are, or envelopes built from (urn, data, …); confirmed, in batches.

A queue has no transaction across tasks, so a task that runs twice publishes twice; but both times with the
same `meta.id`, made from the job, the batch and the row, so that whoever consumes them finds out.
"""

from __future__ import annotations

import difflib
import hashlib
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from shinar.brokers.contract import NOTHING, Outgoing
from shinar.clock import SYSTEM, Clock
from shinar.envelope import SCHEMA_VERSION, SOURCE_LANG, Message, Meta, encode, judge, parse_strict
from shinar.errors import ConfigError, ContractError
from shinar.pipeline.rows import schema
from shinar.pipeline.source.lifetime import end_with_parent
from shinar.pipeline.source.options import WriteOptions

#: Columns a message is built from; the first two must be there.
BUILD_COLUMNS: Final = ("urn", "data", "trace_id", "id", "queue", "headers", "key", "delay_s")
#: Beside `body`, these are used; the other columns of our own schema may ride along unused.
PASS_COLUMNS: Final = ("body", "queue", "headers", "key", "delay_s")
#: What each of them may be, by the beginning of Spark's own words for types, and how to get there.
_TEXT: Final = (("string", "varchar", "char"), "cast(... as string)")
COLUMN_TYPES: Final = {
    **dict.fromkeys(("urn", "trace_id", "id", "queue"), _TEXT),
    "body": (("binary", *_TEXT[0]), "cast(... as binary)"),
    "key": (("binary", *_TEXT[0]), "cast(... as string)"),
    "data": ((*_TEXT[0], "struct<", "map<string,"), "to_json(...)"),
    "headers": (("map<string,string>", "void"), "transform_values(headers, (k, v) -> cast(v as string))"),
    "delay_s": (("double", "float", "int", "bigint", "smallint", "decimal", "void"), "cast(... as double)"),
}
#: Where Spark tells a task which query and micro-batch it works for.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class PublishedRows(WriterCommitMessage):
    """What one task published, every message confirmed."""

    messages: int


@dataclass(frozen=True, slots=True)
class Origin:
    """What makes the ids of one task's rows: the same when it runs again, different from all others."""

    job: str
    batch: str
    partition: int


class ShinarWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, columns: StructType) -> None:
        check_columns(columns, options)
        self._options = options
        # Without a jobId only the attempts of this one job share their ids.
        self._job = options.job_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return publish_rows(iterator, self._options, Origin(self._job, "", partition))


class ShinarStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, columns: StructType) -> None:
        check_columns(columns, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "a streaming task always has one"
        job = self._options.job_id or context.getLocalProperty(_QUERY_ID) or ""
        batch = context.getLocalProperty(_BATCH_ID) or ""
        return publish_rows(iterator, self._options, Origin(job, batch, context.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was confirmed row by row."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What a failed task had published is out; its second run says so by the same ids."""


def check_columns(columns: StructType, options: WriteOptions) -> None:
    names = columns.names
    passing = "body" in names
    known = (*PASS_COLUMNS, *schema.NAMES) if passing else BUILD_COLUMNS
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"the sink does not use this column; {hint} Or drop it", setting=name)
    for field in columns if not passing else [field for field in columns if field.name in PASS_COLUMNS]:
        kinds, advice = COLUMN_TYPES[field.name]
        kind = field.dataType.simpleString()
        if not kind.startswith(kinds):
            raise ConfigError(f"a column {kind} cannot be sent; write {advice}", setting=field.name)
    if not passing and not {"urn", "data"} <= set(names):
        raise ConfigError("the sink needs a column body, or urn and data", setting="columns")
    if not options.queue and "queue" not in names:
        raise ConfigError(
            "is missing; name it as an option, or give every row a column queue", setting="queue"
        )


def publish_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, origin: Origin, clock: Clock = SYSTEM
) -> PublishedRows:
    end_with_parent()
    broker = options.url.connect()
    seen: Counter[bytes] = Counter()
    written = 0
    try:
        for batch in batches:
            by_queue: dict[str, list[Outgoing]] = {}
            shape = batch.schema.field("data").type if "data" in batch.schema.names else pa.null()
            for row in batch.to_pylist():
                if pa.types.is_nested(shape):
                    row["data"] = _plain(row["data"], shape)
                queue = options.queue or row.get("queue") or ""
                if not queue:
                    raise ConfigError(
                        "a row does not name a queue; set the option queue, or fill the column",
                        setting="queue",
                    )
                by_queue.setdefault(queue, []).append(_outgoing(row, queue, options, origin, seen, clock))
            for queue, messages in by_queue.items():
                for start in range(0, len(messages), options.batch_size):
                    broker.publish(queue, messages[start : start + options.batch_size])
            written += batch.num_rows
    finally:
        broker.close()
    return PublishedRows(written)


def _outgoing(
    row: dict[str, Any], queue: str, options: WriteOptions, origin: Origin, seen: Counter[bytes], clock: Clock
) -> Outgoing:
    if "body" in row:
        body = row["body"]
        if body is None:
            raise ContractError("a row has no body; filter such rows out", pointer="/body")
        body = body.encode() if isinstance(body, str) else body
    else:
        body = _built(row, queue, options, _row_digest(row, origin, seen), clock)
    headers = row.get("headers")
    return Outgoing(
        body=body,
        headers={name: text for name, text in headers if text is not None} if headers else NOTHING,
        key=_as_bytes(row.get("key")),
        delay_s=float(row.get("delay_s") or 0.0),
    )


def _row_digest(row: dict[str, Any], origin: Origin, seen: Counter[bytes]) -> bytes:
    content = msgspec.json.encode(
        [row.get(name) for name in ("urn", "data", "trace_id", "queue")], order="sorted"
    )
    # Equal rows of one task are different messages: number them.
    seen[content] += 1
    place = f"{origin.job}\n{origin.batch}\n{origin.partition}\n{seen[content]}\n".encode()
    return hashlib.sha256(place + content).digest()


def _built(row: dict[str, Any], queue: str, options: WriteOptions, digest: bytes, clock: Clock) -> bytes:
    own_id = row.get("id") or str(uuid.UUID(bytes=digest[:16], version=5))
    trace_id = row.get("trace_id") or str(uuid.UUID(bytes=digest[16:], version=5))
    data = row["data"]
    if data is None:
        raise ContractError("a row has no data; filter such rows out, or send '{}'", pointer="/data")
    exact = isinstance(data, str)
    meta = Meta(own_id, queue, options.lang or SOURCE_LANG, SCHEMA_VERSION, clock.epoch_ms())
    body = encode(Message(row["urn"] or "", trace_id, {} if exact else data, meta, 0))
    if exact:
        text = data.encode()
        if not isinstance(parse_strict(text), dict):
            raise ContractError(
                "a row gives no valid message: data must be the JSON text of one object", pointer="/data"
            )
        # The payload's text goes in as it is. No string of the envelope can hold these bytes unescaped.
        body = body.replace(b'"data":{}', b'"data":' + text, 1)
    verdict = judge(body)
    if not verdict.accepts:
        raise ContractError(
            f"a row gives no valid message ({verdict.reason})", pointer=verdict.pointer or None
        )
    return body


def _plain(value: Any, shape: pa.DataType) -> Any:
    """A struct or map as a JSON object; what JSON lacks (decimals, times, bytes) becomes text."""
    if value is None:
        return None
    if pa.types.is_map(shape):
        return {str(key): _plain(item, shape.item_type) for key, item in value}
    if pa.types.is_struct(shape):
        return {field.name: _plain(value[field.name], field.type) for field in shape}
    if pa.types.is_list(shape) or pa.types.is_large_list(shape):
        return [_plain(item, shape.value_type) for item in value]
    return msgspec.to_builtins(value)


def _as_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
