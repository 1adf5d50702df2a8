"""What a redrive is asked to do, and what came of it. Values only: no broker, no ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from shinar.brokers.rows import ROWS
from shinar.brokers.url import BrokerUrl

#: Redrives of one message after which it is not sent back any more.
LOOP_LIMIT = 2
#: `why` of a published line whose earlier copy may have arrived too.
MAYBE_TWICE: Final = "maybe twice"
#: Kind of `why` of a letter that another redrive has claimed.
CLAIMED: Final = "claimed"
#: Kind of `why` of a letter that another redrive has sent back.
ALREADY: Final = "already sent"

#: URL options that decide which messages are meant; all others only say how they are read.
_PLACE_OPTIONS: Final = frozenset(
    {
        "access_key",
        "connection_string_env",
        "endpoint",
        "hash_tags",
        "layout",
        "prefix",
        "profile",
        "subscription",
    }
)


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
    #: Also send to a queue that the letter names and that its dead-letter queue's name does not.
    any_target: bool = False
    #: Where finished messages are looked up (idempotency store or lake), without its secrets.
    skip_succeeded: str = ""
    #: Name of a repair for records that are nearly envelopes; see letters.repair.
    repair: str = ""


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
    #: Of the skipped ones: another redrive has claimed them.
    claimed: int = 0

    @classmethod
    def of(cls, job: str, state: str, counts: Mapping[str, Mapping[str, int]], size: int) -> Receipt:
        total = {name: sum(per.values()) for name, per in counts.items()}
        sent = [counts.get(name, {}) for name in ("published", "acked")]
        why_skipped = _kinds(counts.get("skipped", {}))
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
            why_skipped=why_skipped,
            why_failed=dict(counts.get("failed", {})),
            examples={kind_of(why): why for why in sorted(counts.get("skipped", {}), reverse=True)},
            claimed=why_skipped.get(CLAIMED, 0),
        )

    @property
    def adds_up(self) -> bool:
        """Every selected message was sent by this job, or skipped for a reason of its own."""
        return self.left == 0 and self.failed == 0 and self.claimed == 0 and self.state != "paused"

    def as_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self) | {"adds_up": self.adds_up}


def kind_of(why: str) -> str:
    """`schema: /data/x is missing` and `schema: /data/y is missing` are one kind."""
    return why.partition(":")[0]


def endpoint(url: BrokerUrl) -> str:
    """Which messages a URL means, whoever asks and however: without user, secrets and queue, and without the
    options that only say how to read them (leases, consumer groups, sizes)."""
    server = url.netloc if "," in url.netloc else f"{url.host}:{url.port or url.usual_port}"
    kept = {name: value for name, value in sorted(url.options.items()) if name in _PLACE_OPTIONS}
    home = url.path or ROWS[url.scheme].home
    return f"{url.scheme}://{server}/{home.lstrip('/')}" + (f"?{urlencode(kept)}" if kept else "")


def _kinds(whys: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for why, count in whys.items():
        found[kind_of(why)] = found.get(kind_of(why), 0) + count
    return found
