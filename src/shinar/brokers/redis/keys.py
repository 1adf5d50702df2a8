"""Redis queues as names and numbers: which keys a queue has, and which scores its entries get
(contract rules, chapter 14). Pure: no client, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

#: processing   `<q>` and `<q>:processing` lists with a set of deadlines; the contract's default
#: laravel      ready list and sorted sets of Laravel's own Redis queue
Layout = Literal["processing", "laravel"]

DEFAULT_PREFIX: Final = "queues:"
#: Seconds after which a silent worker's message goes to another one.
DEFAULT_RETRY_AFTER_S: Final = 90.0
DLQ_SUFFIX: Final = ".dlq"
#: A deadline that never passes, in Redis's own spelling.
NEVER: Final = "+inf"


@dataclass(frozen=True, slots=True)
class Keys:
    ready: str
    #: Members wait here until their score. The contract has none in the processing layout; other
    #: libraries keep theirs under the same key, so a member is the bare value there too.
    delayed: str
    #: Messages handed out: a sorted set (laravel) or a list (processing).
    reserved: str
    #: Wake-up tokens; "" in the processing layout.
    notify: str
    #: When each reservation lapses; "" in the laravel layout, where `reserved` has the scores.
    deadlines: str
    #: Delayed values that an equal one in `delayed` keeps out; "" in the laravel layout.
    twins: str = ""


def keys(queue: str, layout: Layout, prefix: str = DEFAULT_PREFIX, *, hash_tag: bool = False) -> Keys:
    name = _tagged(queue) if hash_tag else queue
    if layout == "laravel":
        ready = prefix + name
        return Keys(ready, f"{ready}:delayed", f"{ready}:reserved", f"{ready}:notify", "")
    return Keys(
        name,
        f"{name}:delayed",
        f"{name}:processing",
        "",
        f"{name}:processing:deadlines",
        f"{name}:delayed:twins",
    )


def _tagged(queue: str) -> str:
    """Braces put all keys of a queue, and of its dead-letter queue, into one Cluster slot."""
    if "{" in queue:
        return queue
    stem = queue.removesuffix(DLQ_SUFFIX)
    return f"{{{stem}}}{queue[len(stem) :]}"


def delayed_score(now_s: float, delay_s: float) -> int:
    return math.floor(now_s) + math.ceil(max(delay_s, 0.0))


def deadline_score(now_s: float, retry_after_s: float | None) -> int | None:
    """None when the reservation never lapses."""
    return None if retry_after_s is None else math.floor(now_s) + math.ceil(retry_after_s)


def score_text(score: float | None) -> str:
    return NEVER if score is None else repr(score)
