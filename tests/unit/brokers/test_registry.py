"""The rows: each is complete, true, and what error texts are made of."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest

from shinar.brokers import parse, traits
from shinar.brokers.registry import ROWS, SYNONYMS, row
from shinar.cli.support.output import address
from shinar.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("scheme", ROWS)
def test_the_example_of_a_row_is_a_url_with_a_queue(scheme: str) -> None:
    for url in (ROWS[scheme].example, *ROWS[scheme].variants.values()):
        assert parse(url).queue.startswith("orders")
        assert row(parse(url).scheme).module == ROWS[scheme].module
        assert traits(url).name


@pytest.mark.parametrize("scheme", [scheme for scheme, found in ROWS.items() if found.extra])
def test_the_extra_of_a_row_installs_its_distribution(scheme: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = extras[ROWS[scheme].extra]
    assert any(need.lower().startswith(ROWS[scheme].distribution) for need in wanted), wanted


def test_synonyms_lead_to_schemes() -> None:
    assert set(SYNONYMS.values()) <= set(ROWS)
    assert not set(SYNONYMS) & set(ROWS)


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("mysql://localhost/orders", "mysql://localhost/shop/orders"),
        ("sqlite:///tmp/queue.db", "sqlite:///var/lib/app/queue.db?queue=orders"),
        ("redis://localhost/0", "redis://localhost/orders"),
    ],
)
def test_a_url_without_a_queue_is_told_how_its_broker_writes_one(url: str, example: str) -> None:
    """`mysql://localhost/orders` names a database; "scheme://host/queue" is what the user had written."""
    settings = {"url": url, "queue": "", "token": ""}
    with pytest.raises(ConfigError) as told:
        address(argparse.Namespace(), settings)  # type: ignore[arg-type]  # a mapping is all it reads
    assert example in str(told.value)
