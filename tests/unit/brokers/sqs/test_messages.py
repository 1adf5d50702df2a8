from __future__ import annotations

import json

import pytest

from shinar.brokers.contract import Delivery, Outgoing
from shinar.brokers.sqs import messages as wire
from shinar.brokers.sqs.client import has_lapsed, meaning
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ContractError,
    QueueMissing,
    Unsupported,
)

ENVELOPE = {
    "job": "urn:babel:orders:created",
    "trace_id": "t-1",
    "data": {"n": 1},
    "meta": {"id": "m-1", "queue": "orders", "lang": "php", "schema_version": 1, "created_at": 1749132727000},
    "attempts": 0,
}
BODY = json.dumps(ENVELOPE).encode()
STANDARD = wire.Writing("orders")
FIFO = wire.Writing("orders.fifo")


def origin(**fields):
    return Delivery(**{"body": BODY, "queue": "orders.fifo", "receipt": "r", "position": "sqs-1", **fields})


def test_the_contracts_six_attributes_and_their_types():
    made, size = wire.entry(STANDARD, Outgoing(BODY))
    assert made == {
        "MessageBody": BODY.decode(),
        "MessageAttributes": {
            "bq-job": {"DataType": "String", "StringValue": "urn:babel:orders:created"},
            "bq-trace-id": {"DataType": "String", "StringValue": "t-1"},
            "bq-message-id": {"DataType": "String", "StringValue": "m-1"},
            "bq-schema-version": {"DataType": "Number", "StringValue": "1"},
            "bq-source-lang": {"DataType": "String", "StringValue": "php"},
            "bq-created-at": {"DataType": "Number", "StringValue": "1749132727000"},
        },
    }
    names_types_values = sum(
        len(n) + len(a["DataType"]) + len(a["StringValue"]) for n, a in made["MessageAttributes"].items()
    )
    assert size == len(BODY) + names_types_values


def test_ten_attributes_fit_and_the_eleventh_is_refused_before_anything_is_sent():
    four = {f"h{n}": "v" for n in range(4)}
    made, _ = wire.entry(STANDARD, Outgoing(BODY, four))
    assert len(made["MessageAttributes"]) == 10
    with pytest.raises(ContractError, match="11 message attributes"):
        wire.entry(STANDARD, Outgoing(BODY, {**four, "h4": "v"}))


def test_a_copy_with_too_many_attributes_gives_up_redundant_ones_but_never_a_header():
    ten = {f"h{n}": "v" for n in range(9)}
    made, _ = wire.entry(STANDARD, Outgoing(BODY, ten), origin())
    assert set(made["MessageAttributes"]) == {*ten, "bq-schema-version"}


@pytest.mark.parametrize("name", ["has space", "AWS.x", "amazon.y", ".dot", "dot.", "a..b", "ü"])
def test_a_header_name_sqs_refuses(name):
    with pytest.raises(ContractError, match="header"):
        wire.entry(STANDARD, Outgoing(BODY, {name: "v"}))


def test_a_contract_value_sqs_refuses_is_left_out_so_that_a_dead_letter_can_be_written():
    body = json.dumps({**ENVELOPE, "trace_id": "a\0b"}).encode()
    made, _ = wire.entry(STANDARD, Outgoing(body, {"bq-replay-bypass": "1"}), origin())
    assert "bq-trace-id" not in made["MessageAttributes"]
    assert made["MessageAttributes"]["bq-replay-bypass"]["StringValue"] == "1"
    assert made["MessageBody"].encode() == body


@pytest.mark.parametrize("body", [b"\xff\xfe", b"", b"a\x00b", "￾".encode(), b"\x1b"])
def test_a_body_sqs_would_refuse_or_change(body):
    with pytest.raises(ContractError, match="SQS"):
        wire.entry(STANDARD, Outgoing(body))


