"""The one contract every broker fulfils: batch first, blocking, bytes in and out.

A broker object belongs to one thread at a time; the worker and the pipeline open one each.
No rule of the envelope lives here: a broker moves bytes, and says what it knows about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from shinar.settlement.traits import Traits

#: No headers, no properties. A plain dict, so that deliveries pickle; never written to.
NOTHING: Mapping[str, Any] = {}


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What a projection needs of an envelope. Odd or missing values are None and are left out."""

    urn: str | None = None
    trace_id: str | None = None
    id: str | None = None
    lang: str | None = None
    schema_version: int | None = None
    created_at: int | None = None
    attempts: int | None = None


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to publish: the envelope's bytes and what travels beside them."""

    body: bytes
    #: Out-of-band headers (traceparent, bq-replay-bypass, the user's own). Contract names are not in here.
    headers: Mapping[str, str] = {}
    #: Ordering key: a record's key, a message group, a session.
    key: bytes | None = None
    delay_s: float = 0.0
    #: Given by whoever has the envelope decoded; otherwise the broker derives it from the body.
    facts: Facts | None = None
    #: Where the copy comes from (queue and position or receipt of the original), so that a broker that
    #: drops repeated ids within a window takes it for the new message it is; empty: the id alone counts.
    origin: str = ""


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message handed out under a lease, or seen by `browse` (then without a receipt)."""

    body: bytes
    queue: str
    #: Opaque: what this broker needs to settle the message. None when it was only browsed.
    receipt: Any = None
    headers: Mapping[str, str] = {}
    #: The contract's own properties (bq-*) under their native names and in their native types.
    properties: Mapping[str, Any] = {}
    key: bytes | None = None
    #: The broker's delivery count as its client reports it; see Traits.count_base.
    native_count: int | None = None
    received_ms: int = 0
    #: When the lease ends (epoch ms); None when it lasts as long as the connection.
    lease_until_ms: int | None = None
    #: Where the message is or was, in the broker's own terms: offset, sequence number, message id.
    position: str = ""
    #: Why this broker's binding calls the body poison whatever it holds; "" when it does not.
    refused: str = ""
    #: The broker says that it has handed this out before; None where it does not say, or counts instead.
    redelivered: bool | None = None


class Depth(msgspec.Struct, frozen=True):
    """What the broker really knows of a queue. None is "unknown", never 0."""

    ready: int | None = None
    reserved: int | None = None
    delayed: int | None = None
    oldest_age_s: float | None = None


#: Deliveries whose lease had ended before the call: the broker has handed them, or will hand
#: them, to somebody else. Empty when everything was settled.
Lapsed = tuple[Delivery, ...]


@runtime_checkable
class Broker(Protocol):
    @property
    def traits(self) -> Traits: ...

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """Return once the broker confirmed every one. Otherwise raise PublishFailed, which says
        which were not, or BrokerUnavailable when none can be vouched for."""

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` deliveries; wait at most `wait_s` for the first, without a spin."""

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        """Done with these. Idempotent per delivery."""

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        """Hand back for redelivery, bytes and headers as they came.

        `count=False` is for a message that nobody began to handle: it goes back as if it had never been
        handed out, and the broker's own delivery count is the one from before. A broker that cannot take
        its count back (Traits.release_uncounted is False) releases as with `count=True`."""

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        """Publish each copy to `queue`, confirmed, and only then settle its delivery; in one step
        where Traits.atomic_move. Serves counted retries, dead letters and redrives. The copy of a
        lapsed delivery is not published where the broker can tell beforehand."""

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """Let the leases end `lease_s` from now. Where there is nothing to renew it is the cheap way to ask
        which deliveries are still ours: those of a connection that was lost are returned as lapsed."""

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        """Read without consuming, oldest first, in flat memory. Raises Unsupported where the
        broker cannot (Traits.browse)."""

    def depth(self, queue: str) -> Depth: ...

    def close(self) -> None:
        """Give back what is reserved, as far as closing the connection does, and hang up."""
