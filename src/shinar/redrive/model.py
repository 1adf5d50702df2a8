"""What a redrive is asked to do, and what came of it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

#: Redrives of one message after which it is not sent back any more.
LOOP_LIMIT = 2


class Spec(msgspec.Struct, frozen=True):
    """The choices of a job, as they are kept in the ledger. No secret may be in here."""

    where: str = ""
    #: What happens to a dead letter for which `where` raises: fail, or skip it.
    where_errors: str = "fail"
    fingerprint: str = ""
    since_ms: int | None = None
    limit: int | None = None
    ids: tuple[str, ...] = ()
    #: Another queue; "" sends each message to the queue it came from.
    to_queue: str = ""
    bypass: bool = False
    rate_per_s: float = 0.0
    #: 0 never stops; 0.2 stops when a fifth of the last sends failed, or of what was sent is dead again.
    max_failure_ratio: float = 0.0
    include_poison: bool = False
    include_version: bool = False
    include_invalid: bool = False
    loop_limit: int = LOOP_LIMIT
    #: `data.field = expression`, in order.
    sets: tuple[str, ...] = ()
    #: module:function over `data`.
    patch: str = ""
    registry: str = ""
    #: Name of a repair for records that are nearly envelopes; see letters.repair.
    repair: str = ""

    @property
    def patches(self) -> bool:
        return bool(self.sets or self.patch)


class Receipt(msgspec.Struct, frozen=True):
    """selected = published + skipped + failed + left; a finished job has nothing left."""

    job: str
    state: str
    selected: int = 0
    published: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    #: Of the published ones: a crash hid whether an earlier copy had arrived.
    maybe_twice: int = 0
    bytes: int = 0
    why_skipped: dict[str, int] = {}
    why_failed: dict[str, int] = {}
    #: Kind of `why_skipped` -> one of its reasons in full.
    examples: dict[str, str] = {}
    #: Of the published ones: found dead again by a later redrive.
    died_again: int = 0

    @classmethod
    def of(cls, job: str, state: str, counts: Mapping[str, Mapping[str, int]], size: int) -> Receipt:
        total = {name: sum(per.values()) for name, per in counts.items()}
        sent = [counts.get(name, {}) for name in ("published", "acked")]
        return cls(
            job=job,
            state=state,
            selected=sum(total.values()),
            published=total.get("published", 0) + total.get("acked", 0),
            skipped=total.get("skipped", 0),
            failed=total.get("failed", 0),
            left=total.get("planned", 0) + total.get("intent", 0),
            maybe_twice=sum(per.get(MAYBE_TWICE, 0) for per in sent),
            bytes=size,
            why_skipped=_kinds(counts.get("skipped", {})),
            why_failed=dict(counts.get("failed", {})),
            examples={why.partition(":")[0]: why for why in sorted(counts.get("skipped", {}), reverse=True)},
        )

    @property
    def adds_up(self) -> bool:
        """Every selected message is accounted for, and nothing went wrong."""
        return self.left == 0 and self.failed == 0 and self.state != "paused"

    def as_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self) | {"adds_up": self.adds_up}


#: `why` of a published line whose earlier intent nobody could check.
MAYBE_TWICE = "maybe twice"


def _kinds(whys: Mapping[str, int]) -> dict[str, int]:
    """`schema: /data/x is missing` and `schema: /data/y …` are one kind here."""
    found: dict[str, int] = {}
    for why, count in whys.items():
        kind = why.partition(":")[0]
        found[kind] = found.get(kind, 0) + count
    return found
