from __future__ import annotations

import pytest

from shinar.brokers.kafka.retry_tiers import (
    DEFAULT_TIERS_MS,
    check_tiers,
    delay_record,
    due_ms,
    retry_record,
    retry_topic,
    wait_ms,
    work_topic,
)
from shinar.errors import ContractError

TIERS = (5_000, 30_000, 300_000)


def test_the_default_tiers_are_valid():
    assert check_tiers(DEFAULT_TIERS_MS) == (5_000, 30_000, 300_000, 1_800_000)


@pytest.mark.parametrize("bad", [(0,), (-1,), (5, 5), (5, 4), (True,), (1.5,), ("5",)])
def test_tiers_must_be_positive_and_ascending(bad):
    with pytest.raises(ContractError, match="ascending"):
        check_tiers(bad)


@pytest.mark.parametrize(
    ("work", "n", "topic"),
    [
        ("orders", 1, "orders.retry.1"),
        ("shop.eu.orders", 12, "shop.eu.orders.retry.12"),
        ("a.retry.1", 2, "a.retry.1.retry.2"),
    ],
)
def test_tier_topics_count_tiers_and_can_be_read_back(work, n, topic):
    assert retry_topic(work, n) == topic
    assert work_topic(topic) == (work, n)


@pytest.mark.parametrize(
    "topic", ["orders", "orders.retry.", "orders.retry.x", "orders.retry.01", ".retry.1", "o.retry.٣"]
)
def test_other_topics_are_no_tiers(topic):
    assert work_topic(topic) is None


@pytest.mark.parametrize(("delay", "n"), [(0, 1), (1, 1), (5_000, 1), (5_001, 2), (30_000, 2), (300_000, 3)])
def test_a_requested_delay_takes_the_smallest_tier_that_covers_it(delay, n):
    topic, headers = delay_record("orders", TIERS, delay)
    assert topic == f"orders.retry.{n}"
    assert headers == {"bq-delay": str(delay), "bq-original-topic": "orders"}


@pytest.mark.parametrize(("tiers", "delay"), [(TIERS, 300_001), ((), 1), (TIERS, -1)])
def test_a_delay_no_tier_covers_is_refused(tiers, delay):
    with pytest.raises(ContractError):
        delay_record("orders", tiers, delay)


@pytest.mark.parametrize(("attempts", "n"), [(0, 1), (1, 2), (2, 3), (3, 3), (99, 3)])
def test_a_retry_climbs_the_tiers_and_stays_on_the_last(attempts, n):
    topic, headers, counted = retry_record("orders", TIERS, attempts)
    assert topic == f"orders.retry.{n}"
    assert counted == attempts + 1
    assert headers == {
        "bq-attempts": str(attempts + 1),
        "bq-delay": str(TIERS[n - 1]),
        "bq-original-topic": "orders",
    }


def test_a_retry_without_tiers_is_refused():
    with pytest.raises(ContractError, match="retry_tiers_ms"):
        retry_record("orders", (), 0)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (1_000_000, 1_005_000),
        (999_000, 1_004_000),
        (900_000, 1_000_000),
        (2_000_000, 1_005_000),
        (None, 1_005_000),
        (-1, 1_005_000),
    ],
)
def test_due_is_clamped_between_now_and_one_wait(record, expected):
    assert due_ms(record, 5_000, 1_000_000) == expected


@pytest.mark.parametrize(
    ("n", "header", "expected"),
    [
        (1, None, 5_000),
        (1, "1200", 1_200),
        (1, "9999999", 5_000),
        (2, "x", 30_000),
        (9, "700", 700),
        (9, None, 0),
        (1, "9" * 30, 5_000),
    ],
)
def test_the_wait_is_what_was_asked_for_within_the_tier(n, header, expected):
    assert wait_ms(TIERS, n, header) == expected
