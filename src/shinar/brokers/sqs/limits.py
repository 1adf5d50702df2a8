"""What Amazon SQS allows: delays, visibility and names. Pure rules, no client."""

from __future__ import annotations

import math
from typing import Final

from shinar.errors import ContractError, Unsupported

#: Longest DelaySeconds of a message.
MAX_DELAY_SECONDS: Final = 900
#: Longest visibility timeout: twelve hours.
MAX_VISIBILITY_S: Final = 43_200
FIFO: Final = ".fifo"
#: SQS names hold no dots, so the `.dlq` of every other broker cannot be used.
DLQ_SUFFIX: Final = "-dlq"


def is_fifo(queue: str) -> bool:
    return queue.endswith(FIFO)


def publish_delay_s(fifo: bool, seconds: float) -> int:
    """DelaySeconds for a wished delay; 0 means "send none". Raises where SQS would cut it short."""
    whole_s = _whole(seconds)
    if whole_s and fifo:
        raise Unsupported(
            "sqs",
            "delay a single message of a FIFO queue",
            "set DelaySeconds on the queue, or use a standard one",
        )
    if whole_s > MAX_DELAY_SECONDS:
        raise Unsupported(
            "sqs",
            f"delay a message by {whole_s} s",
            f"the longest delay is {MAX_DELAY_SECONDS} s; keep it elsewhere until it is nearly due",
        )
    return whole_s


def release_visibility_s(seconds: float) -> int:
    """VisibilityTimeout that hands a message back after `seconds`; more than SQS holds becomes its most."""
    return min(_whole(seconds), MAX_VISIBILITY_S)


def _whole(seconds: float) -> int:
    # Rounded up: a message may come late, never early.
    if not 0 <= seconds < math.inf:
        raise ContractError(f"a delay of {seconds} s is not a finite number of seconds from 0 on")
    return math.ceil(seconds)
