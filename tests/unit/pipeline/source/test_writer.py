from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from shinar.brokers import Broker
from shinar.envelope import judge
from shinar.errors import ConfigError, ContractError
from shinar.pipeline.source.options import UrlRef, WriteOptions
from shinar.pipeline.source.writer import Origin, check_columns, publish_rows

HERE = Origin("job", "7", 0)
KINDS = {
    "int": T.IntegerType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "variant": T.VariantType(),
    "array<string>": T.ArrayType(T.StringType()),
    "map<string,int>": T.MapType(T.StringType(), T.IntegerType()),
}


@pytest.fixture
def options() -> WriteOptions:
    url = UrlRef("plain", f"memory://{uuid.uuid4().hex}/out")
    return WriteOptions(url=url, queue="out", job_id="", batch_size=3, lang="")


@pytest.fixture
def broker(options: WriteOptions) -> Iterator[Broker]:
    opened = options.url.connect()
    yield opened
    opened.close()


def batches(**columns: list) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def columns(text: str) -> StructType:
    """As Spark writes a schema: a int, b string."""
    fields = [field.rsplit(" ", 1) for field in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in fields])


def sent(broker: Broker, queue: str = "out") -> list:
    return [judge(delivery.body).message for delivery in broker.browse(queue)]


def test_a_task_that_runs_again_makes_the_same_ids(options, broker):
    rows = {"urn": ["urn:a"] * 4, "data": ['{"n":1}', '{"n":1}', '{"n":2}', "{}"]}
    for _ in range(2):
        assert publish_rows(batches(**rows), options, HERE).messages == 4
    ids = [message.meta.id for message in sent(broker)]
    assert ids[:4] == ids[4:]
    assert len(set(ids)) == 4
    traces = [message.trace_id for message in sent(broker)]
    assert traces[:4] == traces[4:]


@pytest.mark.parametrize("other", [Origin("other", "7", 0), Origin("job", "8", 0), Origin("job", "7", 1)])
def test_another_job_batch_or_task_makes_others(options, broker, other):
    for origin in (HERE, other):
        publish_rows(batches(urn=["urn:a"], data=["{}"]), options, origin)
    first, second = sent(broker)
    assert first.meta.id != second.meta.id


def test_an_id_of_the_row_wins(options, broker):
    publish_rows(batches(urn=["urn:a"], data=["{}"], id=["mine"], trace_id=["t"]), options, HERE)
    (message,) = sent(broker)
    assert (message.meta.id, message.trace_id, message.meta.queue) == ("mine", "t", "out")


def test_a_payload_that_looks_like_the_place_it_goes_to(options, broker):
    rows = {"urn": ['urn:"data":{}'], "data": ['{"data":{}, "x" : 1.50}']}
    publish_rows(batches(**rows), options, HERE)
    (delivery,) = broker.browse("out")
    assert b'"data":{"data":{}, "x" : 1.50}' in delivery.body
    assert judge(delivery.body).message.urn == 'urn:"data":{}'


@pytest.mark.parametrize("data", ["[1]", "{", "", "1", '{"a":1e400}', '{},"meta":{}', "null"])
def test_what_is_no_object_is_not_published(options, broker, data):
    with pytest.raises(ContractError):
        publish_rows(batches(urn=["urn:a"], data=[data]), options, HERE)
    assert list(broker.browse("out")) == []


def test_rows_go_to_their_own_queues_with_headers_and_keys(broker, options):
    anywhere = WriteOptions(url=options.url, queue="", job_id="", batch_size=10, lang="")
    headers = pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string()))
    columns = {
        "body": pa.array([b"{}", b"x"]),
        "queue": ["p", "q"],
        "headers": headers,
        "key": pa.array([b"k", None]),
    }
    publish_rows(iter([pa.record_batch(columns)]), anywhere, HERE)
    (first,), (second,) = broker.browse("p"), broker.browse("q")
    assert (first.body, dict(first.headers), first.key) == (b"{}", {"a": "b"}, b"k")
    assert (second.body, dict(second.headers), second.key) == (b"x", {}, None)
    with pytest.raises(ConfigError, match="does not name a queue"):
        publish_rows(batches(body=[b"{}"], queue=[None]), anywhere, HERE)


def test_a_row_without_a_body_is_an_error(options):
    with pytest.raises(ContractError, match="no body"):
        publish_rows(batches(body=pa.array([None], pa.binary())), options, HERE)


def test_columns_nobody_uses_are_refused(options):
    check_columns(columns("body binary, verdict string, dl_reason string"), options)
    check_columns(columns("urn string, data string, delay_s double"), options)
    with pytest.raises(ConfigError, match="did you mean trace_id"):
        check_columns(columns("urn string, data string, traceid string"), options)
    nowhere = WriteOptions(url=options.url, queue="", job_id="", batch_size=1, lang="")
    with pytest.raises(ConfigError, match="is missing"):
        check_columns(columns("body binary"), nowhere)


@pytest.mark.parametrize(
    "text",
    [
        "body int",
        "body binary, key int",
        "body binary, headers map<string,int>",
        "body binary, delay_s string",
        "urn string, data int",
        "urn string, data array<string>",
        "urn string, data variant",
        "urn int, data string",
    ],
)
def test_columns_of_a_type_that_cannot_be_sent_are_refused_before_a_row_is(text, options):
    with pytest.raises(ConfigError, match="cannot be sent; write"):
        check_columns(columns(text), options)


def test_structs_and_maps_become_objects_at_any_depth(options, broker):
    inner = pa.map_(pa.string(), pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.decimal128(5, 2)))])))
    shape = pa.struct([("a", inner), ("n", pa.int64()), ("gone", pa.string())])
    value = {"a": [("k", [{"m": [("x", Decimal("1.50"))]}])], "n": 2**60, "gone": None}
    rows = {"urn": pa.array(["urn:a"]), "data": pa.array([value], shape)}
    publish_rows(iter([pa.record_batch(rows)]), options, HERE)
    (message,) = sent(broker)
    assert message.data == {"a": {"k": [{"m": {"x": "1.50"}}]}, "n": 2**60, "gone": None}


def test_headers_without_a_value_are_left_out_and_data_must_be_there(options, broker):
    headers = pa.array([[("a", None), ("b", "c")]], pa.map_(pa.string(), pa.string()))
    publish_rows(iter([pa.record_batch({"body": pa.array([b"{}"]), "headers": headers})]), options, HERE)
    (delivery,) = broker.browse("out")
    assert dict(delivery.headers) == {"b": "c"}
    with pytest.raises(ContractError, match="no data"):
        publish_rows(batches(urn=["urn:a"], data=pa.array([None], pa.string())), options, HERE)
