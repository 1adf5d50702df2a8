"""New messages: from parts, from typed objects, following others; and every refusal has its pointer."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import msgspec
import pydantic
import pytest

from shinar.clock import PinnedClock
from shinar.envelope import build, build_from, check_strict, encode, follow_up, fresh_id, judge
from shinar.envelope.model import MAX_DEPTH
from shinar.errors import ContractError

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_bytes_of_a_new_message() -> None:
    message = build(
        "urn:babel:orders:created", {"b": 1, "a": "größe/✓"}, queue="orders", clock=PinnedClock(1.5)
    )
    expected = (
        '{"job":"urn:babel:orders:created","trace_id":"%s","data":{"b":1,"a":"größe/✓"},'
        '"meta":{"id":"%s","queue":"orders","lang":"python","schema_version":1,"created_at":1500},"attempts":0}'
    )
    assert encode(message).decode() == expected % (message.trace_id, message.id)
    assert UUID4.fullmatch(message.trace_id)
    assert UUID4.fullmatch(message.id)
    assert judge(encode(message)).accepts


def test_trims_the_six_characters_and_no_others() -> None:
    message = build(" \t\n\v\f\r\u00a0urn:x\u3000 ", {}, trace_id=" t-1\t")
    assert (message.urn, message.trace_id) == ("\u00a0urn:x\u3000", "t-1")
    assert build("\u2003", {}).urn == "\u2003"
    assert UUID4.fullmatch(build("urn:x", {}, trace_id=" \t").trace_id)


def test_empty_data_is_an_object() -> None:
    assert b'"data":{},' in encode(build("urn:x", {}))


def test_the_callers_data_is_not_ours_to_keep() -> None:
    data, meta = {"a": 1}, {"ext": {"acme": {}}}
    message = build("urn:x", data, meta=meta)
    data["a"] = 2
    meta["other"] = {}
    assert b'"a":1' in encode(message)
    assert b"other" not in encode(message)


def test_vendor_meta_follows_the_core() -> None:
    body = encode(
        build("urn:x", {}, meta={"ext": {"acme": {"tier": "gold", "none": {}, "list": []}}, "b": True})
    )
    meta = json.loads(body)["meta"]
    assert list(meta) == ["id", "queue", "lang", "schema_version", "created_at", "ext", "b"]
    assert meta["ext"]["acme"] == {"tier": "gold", "none": {}, "list": []}
    assert meta["b"] is True


@pytest.mark.parametrize(
    "name", ["id", "queue", "lang", "schema_version", "created_at", "ts", "source", "attempts"]
)
def test_a_meta_entry_may_not_take_a_name_of_the_contract(name: str) -> None:
    with pytest.raises(ContractError) as refused:
        build("urn:x", {}, meta={name: 1})
    assert refused.value.pointer == f"/meta/{name}"


def test_a_meta_key_given_twice_is_refused() -> None:
    with pytest.raises(ContractError, match="/meta/a: is given twice"):
        build("urn:x", {}, meta=[("a", 1), ("a", 1)])


@pytest.mark.parametrize("name", ["timestamp", "urn", "job"])
def test_carried_over_keys_are_checked_when_written(name: str) -> None:
    message = msgspec.structs.replace(build("urn:x", {}), extra={name: 1})
    with pytest.raises(ContractError) as refused:
        encode(message)
    assert refused.value.pointer == f"/{name}"


def test_unknown_keys_are_written_again() -> None:
    message = judge(b'{"job":"u","x":{},"meta":{"y":[]}}').message
    assert message is not None
    document = json.loads(encode(message))
    assert (document["x"], document["meta"]["y"]) == ({}, [])


REFUSED = [
    ({"a": float("nan")}, "/data/a", "nan is not JSON"),
    ({"a": [1, float("-inf")]}, "/data/a/1", "-inf is not JSON"),
    ({"a": b"x"}, "/data/a", "base64"),
    ({"a": [{"b": bytearray(b"x")}]}, "/data/a/0/b", "base64"),
    ({"a": 2**63}, "/data/a", "outside int64"),
    ({"a/b": {"~": b""}}, "/data/a~1b/~0", "base64"),
    ({"a": {1: 2}}, "/data/a", "the name 1 is not a string"),
    ({"a": datetime.datetime(2026, 1, 1)}, "/data/a", "RFC 3339"),
    ({"a": decimal.Decimal("NaN")}, "/data/a", "not JSON"),
    ({"a": uuid.UUID(int=1)}, "/data/a", "str"),
    ({"a": object()}, "/data/a", "convert"),
]


@pytest.mark.parametrize(("data", "pointer", "text"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_not_json_is_refused_by_name_with_advice(data: dict, pointer: str, text: str) -> None:
    with pytest.raises(ContractError, match=re.escape(text)) as refused:
        encode(build("urn:x", data))
    assert refused.value.pointer == pointer


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ContractError, match="surrogate"):
        encode(build("urn:x", {"a": "\ud800"}))


def test_too_deep_is_refused_and_just_deep_is_not() -> None:
    def nest(levels: int) -> dict:
        value: dict = {}
        for _ in range(levels):
            value = {"a": value}
        return value

    assert judge(encode(build("urn:x", nest(100)))).accepts
    # The body's own level, that of `data`, and what is in it: exactly as deep as a consumer accepts.
    assert judge(encode(build("urn:x", nest(MAX_DEPTH - 2)))).accepts
    for levels in (MAX_DEPTH - 1, 5000):
        with pytest.raises(ContractError, match="deeper"):
            encode(build("urn:x", nest(levels)))


def test_what_loses_nothing_on_the_way_to_json_is_taken() -> None:
    data = {"a": (1, (2,)), "b": {3}, "c": OrderedDict(x=decimal.Decimal("1.50"))}
    for nested in (data, {"d": [[[[[[[data]]]]]]]}):  # the quick check, and the slow one
        assert b'"a":[1,[2]],"b":[3],"c":{"x":"1.50"}' in encode(build("urn:x", nested))


def test_a_subclass_json_does_not_know_is_refused() -> None:
    class Colour(str):
        pass

    with pytest.raises(ContractError, match="Colour"):
        encode(build("urn:x", {"a": Colour("red")}))


@pytest.mark.parametrize("urn", ["", " \t", None, 5])
def test_an_empty_urn_is_refused(urn: object) -> None:
    with pytest.raises(ContractError, match="/job"):
        build(urn, {})  # type: ignore[arg-type]  # refused at run time


@pytest.mark.parametrize("data", [None, [], "x", 5])
def test_a_payload_that_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ContractError, match="/data"):
        build("urn:x", data)  # type: ignore[arg-type]  # refused at run time


@dataclass
class OrderCreated:
    urn: ClassVar[str] = "urn:babel:orders:created"
    order_id: int
    trace_id: str | None = None


class UserRegistered(msgspec.Struct):
    user_id: int
    urn: str = "urn:babel:users:registered"


class InvoicePaid(pydantic.BaseModel):
    urn: ClassVar[str] = "urn:babel:invoices:paid"
    paid_at: datetime.datetime
    amount_cents: int


class Own:
    urn = "urn:babel:own:thing"
    trace_id = "t-9"

    def payload(self) -> dict:
        return {"urn": "kept", "x": 1}


def test_typed_messages() -> None:
    order = build_from(OrderCreated(7, trace_id="t-7"))
    assert (order.urn, order.data, order.trace_id) == ("urn:babel:orders:created", {"order_id": 7}, "t-7")
    assert build_from(UserRegistered(42)).data == {"user_id": 42}
    paid = build_from(InvoicePaid(paid_at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), amount_cents=5))
    assert paid.data == {"paid_at": "2026-01-01T00:00:00Z", "amount_cents": 5}
    own = build_from(Own())
    assert (own.urn, own.data, own.trace_id) == ("urn:babel:own:thing", {"urn": "kept", "x": 1}, "t-9")
    assert build_from(own) is own


@pytest.mark.parametrize("thing", [object(), 5, type("NoPayload", (), {"urn": "urn:x"})()])
def test_an_object_without_urn_or_payload_is_refused(thing: object) -> None:
    with pytest.raises(ContractError, match="has no"):
        build_from(thing)


def test_a_follow_up_keeps_the_trace_and_gets_an_id() -> None:
    first = build("urn:a", {}, queue="one")
    second = follow_up(first, "urn:b", {}, queue="two")
    assert second.trace_id == first.trace_id
    assert second.id != first.id
    assert second.meta.queue == "two"


def test_ids_are_unique_across_a_fork() -> None:
    fresh_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join(fresh_id() for _ in range(50)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 36 * 50).decode()
    ours = {fresh_id() for _ in range(50)}
    assert len(ours) == 50
    assert not ours & {theirs[i : i + 36] for i in range(0, len(theirs), 36)}
    os.close(read)
    os.close(write)


def test_strict_wants_times_every_language_reads() -> None:
    assert check_strict({"at": "2026-01-31T12:00:00Z", "ms": 1_700_000_000_000}) == []
    for text in ("2026-01-31 12:00:00", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z"):
        with pytest.raises(ContractError, match="RFC 3339") as refused:
            check_strict({"order": {"at": text}})
        assert refused.value.pointer == "/data/order/at"


def test_strict_warns_of_integers_javascript_rounds() -> None:
    (warning,) = check_strict({"a": 2**53 - 1, "b": [2**53]})
    assert warning.pointer == "/data/b/0"


def test_strict_names_the_lone_surrogate() -> None:
    with pytest.raises(ContractError) as refused:
        check_strict({"a": ["\ud800"]})
    assert refused.value.pointer == "/data/a/0"
