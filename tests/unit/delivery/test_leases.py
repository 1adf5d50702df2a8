"""One rule for renewing leases: after a third of each, by its own length, and once until the next third."""

from __future__ import annotations

from shinar.brokers import Delivery
from shinar.delivery.leases import Renewals, lease_s_of, renewal_due


def delivery(lease_ms: int | None, received_ms: int = 0) -> Delivery:
    until_ms = None if lease_ms is None else received_ms + lease_ms
    return Delivery(b"", "orders", received_ms=received_ms, lease_until_ms=until_ms)


def test_a_lease_is_renewed_after_a_third_of_it() -> None:
    assert not renewal_due(19.9, 60)
    assert renewal_due(20.0, 60)


def test_each_delivery_by_its_own_lease() -> None:
    short, long, lasting = delivery(6_000), delivery(60_000), delivery(None)
    renewals = Renewals()
    assert renewals.due([short, long, lasting], 1_000) == {}
    assert renewals.due([short, long, lasting], 2_000) == {6.0: [short]}
    assert renewals.due([short, long, lasting], 3_999) == {}
    assert renewals.due([short, long, lasting], 20_000) == {6.0: [short], 60.0: [long]}


def test_what_has_left_is_forgotten() -> None:
    renewals = Renewals()
    renewals.due([delivery(6_000)], 2_000)
    renewals.due([], 3_000)
    assert renewals._renewed_ms == {}


def test_a_lease_that_lasts_as_long_as_the_connection_has_no_length() -> None:
    assert lease_s_of(delivery(None)) is None
    assert lease_s_of(delivery(2_500, received_ms=7)) == 2.5
