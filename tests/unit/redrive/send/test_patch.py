"""--set changes what it names and not a byte more."""

from __future__ import annotations

import pytest

from shinar.brokers import Delivery
from shinar.errors import ConfigError, ContractError
from shinar.redrive.letters.letter import read
from shinar.redrive.send.patch import Patch
from shinar.settlement import Traits

BODY = (
    b'{"job":"urn:babel:a:b","trace_id":"t","data":{ "amount" : 19, "exact":12345678901234567890.123456789,'
    b'"price":19.99,"big":9007199254740993,"nested":{"a":1},"on":true},"meta":{"id":"old","queue":"q","lang":"php","schema_version":1,'
    b'"created_at":1},"attempts":0}'
)


def patched(*sets: str, function=None) -> tuple[bytes, str]:
    letter = read(Delivery(BODY, "q.dlq"), Traits(name="x"))
    return Patch(sets, function).apply(letter, BODY)


def test_a_value_is_replaced_in_place() -> None:
    body, new_id = patched("data.amount = data.amount * 100")
    assert body == BODY.replace(b" 19,", b" 1900,").replace(b'"old"', b'"' + new_id.encode() + b'"')
    assert new_id != "old"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("data.nested.b.c = 'x'", b'"nested":{"a":1,"b":{"c":"x"}}'),
        ("data.new = data.exact", b'"on":true,"new":12345678901234567890.123456789}'),
        ("data.on = false", b'"on":false}'),
        ("data.on = data.amount > 5", b'"on":true}'),
        ("data.nested = null", b'"nested":null,'),
        ("data.copy = data.nested", b'"copy":{"a":1}}'),
    ],
)
def test_kinds_of_values(assignment: str, expected: bytes) -> None:
    assert expected in patched(assignment)[0]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("data.flag = coalesce(data.flag, false)", b'"flag":false}'),
        ("data.cents = round(data.price * 100)", b'"cents":1999}'),
        ("data.price = data.price + 0.01", b'"price":20.00,'),
        ("data.amount = data.amount / 4", b'"amount" : 4.75,'),
        ("data.text = data.amount || ' pieces'", b'"text":"19 pieces"}'),
        ("data.amount = cast(data.amount as string)", b'"amount" : "19",'),
        ("data.big = data.big + 1", b'"big":9007199254740994,'),
        ("data.at = created_at", b'"at":"1970-01-01 00:00:00.001"}'),
    ],
)
def test_types_are_kept(assignment: str, expected: bytes) -> None:
    assert expected in patched(assignment)[0]


def test_an_assignment_sees_those_before_it() -> None:
    body, _ = patched(
        "data.amount = data.amount * 100", "data.twice = data.amount * 2", "data.copy = data.twice"
    )
    assert b'"amount" : 1900,' in body
    assert body.count(b":3800") == 2


def test_a_value_spark_would_not_compute_is_a_refusal() -> None:
    for text in (
        "data.x = data.amount / 0",
        "data.x = data.text_only + 1",
        "data.x = cast(data.on as timestamp)",
    ):
        with pytest.raises((ContractError, ConfigError)):
            patched("data.text_only = 'abc'", text)


def test_a_function_gets_data() -> None:
    body, _ = patched(function=lambda data: {"amount": data["amount"] + 1})
    assert b'"data":{"amount":20},"meta"' in body


def test_refusals() -> None:
    for text in ("data.a", "urn = 'x'", "data.items[0] = 1"):
        with pytest.raises(ConfigError):
            patched(text)
    with pytest.raises(ContractError):
        patched("data.amount.x = 1")
    with pytest.raises(ContractError):
        patched(function=lambda data: 5)