@pytest.mark.parametrize(
    "body", [b"[1,2]", b'{"meta":7}', b"not json", b'{"meta":{"id":5,"created_at":"x"}}']
)
def test_odd_bodies_project_what_is_well_typed(body):
    made, _ = wire.entry(STANDARD, Outgoing(body), origin())
    assert made["MessageAttributes"] == {}


def test_delays():
    assert wire.entry(STANDARD, Outgoing(BODY, delay_s=12.5))[0]["DelaySeconds"] == 13
    assert "DelaySeconds" not in wire.entry(STANDARD, Outgoing(BODY))[0]
    with pytest.raises(Unsupported):
        wire.entry(STANDARD, Outgoing(BODY, delay_s=901))
    with pytest.raises(Unsupported):
        wire.entry(FIFO, Outgoing(BODY, delay_s=1))


def test_the_size_limit_counts_attributes():
    writing = wire.Writing("orders", max_body_bytes=len(BODY))
    with pytest.raises(BodyTooLarge) as caught:
        wire.entry(writing, Outgoing(BODY))
    assert caught.value.size_bytes > len(BODY)


def test_fifo_groups():
    assert wire.entry(FIFO, Outgoing(BODY))[0]["MessageGroupId"] == "orders.fifo"
    assert wire.entry(wire.Writing("orders.fifo", "g"), Outgoing(BODY))[0]["MessageGroupId"] == "g"
    assert wire.entry(FIFO, Outgoing(BODY, key=b"customer-7"))[0]["MessageGroupId"] == "customer-7"
    first, second, other = (
        wire.entry(FIFO, Outgoing(BODY, key=key))[0]["MessageGroupId"] for key in (b"a b", b"a b", b"a c")
    )
    assert first == second != other
    assert "MessageGroupId" not in wire.entry(STANDARD, Outgoing(BODY, key=b"k"))[0]


def dedup(writing, message, source=None):
    return wire.entry(writing, message, source)[0].get("MessageDeduplicationId")


def test_a_first_send_is_deduplicated_by_its_message_id():
    assert dedup(FIFO, Outgoing(BODY)) == "m-1"
    assert dedup(wire.Writing("orders.fifo", content_dedup=True), Outgoing(BODY)) is None


def test_a_body_without_an_id_is_deduplicated_by_content():
    first, same, other = (dedup(FIFO, Outgoing(body)) for body in (b'{"raw":1}', b'{"raw":1}', b'{"raw":2}'))
    assert first == same != other
    assert len(first) == 64


def test_a_copy_is_swallowed_only_if_it_is_the_very_same_move():
    first = dedup(FIFO, Outgoing(BODY), origin())
    assert first != "m-1"
    assert first == dedup(FIFO, Outgoing(BODY), origin())
    assert first != dedup(FIFO, Outgoing(BODY), origin(position="sqs-2"))
    assert first != dedup(FIFO, Outgoing(BODY + b" "), origin())
    assert first != dedup(FIFO, Outgoing(BODY), origin(queue="orders-dlq.fifo"))
    content = wire.Writing("orders.fifo", content_dedup=True)
    assert dedup(content, Outgoing(BODY), origin()) == first


def test_batches_hold_ten_messages_and_256_kib():
    assert [len(chunk) for chunk in wire.batches([1] * 25)] == [10, 10, 5]
    assert list(wire.batches([200_000, 62_144, 1, 300_000, 5])) == [[0, 1], [2], [3], [4]]
    assert list(wire.batches([])) == []


RAW = {
    "MessageId": "sqs-1",
    "ReceiptHandle": "r-1",
    "Body": BODY.decode(),
    "Attributes": {"ApproximateReceiveCount": "3", "MessageGroupId": "customer-7"},
    "MessageAttributes": {
        "bq-job": {"DataType": "String", "StringValue": "urn:babel:orders:created"},
        "bq-schema-version": {"DataType": "Number", "StringValue": "1"},
        "traceparent": {"DataType": "String", "StringValue": "00-x"},
        "blob": {"DataType": "Binary", "BinaryValue": b"bytes"},
    },
}


