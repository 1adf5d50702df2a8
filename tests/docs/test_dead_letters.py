"""The table of the dead letters' page says what the brokers' traits say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shinar.brokers import traits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dead-letters.md"
#: First cell of a row -> URLs it speaks of.
URLS = {
    "SQLite, PostgreSQL, MySQL": ["sqlite:///x.db?queue=q", "postgresql://h/d/q", "mysql://h/d/q"],
    "Redis": ["redis://h/q", "redis://h/q?layout=laravel"],
    "embedded (phpmq)": ["phpmq://h/q"],
    "RabbitMQ classic": ["amqp://h/q"],
    "RabbitMQ quorum": ["amqp://h/q?queue_type=quorum"],
    "SQS": ["sqs://r/q"],
    "SQS FIFO": ["sqs://r/q.fifo"],
    "Service Bus": ["servicebus://k:v@h/q"],
    "Kafka": ["kafka://h/q"],
    "Pulsar": ["pulsar://h/q", "pulsar://h/q?admin=http://h"],
    "Artemis": ["artemis://h/q"],
}


def _cells(name: str) -> list[str]:
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("name", URLS)
def test_the_row_of_each_broker_is_true(name: str) -> None:
    _, look, send, order, _ = _cells(name)
    for url in URLS[name]:
        known = traits(url)
        assert look.startswith("`--reserve`") != known.browse or "admin" in look
        assert send.startswith("atomic") == known.atomic_move
        if known.replayable:
            assert order.startswith("untouched")
        elif not known.ordered:
            assert order.startswith(("has none", "by sessions"))
        else:
            assert order.startswith("**no**") == (known.release_to == "front")
            assert order.startswith("yes") == (known.release_to != "front")
            assert ("turned" in order) == (known.release_to == "back")
