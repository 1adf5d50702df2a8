"""Counters that do not depend on the order or the place of counting."""

from __future__ import annotations

import random

from redrive_letters import body
from shinar.brokers import Delivery
from shinar.redrive import Letter, Summary, summarise
from shinar.redrive.letters.letter import read
from shinar.redrive.letters.summary import MOST_GROUPS, OTHER, Times, sparkline
from shinar.settlement import Traits

TRAITS = Traits(name="test")


def dead(count: int) -> list[Letter]:
    return [read(Delivery(body(n, "orders"), "orders.dlq"), TRAITS) for n in range(count)]


def test_parts_merge_to_the_whole() -> None:
    letters = dead(240)
    whole = summarise(letters)
    shuffled = list(letters)
    random.Random(3).shuffle(shuffled)
    merged = Summary()
    for start in range(0, 240, 50):
        merged.merge(summarise(shuffled[start : start + 50]))
    assert merged.rows(1_763_172_600_000) == whole.rows(1_763_172_600_000)
    assert len(whole.groups) == 12
    assert sum(row["share"] for row in whole.rows()) == 1.0


def test_new_since_and_died_again() -> None:
    letters = dead(24)
    known = {letters[0].id: 1}
    rows = summarise(letters, generations=lambda ids: {i: 1 for i in ids if i in known}).rows(0)
    assert sum(row["died_again"] for row in rows) == 1
    assert all(row["new"] for row in rows)
    assert not any(row["new"] for row in summarise(letters).rows(2_000_000_000_000))


def test_too_many_kinds_are_one_kind() -> None:
    summary = Summary()
    template = read(Delivery(body(0, "orders"), "orders.dlq"), TRAITS)
    import msgspec

    for n in range(MOST_GROUPS + 5):
        letters = "".join(chr(97 + int(digit)) for digit in str(n))
        summary.add(msgspec.structs.replace(template, exception=f"E{letters}"))
    assert len(summary.groups) == MOST_GROUPS + 1
    assert summary.groups[OTHER].count == 5
    assert summary.total == MOST_GROUPS + 5


def test_times_stay_small() -> None:
    times = Times()
    for minute in range(10_000):
        times.add(minute * 60_000)
    assert len(times.counts) <= 1500
    assert sum(times.counts.values()) == 10_000
    assert sum(times.bars(0, 10_000 * 60_000)) == 10_000


def test_a_sparkline() -> None:
    assert sparkline([0, 1, 8]) == " ▁█"
    assert sparkline([]) == ""