def test_a_delivery():
    made = wire.delivery("orders.fifo", "orders.fifo", RAW, 1_000, 60_000)
    assert made == Delivery(
        body=BODY,
        queue="orders.fifo",
        receipt="r-1",
        headers={"traceparent": "00-x", "blob": "bytes"},
        properties={"bq-job": "urn:babel:orders:created", "bq-schema-version": "1"},
        key=b"customer-7",
        native_count=3,
        received_ms=1_000,
        lease_until_ms=61_000,
        position="sqs-1",
    )


@pytest.mark.parametrize("count", ["", "x", "-1", "٣", "1.0", "1_0"])
def test_an_odd_receive_count_is_unknown_not_fatal(count):
    raw = {**RAW, "Attributes": {"ApproximateReceiveCount": count}}
    assert wire.delivery("q", "q", raw, 0, 0).native_count is None
    assert wire.delivery("q", "q", {**RAW, "Attributes": {}}, 0, 0).native_count is None


def test_the_default_group_is_no_key():
    assert wire.delivery("orders.fifo", "customer-7", RAW, 0, 0).key is None


@pytest.mark.parametrize(
    ("code", "text", "status", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", "", 400, QueueMissing),
        ("QueueDoesNotExist", "", 400, QueueMissing),
        ("InvalidClientTokenId", "the token in full", 403, AccessDenied),
        ("SignatureDoesNotMatch", "", 403, AccessDenied),
        ("Whatever", "", 403, AccessDenied),
        ("OverLimit", "", 403, BrokerFull),
        ("RequestThrottled", "", 400, BrokerUnavailable),
        ("Odd", "", 503, BrokerUnavailable),
        ("AWS.SimpleQueueService.BatchRequestTooLong", "", 400, BodyTooLarge),
        ("InvalidParameterValue", "Message must be shorter than 262144 bytes.", 400, BodyTooLarge),
        ("InvalidAttributeValue", "MessageTooLong", 400, BodyTooLarge),
        ("InvalidParameterValue", "no", 400, BrokerError),
    ],
)
def test_what_error_codes_mean(code, text, status, kind):
    error = meaning(code, text, "orders", status)
    assert type(error) is kind
    assert error.queue == "orders"


def test_refused_credentials_are_not_quoted():
    assert "in full" not in str(meaning("InvalidClientTokenId", "the token in full", "q", 403))


def test_which_failures_are_a_lapsed_lease():
    assert has_lapsed({"Code": "ReceiptHandleIsInvalid"})
    assert has_lapsed({"Code": "AWS.SimpleQueueService.MessageNotInflight"})
    assert has_lapsed({"Code": "InvalidParameterValue", "Message": "Reason: The receipt handle has expired."})
    assert not has_lapsed({"Code": "InvalidParameterValue", "Message": "VisibilityTimeout"})
    assert not has_lapsed({"Code": "InternalError"})


def test_a_published_copy_is_a_message_of_its_own_and_its_repetition_is_not():
    def dedup(writing=FIFO, **fields):
        return wire.entry(writing, Outgoing(BODY, **fields))[0].get("MessageDeduplicationId")

    assert dedup() == "m-1"
    once = dedup(origin="orders-dlq\x007")
    assert once == dedup(origin="orders-dlq\x007")
    assert len({"m-1", once, dedup(origin="orders-dlq\x008")}) == 3
    content = wire.Writing("orders.fifo", content_dedup=True)
    assert (dedup(content), dedup(content, origin="orders-dlq\x007")) == (None, once)
    assert "MessageDeduplicationId" not in wire.entry(STANDARD, Outgoing(BODY, origin="x"))[0]


def test_a_creation_time_at_the_end_of_the_numbers_is_written():
    body = BODY.replace(b"1749132727000", str(2**63 - 1).encode())
    attributes = wire.entry(STANDARD, Outgoing(body))[0]["MessageAttributes"]
    assert attributes["bq-created-at"] == {"DataType": "Number", "StringValue": str(2**63 - 1)}
