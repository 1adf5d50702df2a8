from __future__ import annotations

import math

import pytest

from shinar.brokers.sqs.limits import DLQ_SUFFIX, FIFO, publish_delay_s, release_visibility_s
from shinar.errors import ContractError, Unsupported, UsageError
from shinar.settlement.names import dead_letter_queue
from shinar.settlement.traits import Traits


@pytest.mark.parametrize(("asked", "sent"), [(0, 0), (1, 1), (900, 900), (0.2, 1), (29.5, 30)])
def test_a_delay_is_sent_in_whole_seconds_and_never_shorter(asked, sent):
    assert publish_delay_s(False, asked) == sent


@pytest.mark.parametrize("asked", [900.5, 901, 86_400])
def test_a_delay_sqs_would_cut_short_is_refused(asked):
    with pytest.raises(Unsupported, match="900"):
        publish_delay_s(False, asked)


def test_fifo_takes_no_delay_of_a_single_message():
    assert publish_delay_s(True, 0) == 0
    with pytest.raises(Unsupported, match="FIFO"):
        publish_delay_s(True, 1)


@pytest.mark.parametrize("asked", [-1, math.inf, math.nan, -math.inf])
@pytest.mark.parametrize("rule", [lambda s: publish_delay_s(False, s), release_visibility_s])
def test_what_is_no_time_is_refused(rule, asked):
    with pytest.raises(ContractError):
        rule(asked)
    assert issubclass(ContractError, UsageError)


@pytest.mark.parametrize(
    ("asked", "hidden"), [(0, 0), (30, 30), (43_200, 43_200), (43_201, 43_200), (0.1, 1)]
)
def test_a_release_hides_up_to_twelve_hours(asked, hidden):
    assert release_visibility_s(asked) == hidden


@pytest.mark.parametrize(
    ("queue", "name"),
    [("orders", "orders-dlq"), ("orders.fifo", "orders-dlq.fifo"), ("a-b_c", "a-b_c-dlq")],
)
def test_dead_letter_names_have_no_dot(queue, name):
    assert dead_letter_queue(queue, Traits(name="sqs", dlq_suffix=DLQ_SUFFIX, kind_suffix=FIFO)) == name
