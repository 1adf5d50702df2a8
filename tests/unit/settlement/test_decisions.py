"""The decision table of the contract, row by row, and the pure rules it rests on."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.envelope import DeadReason
from shinar.errors import ConfigError
from shinar.settlement import (
    Action,
    Backoff,
    Event,
    Policy,
    Traits,
    dead_letter_queue,
    decide,
    gated,
    if_write_fails,
    is_dead_letter_queue,
    original_queue,
    parse_count,
    reconcile,
)

PLAIN = Traits(name="plain")
NATIVE = Traits(name="native", poison_without_dlq="native", gated_without_dlq="native")
ALWAYS = Traits(name="always", poison_without_dlq="dead_letter")

FAILED, UNKNOWN, POISON, GATED = Event.FAILED, Event.UNKNOWN_URN, Event.POISON, Event.VERSION_GATED

ROWS = [
    # event, attempts before, strategy, exhausted, traits, action, reason
    (Event.HANDLED, 0, "fail", "dead_letter", PLAIN, Action.ACK, None),
    (FAILED, 0, "fail", "dead_letter", PLAIN, Action.RETRY, None),
    (FAILED, 1, "delete", "dead_letter", PLAIN, Action.RETRY, None),
    (FAILED, 2, "fail", "dead_letter", PLAIN, Action.DEAD_LETTER, DeadReason.FAILED),
    (FAILED, 9, "fail", "dead_letter", PLAIN, Action.DEAD_LETTER, DeadReason.FAILED),
    (FAILED, 2, "fail", "drop", PLAIN, Action.DROP, None),
    (UNKNOWN, 0, "fail", "dead_letter", PLAIN, Action.RETRY, None),
    (UNKNOWN, 2, "fail", "dead_letter", PLAIN, Action.DEAD_LETTER, DeadReason.UNKNOWN_URN),
    (UNKNOWN, 0, "delete", "dead_letter", PLAIN, Action.DROP, None),
    (UNKNOWN, 0, "dead_letter", "drop", PLAIN, Action.DEAD_LETTER, DeadReason.UNKNOWN_URN),
    (UNKNOWN, 7, "release", "dead_letter", PLAIN, Action.RELEASE, None),
    (POISON, 0, "fail", "dead_letter", PLAIN, Action.DEAD_LETTER, DeadReason.POISON),
    (POISON, 0, "release", "dead_letter", PLAIN, Action.DEAD_LETTER, DeadReason.POISON),
    (POISON, 0, "dead_letter", "drop", PLAIN, Action.DEAD_LETTER, DeadReason.POISON),
    (POISON, 0, "delete", "dead_letter", PLAIN, Action.DROP, None),
    (POISON, 0, "fail", "drop", PLAIN, Action.RETRY, None),
    (POISON, 2, "fail", "drop", PLAIN, Action.DROP, None),
    (POISON, 0, "fail", "drop", NATIVE, Action.NATIVE, None),
    (POISON, 0, "delete", "drop", ALWAYS, Action.DEAD_LETTER, DeadReason.POISON),
    (POISON, 0, "fail", "drop", ALWAYS, Action.DEAD_LETTER, DeadReason.POISON),
    (GATED, 0, "fail", "dead_letter", PLAIN, Action.DEAD_LETTER_RAW, None),
    (GATED, 9, "release", "dead_letter", PLAIN, Action.DEAD_LETTER_RAW, None),
    (GATED, 0, "dead_letter", "drop", NATIVE, Action.DEAD_LETTER_RAW, None),
    (GATED, 0, "delete", "dead_letter", PLAIN, Action.DROP, None),
    (GATED, 0, "fail", "drop", PLAIN, Action.DROP, None),
    (GATED, 0, "fail", "drop", NATIVE, Action.NATIVE, None),
]


@pytest.mark.parametrize(("event", "attempts", "strategy", "exhausted", "traits", "action", "reason"), ROWS)
def test_decision_table(event, attempts, strategy, exhausted, traits, action, reason) -> None:
    decision = decide(event, attempts, Policy(on_unknown_urn=strategy, on_exhausted=exhausted), traits)
    assert (decision.action, decision.reason) == (action, reason)
    if action in (Action.RETRY, Action.DEAD_LETTER):
        assert decision.attempts == attempts + 1


def test_nothing_is_dropped_unless_it_was_asked_for_by_name() -> None:
    events = [event for event in Event if event is not Event.HANDLED]
    for event, attempts, strategy in itertools.product(events, range(6), ("fail", "release", "dead_letter")):
        for traits in (PLAIN, NATIVE, ALWAYS):
            action = decide(event, attempts, Policy(on_unknown_urn=strategy), traits).action
            assert action not in (Action.DROP, Action.ACK, Action.NATIVE)


def test_a_failed_write_leaves_the_message_unsettled() -> None:
    for row in ROWS:
        event, attempts, strategy, exhausted, traits = row[:5]
        decision = decide(event, attempts, Policy(on_unknown_urn=strategy, on_exhausted=exhausted), traits)
        written = decision.action in (Action.RETRY, Action.DEAD_LETTER, Action.DEAD_LETTER_RAW)
        left = if_write_fails(decision)
        assert left.action is (Action.UNSETTLED if written else decision.action)


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"on_unknown_urn": "ignore"}, {"on_exhausted": "delete"}],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Policy(**options)


@pytest.mark.parametrize(
    "options", [{"base_s": -1}, {"max_s": math.nan}, {"multiplier": math.inf}, {"jitter": "half"}]
)
def test_a_backoff_that_makes_no_sense_is_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match="backoff"):
        Backoff(**options)


@pytest.mark.parametrize(
    ("backoff", "n", "delay_s"),
    [
        (Backoff(), 5, 0.0),
        (Backoff(0.5, 3), 3, 4.5),
        (Backoff(2, 10), 4, 2000.0),
        (Backoff(1, 2, 60), 7, 60.0),
        (Backoff(1, 2, 60), 10**6, 60.0),
    ],
)
def test_backoff(backoff: Backoff, n: int, delay_s: float) -> None:
    assert backoff.delay_s(n) == delay_s


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_full_jitter_stays_within_the_delay(n: int, drawn: float) -> None:
    plain, jittered = Backoff(1, 2, 60), Backoff(1, 2, 60, "full")
    assert jittered.delay_s(n, lambda: drawn) == drawn * plain.delay_s(n)


RULES = [
    ("body", None, 3, 9, {"bq-attempts": "7"}, 3),
    ("max", 0, 3, 5, {}, 5),
    ("max", 1, 3, 5, {}, 4),
    ("max", 1, 3, "2", {}, 3),
    ("max", 1, 3, "garbage", {}, 3),
    ("max", 1, 3, None, {}, 3),
    ("property", None, 3, 9, {"bq-attempts": "1"}, 1),
    ("property", None, 3, 9, {"bq-attempts": b"6"}, 6),
    ("property", None, 3, 9, {"bq-attempts": "-1"}, 3),
    ("property", None, 3, 9, {}, 3),
    ("property_max", 0, 3, 0, {"bq-attempts": "1"}, 1),
    ("property_max", 0, 3, 4, {"bq-attempts": "1"}, 4),
    ("property_max", 0, 3, 1, {"bq-attempts": "1_0"}, 3),
    ("body_or_property", None, 0, None, {"bq-attempts": 2}, 2),
    ("body_or_property", None, 3, None, {"bq-attempts": 2}, 3),
    ("body_or_property", 0, 1, 9, {"bq-attempts": "x"}, 1),
    ("body_or_property", None, 1, None, {}, 1),
]


@pytest.mark.parametrize(("rule", "base", "body", "native", "properties", "attempts"), RULES)
def test_reconciliation(rule, base, body, native, properties, attempts) -> None:
    traits = Traits(name="x", attempts=rule, count_base=base)
    assert reconcile(traits, body, native, properties) == attempts


@pytest.mark.parametrize(
    "text", ["", "-5", "+5", "1_0", " 1", "1 ", "٣", "1.0", "x", "9" * 11, str(2**31), True, 1.0, None]
)
def test_what_is_not_a_count(text: object) -> None:
    assert parse_count(text) is None


GATE = Traits(name="x", gate_property="bq-schema-version")


@pytest.mark.parametrize("value", [None, "", " \t\n", "1", b"1", 1])
def test_the_gate_lets_through(value: object) -> None:
    assert not gated(GATE, {"bq-schema-version": value})
    assert not gated(GATE, {})
    assert not gated(PLAIN, {"bq-schema-version": "2"})


@pytest.mark.parametrize(
    "value", ["2", "01", "x", " 1", "1 ", "\u00a0", "\ufeff1", 2, 0, 1.0, 1.5, True, [], b"2"]
)
def test_the_gate_stops(value: object) -> None:
    assert gated(GATE, {"bq-schema-version": value})


def test_dead_letter_queue_names() -> None:
    sqs = Traits(name="sqs", dlq_suffix="-dlq", kind_suffix=".fifo")
    assert dead_letter_queue("a.b", PLAIN) == "a.b.dlq"
    assert dead_letter_queue("orders", sqs) == "orders-dlq"
    assert dead_letter_queue("orders.fifo", sqs) == "orders-dlq.fifo"
    assert dead_letter_queue("orders.fifo", PLAIN) == "orders.fifo.dlq", "an ending of that broker alone"
    assert dead_letter_queue("orders", PLAIN, "graveyard") == "graveyard"
    for queue, traits in (("orders", PLAIN), ("orders", sqs), ("orders.fifo", sqs)):
        dead = dead_letter_queue(queue, traits)
        assert is_dead_letter_queue(dead, traits)
        assert not is_dead_letter_queue(queue, traits)
        assert original_queue(dead, traits) == queue
