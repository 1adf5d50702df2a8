"""Held reservations: renewed in time, seldom where the broker allows a long lease, and never in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from shinar.brokers import Broker, Delivery
from shinar.clock import PinnedClock
from shinar.errors import Unsupported
from shinar.redrive.letters.held import Held
from shinar.settlement import Traits

#: Ten leases of 30 seconds.
HOLD_S = 300.0


class Leases:
    """Counts what is asked of it; `lost` are given up, and a call takes `took_s`."""

    def __init__(self, clock: PinnedClock, **traits: Any) -> None:
        self.traits = Traits(name="test", lease_s=30.0, **traits)
        self.clock = clock
        self.asked: list[tuple[int, float]] = []
        self.released: list[str] = []
        self.lost: set[str] = set()
        self.took_s = 0.0

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> tuple[Delivery, ...]:
        self.asked.append((len(deliveries), lease_s))
        self.clock.sleep(self.took_s)
        return tuple(one for one in deliveries if one.position in self.lost)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += [one.position for one in deliveries]


def letters(*names: str) -> list[Delivery]:
    return [Delivery(b"body", "q", position=name) for name in names]


def held(broker: Leases) -> Held:
    return Held(cast(Broker, broker), broker.clock)


def test_short_leases_are_all_renewed_each_time() -> None:
    broker = Leases(PinnedClock())
    kept = held(broker)
    kept.add(letters("a", "b"))
    kept.renew()
    assert broker.asked == []
    for names in ("c", "d"):
        broker.clock.sleep(13)
        kept.renew()
        kept.add(letters(names))
    assert broker.asked == [(2, 30.0), (3, 30.0)]


def test_where_it_can_be_long_each_is_lengthened_once_and_seldom_again() -> None:
    broker = Leases(PinnedClock(), max_lease_s=43_200.0)
    kept = held(broker)
    for number in range(12):
        kept.add(letters(f"{number}"))
        broker.clock.sleep(13)
        kept.renew()
    # 156 seconds: twelve times the new one, and once (after 120 of 300) all that were there.
    assert [count for count, _ in broker.asked].count(1) == 12
    assert sorted(count for count, _ in broker.asked)[-1] > 1
    assert len(broker.asked) == 13
    assert {lease_s for _, lease_s in broker.asked} == {HOLD_S}
    kept.release()
    assert broker.released == [str(number) for number in range(12)]


def test_lost_ones_are_forgotten_and_the_others_keep_their_order() -> None:
    broker = Leases(PinnedClock(), max_lease_s=43_200.0)
    kept = held(broker)
    kept.add(letters("a", "b", "c"))
    broker.lost = {"b"}
    broker.clock.sleep(13)
    kept.renew()
    kept.add(letters("d", "e"))
    broker.lost = {"d"}
    broker.clock.sleep(13)
    kept.renew()
    assert broker.asked == [(3, HOLD_S), (2, HOLD_S)]
    kept.release()
    assert broker.released == ["a", "c", "e"]


def test_leases_that_end_before_they_are_renewed_are_told() -> None:
    broker = Leases(PinnedClock())
    broker.took_s = 21.0
    kept = held(broker)
    kept.add(letters("a"))
    broker.clock.sleep(13)
    with pytest.raises(Unsupported, match="lease_s="):
        kept.renew()
    kept.release()
    assert broker.released == ["a"]
