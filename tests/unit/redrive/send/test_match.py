"""Which line a letter answers to: by its position, or, where bytes are all there is, by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from redrive_letters import POISON, body
from shinar.brokers import Delivery
from shinar.redrive import Job, Ledger, Line, LineState
from shinar.redrive.letters.letter import digest_of, read
from shinar.redrive.select.selection import Chosen
from shinar.redrive.send.arrivals import Copies, count_arrivals
from shinar.redrive.send.match import Doubt, Matcher, settle_doubt
from shinar.settlement import Traits

BYTES_ONLY = Traits(name="list")
EXACT = Traits(name="table", stable_position=True)
JOB = Job("j1", "me", 1, "list://x", "orders.dlq", "list://x", "{}", source_key="list://x")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db")
    opened.create(JOB)
    yield opened
    opened.close()


def lines(ledger: Ledger, dead: bytes, states: list[LineState], positions: bool = False) -> None:
    """One line for each state, all of the same bytes."""
    made = [
        Line(digest_of(dead), position=f"p{at}" if positions else "", state=state)
        for at, state in enumerate(states)
    ]
    ledger.claim(JOB, made, Counter())


def matcher(ledger: Ledger, traits: Traits = BYTES_ONLY, *, planned: bool = True) -> Matcher:
    return Matcher(ledger, JOB, traits, chosen=None if planned else Chosen(), limit=None)


def test_of_identical_letters_the_unsent_come_first(ledger: Ledger) -> None:
    """Three lines, one acknowledged in doubt: two copies in the queue are the two that were never sent."""
    dead = body(0, "orders")
    lines(ledger, dead, [LineState.PUBLISHED, LineState.INTENT, LineState.PLANNED])
    items, others = matcher(ledger).split([Delivery(dead, "orders.dlq")] * 1)
    assert [item.line.state for item in items] == [LineState.PLANNED]
    items, others = matcher(ledger).split([Delivery(dead, "orders.dlq") for _ in range(4)])
    assert [item.line.state for item in items] == ["planned", "intent", "published"]
    assert [item.only_ack for item in items] == [False, False, True]
    assert len(others) == 1


def test_a_letter_that_stays_is_never_acknowledged(ledger: Ledger) -> None:
    """A twin was skipped or failed and is in the queue: a copy that is met may be that one."""
    dead = body(0, "orders")
    for stays in (LineState.SKIPPED, LineState.FAILED):
        lines(ledger, dead, [LineState.PUBLISHED, stays])
        letters = [Delivery(dead, "orders.dlq", redelivered=True) for _ in range(2)]
        assert matcher(ledger).split(letters) == ([], letters)


def test_a_position_tells_identical_letters_apart(ledger: Ledger) -> None:
    dead = body(POISON, "orders")
    lines(ledger, dead, [LineState.ACKED, LineState.PUBLISHED, LineState.PLANNED], positions=True)
    letters = [Delivery(dead, "orders.dlq", position=f"p{at}") for at in (2, 0, 1, 3)]
    items, others = matcher(ledger, EXACT).split(letters)
    assert [(item.delivery.position, item.only_ack) for item in items] == [("p2", False), ("p1", True)]
    assert [other.position for other in others] == ["p0", "p3"]


def test_without_a_plan_each_of_identical_letters_has_a_line(ledger: Ledger) -> None:
    dead = body(0, "orders")
    matching = matcher(ledger, planned=False)
    for count in (3, 2):
        items, _ = matching.split([Delivery(dead, "orders.dlq") for _ in range(count)])
        assert len(items) == count
        ledger.record_acked(JOB.id, [item.line for item in items])
    assert ledger.receipt(JOB.id).published == 5


def test_without_a_plan_what_stayed_keeps_its_line(ledger: Ledger) -> None:
    dead = body(0, "orders")
    lines(ledger, dead, [LineState.SKIPPED])
    items, others = matcher(ledger, planned=False).split([Delivery(dead, "orders.dlq") for _ in range(2)])
    assert (len(items), len(others)) == (1, 1)
    assert ledger.receipt(JOB.id).selected == 2


DEAD, RAW = body(0, "orders"), b'{"broken":'


@pytest.mark.parametrize(
    ("dead", "redelivered", "all_counted", "others_stay", "expected"),
    [
        (DEAD, None, True, False, Doubt.ACK),  # its bytes say which message died when
        (RAW, None, True, False, Doubt.SEND_AGAIN),  # the next one of its kind looks the same
        (RAW, True, True, False, Doubt.ACK),  # somebody had it in hand: us
        (RAW, False, True, False, Doubt.LEAVE),  # it came later
        (DEAD, True, False, False, Doubt.SEND_AGAIN),  # others of its bytes may not have been met yet
        (DEAD, True, True, True, Doubt.LEAVE),
    ],
)
def test_nothing_is_acknowledged_on_a_guess(
    dead: bytes, redelivered: bool | None, all_counted: bool, others_stay: bool, expected: Doubt
) -> None:
    letter = read(Delivery(dead, "orders.dlq", redelivered=redelivered), BYTES_ONLY)
    doubt = settle_doubt(letter, BYTES_ONLY, all_counted=all_counted, others_stay=others_stay)
    assert doubt is expected
    exact = read(Delivery(dead, "orders.dlq", position="7"), EXACT)
    assert settle_doubt(exact, EXACT, all_counted=False, others_stay=True) is Doubt.ACK


def intents(count: int, id_: str = "m-1") -> list[Line]:
    return [Line("d", n, id_, copy="c", state=LineState.INTENT) for n in range(count)]


def test_one_copy_found_vouches_for_one_only() -> None:
    found = count_arrivals(intents(3), Copies({"c": 1}, {}, {}, complete=False))
    assert (len(found.arrived), len(found.absent)) == (1, 0)
    sure = count_arrivals(intents(3), Copies({"c": 5}, {"c": 4}, {"c": 4}, complete=True))
    assert (len(sure.arrived), len(sure.absent)) == (1, 2)


def test_copies_of_other_jobs_prove_nothing() -> None:
    theirs = count_arrivals(intents(2), Copies({"c": 3}, {"c": 1}, {"c": 3}, complete=True))
    assert theirs == ([], [])


def test_a_copy_without_an_id_may_be_anybodys() -> None:
    poison = intents(2, id_="")
    assert count_arrivals(poison, Copies({"c": 2}, {}, {}, complete=True)) == ([], [])
    assert count_arrivals(poison, Copies({}, {}, {}, complete=True)).absent == poison
    patched = [msgspec.structs.replace(line, new_id="new") for line in poison]
    assert count_arrivals(patched, Copies({"c": 2}, {}, {}, complete=True)).arrived == patched
