"""The table of guarantees in the docs is what the brokers' traits say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shinar.brokers import traits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "delivery-guarantees.md"
URLS = {
    "memory": "memory://x/q",
    "embedded (phpmq)": "phpmq://h/q",
    "sqlite": "sqlite:///x.db?queue=q",
    "postgresql": "postgresql://h/d/q",
    "mysql": "mysql://h/d/q",
    "redis": "redis://h/q",
    "redis, Laravel layout": "redis://h/q?layout=laravel",
    "rabbitmq": "amqp://h/q",
    "sqs": "sqs://r/q",
    "sqs fifo": "sqs://r/q.fifo",
    "servicebus": "servicebus://k:v@h/q",
    "kafka": "kafka://h/q",
    "pulsar": "pulsar://h/q",
    "artemis": "artemis://h/q",
}


@pytest.mark.parametrize("name", URLS)
def test_the_row_of_each_broker_is_true(name: str) -> None:
    found = traits(URLS[name])
    lease = "connection" if found.lease_s is None else f"{found.lease_s:g} s"
    limit = "yes" if found.max_delay_s is None else f"up to {found.max_delay_s:g} s"
    facts = (found.headers, found.key, found.browse, found.depth, found.portable_receipts, found.atomic_move)
    cells = [
        name,
        lease,
        found.attempts,
        limit if found.delay else "no",
        *("yes" if yes else "no" for yes in facts),
    ]
    assert "| " + " | ".join(cells) + " |" in PAGE.read_text()
