"""What becomes of a delivery: pure decisions and tables. No I/O; brokers and workers obey."""

from shinar.settlement.attempts import (
    counts_deliveries,
    delivered_too_often,
    deliveries_before,
    parse_count,
    reconcile,
)
from shinar.settlement.decide import ACKED, Action, Event, Settlement, decide, if_write_fails
from shinar.settlement.gate import gated, speaks
from shinar.settlement.names import dead_letter_queue, is_dead_letter_queue, original_queue
from shinar.settlement.policy import DEFAULT_POLICY, Backoff, Policy
from shinar.settlement.refusal import refuses_message
from shinar.settlement.traits import Traits

__all__ = [
    "ACKED",
    "DEFAULT_POLICY",
    "Action",
    "Backoff",
    "Event",
    "Policy",
    "Settlement",
    "Traits",
    "counts_deliveries",
    "dead_letter_queue",
    "decide",
    "delivered_too_often",
    "deliveries_before",
    "gated",
    "if_write_fails",
    "is_dead_letter_queue",
    "original_queue",
    "parse_count",
    "reconcile",
    "refuses_message",
    "speaks",
]
