"""The table of brokers in the docs is what their traits say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shinar.brokers import traits

DOCS = Path(__file__).parents[5] / "docs" / "spark-source.md"
URLS = {
    "embedded broker": ["phpmq://h"],
    "PostgreSQL, MySQL, SQLite": ["postgresql://h/d", "mysql://h/d", "sqlite:///q.db"],
    "SQS": ["sqs://q"],
    "Service Bus": ["servicebus://h/q"],
    "Pulsar": ["pulsar://h"],
    "RabbitMQ": ["amqp://h"],
    "Artemis": ["artemis://h/q"],
    "Redis": ["redis://h"],
}


def rows() -> dict[str, list[str]]:
    text = DOCS.read_text().partition("| broker | position | a redelivery is |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {name: rest for name, *rest in cells}


def test_the_table_names_every_queue():
    assert rows().keys() == URLS.keys()


@pytest.mark.parametrize("name", URLS)
def test_a_row_is_what_the_traits_say(name: str):
    _, outcome, portable = rows()[name]
    for url in URLS[name]:
        assert (outcome == "recognised") == traits(url).stable_position
        assert portable.startswith("yes") == traits(url).portable_receipts
