"""THE schema: one table of columns, and the Spark and Arrow schemas made from it.

Every row of the source, of a segment and of a validated archive has exactly these columns, in this
order. A column is null when the body (or the broker) does not say; `body` is always the authority.
Must not know a broker or a session.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql import types as spark

Kind = Literal["text", "bytes", "long", "time", "map", "texts"]


class RowColumn(NamedTuple):
    name: str
    kind: Kind
    #: What one value says; shown by `DESCRIBE` and in the docs.
    about: str


#: Kind -> (Spark type, Arrow type). Spark keeps microseconds in UTC; the contract counts milliseconds.
KINDS: Final[dict[Kind, tuple[spark.DataType, pa.DataType]]] = {
    "text": (spark.StringType(), pa.string()),
    "bytes": (spark.BinaryType(), pa.binary()),
    "long": (spark.LongType(), pa.int64()),
    "time": (spark.TimestampType(), pa.timestamp("us", tz="UTC")),
    "map": (
        spark.MapType(spark.StringType(), spark.StringType()),
        pa.map_(pa.string(), pa.string()),
    ),
    "texts": (spark.ArrayType(spark.StringType()), pa.list_(pa.string())),
}

#: Read from the body by the judge.
FROM_BODY: Final = (
    RowColumn("urn", "text", "identity: job, or urn where job gives none"),
    RowColumn("trace_id", "text", "trace the message belongs to"),
    RowColumn("id", "text", "meta.id: unique per message, the key of dedupe"),
    RowColumn("lang", "text", "meta.lang: language of the producer"),
    RowColumn("created_at", "time", "meta.created_at; null when outside the years 1 to 9999"),
    RowColumn("attempts", "long", "earlier deliveries, body and broker reconciled by the rule of the broker"),
    RowColumn(
        "data", "text", "the payload as the exact JSON text that was sent; {} where it is missing or null"
    ),
    RowColumn("verdict", "text", "accepted, unsupported_version, no_identity or poison"),
    RowColumn("reason", "text", "why it is not accepted, or what it lacks (incomplete); null otherwise"),
    RowColumn("pointer", "text", "RFC 6901 pointer of the offending member, where there is one"),
    RowColumn("warnings", "texts", "pointers of members the contract drops with a warning"),
    RowColumn(
        "dl_reason", "text", "dead_letter.reason: failed, unknown_urn or poison; null on live messages"
    ),
    RowColumn("dl_error", "text", "dead_letter.error"),
    RowColumn("dl_exception", "text", "dead_letter.exception"),
    RowColumn("dl_failed_at", "time", "dead_letter.failed_at"),
    RowColumn("dl_original_queue", "text", "dead_letter.original_queue"),
    RowColumn("dl_attempts", "long", "dead_letter.attempts"),
    RowColumn("dl_lang", "text", "dead_letter.lang: language of the consumer that gave up"),
)

#: Known of the delivery; an archive of bare bodies has only `body`.
FROM_DELIVERY: Final = (
    RowColumn("queue", "text", "queue it was read from; meta.queue where the archive does not say"),
    RowColumn("headers", "map", "out-of-band headers; null with includeHeaders=false"),
    RowColumn(
        "properties", "map", "the contract's own properties (bq-*) as the broker delivered them, as text"
    ),
    RowColumn("key", "bytes", "ordering key: record key, message group or session"),
    RowColumn("native_count", "long", "the broker's own delivery count as its client reports it"),
    RowColumn("broker", "text", "name of the broker, or archive"),
    RowColumn("position", "text", "offset, sequence number or message id in the broker's own terms"),
    RowColumn("received_at", "time", "when it was read from the broker"),
    RowColumn("body", "bytes", "the raw bytes, byte for byte"),
    RowColumn("redelivery", "text", "possible: may repeat a row that has the same bytes; null otherwise"),
)

_BY_NAME: Final = {column.name: column for column in (*FROM_BODY, *FROM_DELIVERY)}

# fmt: off
NAMES: Final = (
    "urn", "trace_id", "id", "queue", "lang", "created_at", "attempts", "data", "headers",
    "broker", "position", "received_at", "body", "verdict", "reason", "pointer", "warnings",
    "properties", "key", "native_count", "redelivery",
    "dl_reason", "dl_error", "dl_exception", "dl_failed_at", "dl_original_queue", "dl_attempts", "dl_lang",
)
# fmt: on
COLUMNS: Final = tuple(_BY_NAME[name] for name in NAMES)

#: The verdicts a row can carry, in the order the judge tests for them.
VERDICTS: Final = ("accepted", "unsupported_version", "no_identity", "poison")

ARROW: Final = pa.schema([pa.field(column.name, KINDS[column.kind][1]) for column in COLUMNS])
SPARK: Final = spark.StructType(
    [
        spark.StructField(
            column.name, KINDS[column.kind][0], nullable=True, metadata={"comment": column.about}
        )
        for column in COLUMNS
    ]
)
