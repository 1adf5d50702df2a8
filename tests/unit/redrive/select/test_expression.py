"""What --where means: the answers Spark SQL would give, and a refusal by name for everything else.

tests/properties/test_where_spark.py asks Spark itself; these are the cases people write.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from shinar.brokers import Delivery
from shinar.errors import ConfigError, ExpressionError
from shinar.redrive.letters.letter import read
from shinar.redrive.select.expression import Expression, parse_path
from shinar.redrive.select.payload import decode
from shinar.redrive.select.selection import Chosen
from shinar.settlement import Traits


def epoch_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


DATA = (
    '{"amount":19,"price":19.99,"half":2.50,"ratio":1e2,"paid":true,"text":"5","name":"Äpfel","big":9007199254740993,'
    '"huge":12345678901234567890,"lines":[{"sku":"a"}],"nothing":null,"from":{"a-b":1}}'
)
ROW: dict[str, Any] = {
    "urn": "urn:babel:orders:created",
    "exception": "App\\Jobs\\GatewayTimeout",
    "error": "gateway said 504",
    "reason": "failed",
    "lang": "php",
    "queue": "orders.dlq",
    "original_queue": "orders",
    "created_at": epoch_ms("2026-11-15 02:00:00"),
    "failed_at": epoch_ms("2026-11-15 02:10:00"),
    "attempts": 3,
    "id": "i-1",
    "trace_id": None,
    "data": decode(f'{{"data":{DATA}}}'.encode()),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("urn = 'urn:babel:orders:created'", True),
        ("exception like '%GatewayTimeout'", True),
        ("exception like '%gatewaytimeout'", False),
        ("exception = 'App\\\\Jobs\\\\GatewayTimeout'", True),
        ("exception not like 'App%'", False),
        ("not (exception not like 'App%')", True),
        ("lang in ('go', 'php') and attempts >= 3", True),
        ("lang not in ('go')", True),
        ("lang not in ('go', null)", False),
        ("not (lang = 'php')", False),
        ("trace_id is null", True),
        ("trace_id = 'x'", False),
        ("not (trace_id = 'x')", False),  # unknown is not true
        ("trace_id <=> null", True),
        ("lang is not distinct from 'php'", True),
        ("failed_at between '2026-11-15 02:00:00' and '2026-11-15T02:10:00Z'", True),
        ("failed_at > timestamp '2026-11-15 03:10:00+01:00'", False),
        ("failed_at >= date '2026-11-15'", True),
        ("data.amount * 2 = 38", True),
        ("data.amount / 2 = 9.5", True),
        ("data.amount > 5 and data.text < 6", True),
        ("data.amount >= '100'", False),
        ("data.price % 1 = 0", False),
        ("data.paid = 'true'", True),
        ("data.amount * 0.1 = 1.9", True),
        ("data.price * 100 = 1999", True),
        ("data.big = 9007199254740993 and data.big <> 9007199254740992", True),
        ("data.huge = 12345678901234567890", True),
        ("data.ratio = 100", True),
        ("data.paid", True),
        ("data.paid = true", True),
        ("data.lines[0].sku = 'a'", True),
        ("data.lines[7].sku is null", True),
        ("data['from'].`a-b` = 1 and data.from.`a-b` = 1", True),
        ("data.nothing is null and data.missing is null and data.amount.deeper is null", True),
        ("data.missing > 5", False),
        ("lower(data.name) = 'äpfel'", True),
        ("lower(data.paid) = 'true'", True),
        ("length(error) = 16", True),
        ("substr(lang, 1, 2) = 'ph' and substr(lang, 0, 2) = 'ph' and substr(lang, -2) = 'hp'", True),
        ("substr(lang, 2, -1) = ''", True),
        ("round(data.amount, -1) = 20 and round(data.half) = 3", True),
        ("contains(error, '504') and startswith(lang, 'p') and endswith(exception, 'out')", True),
        ("attempts = '3'", True),
        ("error like '%50\\_%'", False),
        ("error like '%50!_%' escape '!'", False),
        ("coalesce(data.missing, 'x') = 'x'", True),
        ('urn == "urn:babel:orders:created"', True),
        ("reason = 'it''s' or reason != 'it''s'", True),
        ("try_cast(data.name as bigint) is null", True),
        ("cast(data.text as int) + 1 = 6 and data.text::int = 5", True),
        # Evaluated from left to right, and no further than needed.
        ("lang = 'go' and 1 / 0 = 1", False),
        ("lang = 'php' or data.name > 5", True),
    ],
)
def test_the_common_subset(text: str, expected: bool) -> None:
    assert Expression(text).matches(ROW) is expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("urn = ", "cannot be parsed"),
        ("nosuch = 1", "there is no column 'nosuch'"),
        ("lang = 'php' and nosuch = 1", "character 18: there is no column"),
        ("load_extension('x')", "the function load_extension is not supported"),
        ("urn = 'a'; drop table x", "character 10: ';' is not supported"),
        ("(select 1)", "'select' is not supported"),
        ("urn rlike '.*'", "character 5: 'rlike' is not supported"),
        ("urn = 'App\\Jobs'", "two backslashes"),
        ("failed_at > 5", "TIMESTAMP and INT"),
        ("data.a[b] = 1", "an index is a number"),
        ("data = 1", "name a member of the payload"),
        ("urn.x = 1", "has no members"),
        ("'a' and 'b'", "AND takes conditions"),
        ("attempts = true", "BIGINT and BOOLEAN"),
        ("lang = 'php' = true", "needs parentheses"),
        ("lang || lang + 1 = 'x'", "needs parentheses"),
        ("5L = 5", "suffix"),
        ("cast(lang as map<int,int>) is null", "not supported"),
        ("data.* = 1", "name a column"),
        ("round(data.amount, attempts) = 1", "a whole number"),
        ("123456789012345678901234567890123456789 = 1", "more than 38 digits"),
    ],
)
def test_everything_else_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Expression(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data.name > 5", "'Äpfel' cannot be cast to BIGINT"),
        ("data.amount = '7.0'", "'7.0' cannot be cast to BIGINT"),
        ("data.amount / 0 = 1", "division by zero"),
        ("data.amount % 0 = 1", "division by zero"),
        ("data.big * 9007199254740993 = 1", "does not fit into BIGINT"),
        ("attempts = 'many'", "'many' cannot be cast to BIGINT"),
        ("data.lines = 1", "ARRAY cannot be compared"),
        ("data.paid + 1 = 2", "+ takes numbers"),
        ("data.amount", "BIGINT, not a condition"),
        ("data.name or data.paid", "cannot be cast to BOOLEAN"),
        ("lang like 'a\\\\b'", "must be followed by"),
    ],
)
def test_what_spark_raises_for_a_row(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        Expression(text).matches(ROW)
    assert says in str(raised.value)


def test_paths() -> None:
    assert parse_path("data.items[0].`a-b`") == ("items", 0, "a-b")
    with pytest.raises(ConfigError):
        parse_path("data.a + 1")


@pytest.mark.parametrize("text", ["'ValueError'", "exception", "failed_at", "(lang)", "length(lang)"])
def test_a_value_is_not_a_condition(text: str) -> None:
    with pytest.raises(ConfigError, match="not a condition"):
        Chosen(where=text)


def body(data: str) -> bytes:
    return (
        f'{{"job":"urn:babel:a:b","trace_id":"t","data":{data},"meta":{{"id":"m-1","queue":"q","lang":"php",'
        '"schema_version":1,"created_at":1},"attempts":0}'
    ).encode()


def test_an_error_names_the_dead_letter_and_can_be_skipped() -> None:
    good, bad = (read(Delivery(body(f'{{"n":{n}}}'), "q.dlq"), Traits(name="x")) for n in ("7", '"seven"'))
    chosen = Chosen(where="data.n > 5")
    assert chosen(good)
    with pytest.raises(ExpressionError) as raised:
        chosen(bad)
    assert raised.value.letter == "m-1"
    assert "dead letter m-1: 'seven' cannot be cast to BIGINT" in str(raised.value)
    assert "--where-errors skip" in str(raised.value)
    skipping = Chosen(where="data.n > 5", where_errors="skip")
    assert [skipping(good), skipping(bad)] == [True, False]
    assert skipping.skipped == 1
    with pytest.raises(ConfigError, match="where-errors"):
        Chosen(where="data.n > 5", where_errors="ignore")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 400 + "1 = 1" + ")" * 400,
        "not " * 5000 + "true",
        "- " * 5000 + "1 = 1",
        "lang in (" * 300 + "1" + ")" * 300,
        "cast(" * 300 + "1" + " as int)" * 300,
        f"data.items[{'9' * 5000}] = 1",
        f"data.n = {'9' * 5000}",
        "lang = 'x' or " * 10_000 + "true",
        "x" * 70_000,
        "'" + "a" * 70_000,
        "data" + ".a" * 6_000 + " = 1",
        "1" + " + 1" * 4_000 + " = 1",
    ],
    ids=lambda text: text[:12],
)
def test_hostile_expressions_are_refused_quickly(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ConfigError) as refused:
        Expression(text)
    assert time.process_time() - began_s < 3
    assert len(str(refused.value)) < 1000


def test_long_lists_are_fine() -> None:
    ids = [f"'{n:032x}'" for n in range(1_500)]
    assert Expression(f"id in ({', '.join(ids)}, 'i-1')").matches(ROW)
    assert Expression(" or ".join(f"id = {one}" for one in ["'i-1'", *ids[:900]])).matches(ROW)


def test_like_does_not_backtrack() -> None:
    """A regular expression made of this pattern would take years."""
    row = ROW | {"error": "a" * 20_000}
    began_s = time.process_time()
    assert Expression(f"error like '{'%a' * 60}%b'").matches(row) is False
    assert time.process_time() - began_s < 1
