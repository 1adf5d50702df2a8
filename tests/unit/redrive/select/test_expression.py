"""What --where means: the answers Spark SQL would give, and a refusal for everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shinar.errors import ConfigError
from shinar.redrive.select.expression import Expression, parse_path
from shinar.redrive.select.grammar import moment_ms
from shinar.redrive.select.selection import Chosen

ROW: dict[str, Any] = {
    "urn": "urn:babel:orders:created",
    "exception": "App\\Jobs\\GatewayTimeout",
    "error": "gateway said 504",
    "reason": "failed",
    "lang": "php",
    "queue": "orders.dlq",
    "original_queue": "orders",
    "created_at": moment_ms("2026-11-15 02:00:00", "t"),
    "failed_at": moment_ms("2026-11-15 02:10:00", "t"),
    "attempts": 3,
    "id": "i-1",
    "trace_id": None,
    "data": json.dumps(
        {"amount": 19, "paid": True, "text": "5", "name": "Äpfel", "lines": [{"sku": "a"}], "nothing": None}
    ),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("urn = 'urn:babel:orders:created'", True),
        ("exception like '%GatewayTimeout'", True),
        ("exception like '%gatewaytimeout'", False),
        ("exception = 'App\\\\Jobs\\\\GatewayTimeout'", True),
        ("exception not like 'App%'", False),
        ("lang in ('go', 'php') and attempts >= 3", True),
        ("lang not in ('go')", True),
        ("not (lang = 'php')", False),
        ("trace_id is null", True),
        ("trace_id = 'x'", False),
        ("not (trace_id = 'x')", False),  # unknown is not true
        ("trace_id <=> null", True),
        ("failed_at between '2026-11-15 02:00:00' and '2026-11-15T02:10:00Z'", True),
        ("failed_at > timestamp '2026-11-15 03:10:00+01:00'", False),
        ("data.amount * 2 = 38", True),
        ("data.amount / 2 = 9.5", True),
        ("data.amount > 5 and data.text < 6", True),
        ("data.name > 5", False),  # no number: unknown, never "greater because it is text"
        ("data.paid", True),
        ("data.paid = true", True),
        ("data.lines[0].sku = 'a'", True),
        ("data.nothing is null and data.missing is null", True),
        ("lower(data.name) = 'äpfel'", True),
        ("length(error) = 16", True),
        ("substr(lang, 1, 2) = 'ph'", True),
        ("contains(error, '504') and startswith(lang, 'p') and endswith(exception, 'out')", True),
        ("attempts = '3'", True),
        ("error like '%50\\_%'", False),
        ("coalesce(data.missing, 'x') = 'x'", True),
        ('urn == "urn:babel:orders:created"', True),
        ("reason = 'it''s' or reason != 'it''s'", True),
    ],
)
def test_the_common_subset(text: str, expected: bool) -> None:
    assert Expression(text).matches(ROW) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "urn = ",
        "nosuch = 1",
        "load_extension('x')",
        "urn = 'a'; drop table x",
        "(select 1)",
        "urn = 'App\\Jobs'",
        "failed_at > 5",
        "failed_at > lang",
        "error = 5",
        "attempts = 'many'",
        "lang + 1 = 2",
        "data = 1",
        "data.a[b] = 1",
        "urn like lang",
        "'a' and 'b'",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Expression(text)


def test_paths() -> None:
    assert parse_path("data.items[0].`a-b`") == ("items", 0, "a-b")
    with pytest.raises(ConfigError):
        parse_path("data.a + 1")


@pytest.mark.parametrize("text", ["'ValueError'", "exception", "failed_at", "(lang)", "length(lang)"])
def test_a_value_is_no_condition(text: str) -> None:
    with pytest.raises(ConfigError, match="no condition"):
        Chosen(where=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.name", False),
        ("data.amount", False),
        ("not data.name", False),
        ("data.name or data.amount", False),
        ("data.paid and lang = 'php'", True),
        ("not data.paid", False),
        ("coalesce(exception, 'x')", False),
    ],
)
def test_only_true_is_true(text: str, expected: bool) -> None:
    assert Expression(text).matches(ROW) is expected


def test_too_deep_is_told() -> None:
    with pytest.raises(ConfigError, match="too deeply"):
        Expression("(" * 400 + "1 = 1" + ")" * 400)
