"""The rule of redeliveries: what is proven is dropped, what is only alike is marked, the rest is new."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.brokers import Delivery
from shinar.envelope import build, encode, retry_copy
from shinar.pipeline.source.wal.redelivery import (
    POSSIBLE,
    fingerprint,
    may_be_redelivery,
    may_have_lapsed,
    sift,
)
from shinar.settlement.traits import Traits

NAMED = Traits(name="named", stable_position=True, count_base=0)
BARE = Traits(name="bare")
FLAGGED = Traits(name="flagged", marks_redelivery=True)
COUNTED = Traits(name="counted", count_base=1)


def delivery(body: bytes = b"{", position: str = "", **more: object) -> Delivery:
    return Delivery(body=body, queue="q", position=position, **more)  # type: ignore[arg-type]  # by name


def unsettled(*deliveries: Delivery, traits: Traits = BARE) -> dict[str, Counter[bytes]]:
    return {"1-0": Counter(fingerprint(d.queue, d.position, d.body, traits) for d in deliveries)}


@pytest.mark.parametrize(
    ("given", "held", "traits", "outcome"),
    [
        (delivery(position="7"), delivery(position="7"), NAMED, "known"),
        (delivery(position="7", native_count=0), delivery(position="7"), NAMED, "known"),
        (delivery(position="7"), delivery(position="8"), NAMED, "new"),
        (delivery(b"a", position="7"), delivery(b"b", position="7"), NAMED, "new"),
        # A broker with stable positions that gives none for this message proves nothing.
        (delivery(native_count=1), delivery(), NAMED, "possible"),
        (delivery(), delivery(), BARE, "possible"),
        # A name that the producer chose may be given twice.
        (delivery(position="mine"), delivery(position="mine"), BARE, "possible"),
        (delivery(b"a"), delivery(b"b"), BARE, "new"),
        (delivery(redelivered=True), delivery(), FLAGGED, "possible"),
        (delivery(redelivered=False), delivery(), FLAGGED, "new"),
        (delivery(native_count=2), delivery(), COUNTED, "possible"),
        (delivery(native_count=1), delivery(), COUNTED, "new"),
        (delivery(native_count=None), delivery(), COUNTED, "possible"),
    ],
)
def test_what_a_delivery_is(given: Delivery, held: Delivery, traits: Traits, outcome: str):
    found = sift([given], unsettled(held), Counter(), traits)
    assert (found.known, found.known_in) == (([given], ["1-0"]) if outcome == "known" else ([], []))
    assert found.rows == ([] if outcome == "known" else [given])
    assert found.marks == {"known": [], "new": [None], "possible": [POSSIBLE]}[outcome]
    assert len(found.marked) == (outcome == "possible")


def test_a_known_message_is_known_as_often_as_it_is_delivered():
    again = delivery(position="7")
    found = sift([again, again, again], unsettled(again), Counter(), NAMED)
    assert (len(found.known), found.rows) == (3, [])


def test_a_segment_accounts_for_as_many_marks_as_it_holds_messages():
    twice = unsettled(delivery(), delivery())
    found = sift([delivery()] * 5, twice, Counter(), BARE)
    assert (len(found.rows), Counter(found.marks)) == (5, Counter({POSSIBLE: 2, None: 3}))
    later = sift([delivery()] * 5, twice, Counter(found.marked), BARE)
    assert later.marks == [None] * 5
    other = {**twice, "2-1": twice["1-0"]}
    assert Counter(name for name, _ in sift([delivery()] * 5, other, Counter(found.marked), BARE).marked) == {
        "2-1": 2
    }


bodies = st.sampled_from([b"{", b"[]", b"\xff", b"x"])


@given(captured=st.lists(bodies), lost_acks=st.data(), new=st.lists(bodies), mixed=st.randoms())
def test_without_positions_nothing_is_dropped_and_no_surplus_row_lacks_a_mark(
    captured, lost_acks, new, mixed
):
    """However often acks are lost and whatever arrives beside: rows - marks <= messages <= rows, per body."""
    again = lost_acks.draw(st.lists(st.sampled_from(captured), unique=False) if captured else st.just([]))
    again = list((Counter(again) & Counter(captured)).elements())
    arriving = [*again, *new]
    mixed.shuffle(arriving)
    held, rows, marks = unsettled(*map(delivery, captured)), list(captured), []
    marked: Counter[tuple[str, bytes]] = Counter()
    while arriving:  # in reserves of any size
        size = mixed.randint(1, len(arriving))
        found = sift([delivery(body) for body in arriving[:size]], held, marked, BARE)
        arriving = arriving[size:]
        assert found.known == []
        marked.update(found.marked)
        rows += [kept.body for kept in found.rows]
        marks += [kept.body for kept, mark in zip(found.rows, found.marks, strict=True) if mark]
    messages = Counter(captured) + Counter(new)
    for body in {*rows, *messages}:
        assert rows.count(body) - marks.count(body) <= messages[body] <= rows.count(body)


@given(
    messages=st.lists(bodies, max_size=20),
    seen=st.sets(st.integers(0, 19)),
    order=st.lists(st.integers(0, 19)),
)
def test_with_positions_every_message_is_one_row(messages, seen, order):
    named = [delivery(body, position=str(n)) for n, body in enumerate(messages)]
    captured = [named[n] for n in sorted(seen) if n < len(named)]
    first = [named[n] for n in range(len(named)) if n not in seen]
    arriving = [*(named[n] for n in order if n < len(named) and n in seen), *first]
    found = sift(arriving, unsettled(*captured), Counter(), NAMED)
    assert sorted(d.position for d in (*captured, *found.rows)) == sorted(d.position for d in named)
    assert found.marked == []


def test_a_message_is_alike_when_only_the_count_that_its_broker_keeps_in_it_differs():
    laravel = Traits(name="laravel", lapse_counts=True)
    body = encode(build("urn:babel:a:b", {}))
    for before, after in ((body, retry_copy(body)), (b"{", b"{"), (b'{"attempts": 9', b'{"attempts": 10')):
        held = unsettled(delivery(before), traits=laravel)
        assert sift([delivery(after)], held, Counter(), laravel).marks == [POSSIBLE]
    assert sift([delivery(retry_copy(body))], unsettled(delivery(body)), Counter(), BARE).marks == [None]


def test_fingerprints_keep_queue_position_and_body_apart():
    given = (("a", "b", b"c"), ("ab", "", b"c"), ("a", "", b"bc"))
    assert len({fingerprint(*one, BARE) for one in given}) == 3


def test_a_broker_that_says_nothing_is_compared():
    assert may_be_redelivery(delivery(), BARE)
    assert not may_be_redelivery(delivery(redelivered=False), BARE)


def test_before_its_lease_has_ended_a_reservation_was_acknowledged():
    leased = Traits(name="leased", lease_s=60)
    assert not may_have_lapsed(delivery(received_ms=1_000), 60_900, leased)
    assert may_have_lapsed(delivery(received_ms=1_000), 61_100, leased)
