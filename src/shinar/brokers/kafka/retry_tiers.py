"""Kafka's retry tiers as pure functions (contract rules, chapter 16): which topic, which headers, when due.

Kafka cannot hold a record back, so a delayed one is parked on `<work>.retry.<n>` and written back
by a re-injector once its time has come. Nothing here knows a client, a clock or an envelope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shinar.errors import ContractError

#: 5 s, 30 s, 5 min, 30 min: the tiers every SDK of the contract recommends.
DEFAULT_TIERS_MS: Final = (5_000, 30_000, 300_000, 1_800_000)

#: Milliseconds a parked record waits; dropped when it is written back.
DELAY_HEADER: Final = "bq-delay"
#: Topic a parked record goes back to; dropped when it is written back.
ORIGINAL_TOPIC_HEADER: Final = "bq-original-topic"
ATTEMPTS_HEADER: Final = "bq-attempts"

_MARK: Final = ".retry."

#: Header name -> text; a caller writes it as UTF-8.
TierHeaders = dict[str, str]


def check_tiers(tiers_ms: Sequence[int]) -> tuple[int, ...]:
    """The tiers as given, or ContractError: positive whole milliseconds, strictly ascending."""
    previous = 0
    for tier_ms in tiers_ms:
        if isinstance(tier_ms, bool) or not isinstance(tier_ms, int) or tier_ms <= previous:
            raise ContractError(
                f"retry tiers must be positive whole milliseconds in strictly ascending order, "
                f"not {list(tiers_ms)!r}"
            )
        previous = tier_ms
    return tuple(tiers_ms)


def retry_topic(work: str, n: int) -> str:
    """`n` counts tiers from 1; it is never a delay."""
    return f"{work}{_MARK}{n}"


def work_topic(topic: str) -> tuple[str, int] | None:
    """The reverse: (work topic, n) of a tier's topic; None for any other topic."""
    work, mark, digits = topic.rpartition(_MARK)
    if not (work and mark and digits.isascii() and digits.isdecimal()) or digits.startswith("0"):
        return None
    return work, int(digits)


def delay_record(work: str, tiers_ms: Sequence[int], delay_ms: int) -> tuple[str, TierHeaders]:
    """Where a record waits that must not arrive before `delay_ms`: the smallest tier that covers it."""
    if not tiers_ms:
        raise ContractError("a delay on Kafka needs retry tiers; set ?retry_tiers_ms=5000,30000")
    if delay_ms < 0:
        raise ContractError(f"a delay cannot be negative ({delay_ms} ms)")
    for n, tier_ms in enumerate(tiers_ms, start=1):
        if tier_ms >= delay_ms:
            return retry_topic(work, n), {DELAY_HEADER: str(delay_ms), ORIGINAL_TOPIC_HEADER: work}
    raise ContractError(
        f"a delay of {delay_ms} ms is longer than the last retry tier ({tiers_ms[-1]} ms); "
        "add a longer tier to ?retry_tiers_ms="
    )


def retry_record(work: str, tiers_ms: Sequence[int], attempts: int) -> tuple[str, TierHeaders, int]:
    """Where a failed record waits, given its attempts before this failure; also the new attempts."""
    if not tiers_ms:
        raise ContractError("a retry on Kafka needs retry tiers; set ?retry_tiers_ms=5000,30000")
    n = min(max(attempts, 0), len(tiers_ms) - 1) + 1
    counted = attempts + 1
    headers = {
        ATTEMPTS_HEADER: str(counted),
        DELAY_HEADER: str(tiers_ms[n - 1]),
        ORIGINAL_TOPIC_HEADER: work,
    }
    return retry_topic(work, n), headers, counted


def due_ms(record_ms: int | None, wait_ms: int, now_ms: int) -> int:
    """When a parked record is due. A producer's clock that runs ahead, behind or not at all can
    neither hold it longer than its wait from now nor release it in the past."""
    if record_ms is None or record_ms < 0:
        return now_ms + wait_ms
    return min(max(record_ms + wait_ms, now_ms), now_ms + wait_ms)


def wait_ms(tiers_ms: Sequence[int], n: int, header: str | None) -> int:
    """How long a record parked on tier `n` waits: what its header asks for, never more than the
    tier, so that nobody queued behind it is held up longer than the tier promises."""
    tier_ms = tiers_ms[n - 1] if 0 < n <= len(tiers_ms) else None
    asked_ms = (
        int(header) if header and header.isascii() and header.isdecimal() and len(header) < 16 else None
    )
    if asked_ms is None:
        return tier_ms or 0
    return asked_ms if tier_ms is None else min(asked_ms, tier_ms)
