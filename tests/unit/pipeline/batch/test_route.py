from __future__ import annotations

import pytest

from shinar.envelope.urn import best_match
from shinar.errors import ConfigError
from shinar.pipeline.batch.route import Routes, own_table


@pytest.mark.parametrize(
    ("urn", "pattern"),
    [
        ("urn:babel:orders:created", "urn:babel:orders:created"),
        ("urn:babel:orders:paid", "urn:babel:orders:*"),
        ("urn:babel:mails:sent", "urn:babel:*"),
        ("job.Something", "*"),
    ],
)
def test_the_closest_pattern_wins(urn: str, pattern: str) -> None:
    patterns = ["*", "urn:babel:*", "urn:babel:orders:*", "urn:babel:orders:created"]
    assert best_match(urn, patterns) == pattern
    assert best_match(urn, patterns[::-1]) == pattern
    assert best_match(urn, []) is None


def test_routes() -> None:
    routes = Routes({"urn:babel:orders:*": "orders", "urn:babel:noise:*": "-"})
    assert routes.table("urn:babel:orders:created") == "orders"
    assert routes.table("urn:babel:noise:ping") is None
    assert routes.table("urn:babel:mails:sent") == "mails_sent"


@pytest.mark.parametrize("pattern", ["", "urn:*:created", "**"])
def test_bad_patterns(pattern: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        Routes({pattern: "x"})


@pytest.mark.parametrize("target", ["../etc", "Orders", "a/b", ""])
def test_bad_tables(target: str) -> None:
    with pytest.raises(ConfigError, match="lower-case"):
        Routes({"*": target})


def test_table_names_are_safe_and_distinct() -> None:
    urns = [
        "urn:babel:orders:created",
        "urn:babel:orders_created",
        "urn:babel:Orders:created",
        "urn:acme:orders:created",
        "orders:created",
        "../../etc/passwd",
        "\u2003",
        "urn:babel:" + "x" * 500,
        "\ud800",
    ]
    names = [own_table(urn) for urn in urns]
    assert names[0] == "orders_created"
    assert len(set(names)) == len(urns)
    assert all(name.replace("_", "").isalnum() and len(name) < 100 for name in names)


def test_a_target_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="route urn:a"):
        Routes({"urn:a": 5})
