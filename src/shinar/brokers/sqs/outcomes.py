"""What became of a batch request, entry by entry. No client, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shinar.brokers.sqs.client import has_lapsed, meaning
from shinar.errors import BrokerError


@dataclass(frozen=True, slots=True)
class SqsOutcome:
    """What became of one batch request; `chunk` holds indices into the caller's sequence."""

    chunk: list[int]
    #: Index -> why SQS refused that entry.
    refused: dict[int, dict[str, Any]]
    #: The request as a whole failed.
    error: BrokerError | None = None


def first_error(outcomes: Sequence[SqsOutcome], queue: str) -> BrokerError:
    for outcome in outcomes:
        if outcome.error is not None:
            return outcome.error
    for outcome in outcomes:
        for why in outcome.refused.values():
            if not has_lapsed(why):
                return meaning(str(why.get("Code", "")), str(why.get("Message", "")), queue)
    return BrokerError("SQS gave no reason", broker="sqs", queue=queue)
