"""Move or copy messages from one broker to another: confirmed on the target before the source is
acknowledged, with the target's own projection, and counts that add up.

Moving is resumable by itself: what was not acknowledged is still on the source. A crash between
the confirmation and the ack sends those messages again; consumers find them by `meta.id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from shinar.brokers import Broker, Delivery, Outgoing
from shinar.clock import SYSTEM, Clock

#: Messages taken, sent and acknowledged at once.
BATCH: Final = 500
#: More messages than this that the target can never take, and the bridge stops: it is the wrong target.
MOST_REFUSED: Final = 10_000


class Counts(msgspec.Struct, frozen=True):
    """received = sent + refused; nothing else can happen to a message here."""

    received: int = 0
    sent: int = 0
    #: The target can never take these (too large, not text); they stay on the source.
    refused: int = 0
    #: Sent, but the source's lease had ended: the source will hand them out again.
    lapsed: int = 0

    @property
    def adds_up(self) -> bool:
        return self.received == self.sent + self.refused


def bridge(
    source: Broker,
    source_queue: str,
    target: Broker,
    target_queue: str,
    *,
    copy: bool = False,
    limit: int | None = None,
    rate_per_s: float | None = None,
    progress: Callable[[int], None] = lambda _: None,
    clock: Clock = SYSTEM,
) -> Counts:
    """Move until the source is empty, or `limit`; with `copy` browse it and leave it as it is."""
    counts = Counts()
    held: list[Delivery] = []
    batches = _browsed(source, source_queue, limit) if copy else _reserved(source, source_queue, limit)
    started_s = clock.monotonic_s()
    for batch in batches:
        sendable = [d for d in batch if _fits(target, d)]
        refused = [d for d in batch if not _fits(target, d)]
        target.publish(target_queue, [_outgoing(d) for d in sendable])
        lapsed = 0 if copy else len(source.ack(sendable))
        held += refused  # kept until the end, or the source would hand them out again at once
        counts = Counts(
            counts.received + len(batch),
            counts.sent + len(sendable),
            counts.refused + len(refused),
            counts.lapsed + lapsed,
        )
        progress(len(batch))
        if rate_per_s:
            ahead_s = counts.sent / rate_per_s - (clock.monotonic_s() - started_s)
            if ahead_s > 0:
                clock.sleep(ahead_s)
        if len(held) > MOST_REFUSED:
            break
    if held and not copy:
        source.release(held)
    return counts


def _reserved(source: Broker, queue: str, limit: int | None) -> Iterator[list[Delivery]]:
    left = limit
    while left is None or left > 0:
        batch = source.reserve(queue, min(BATCH, left or BATCH), 2.0)
        if not batch:
            return
        left = None if left is None else left - len(batch)
        yield batch


def _browsed(source: Broker, queue: str, limit: int | None) -> Iterator[list[Delivery]]:
    batch: list[Delivery] = []
    for delivery in source.browse(queue, limit):
        batch.append(delivery)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _outgoing(delivery: Delivery) -> Outgoing:
    return Outgoing(delivery.body, delivery.headers, delivery.key)


def _fits(target: Broker, delivery: Delivery) -> bool:
    traits = target.traits
    if traits.max_body_bytes is not None and len(delivery.body) > traits.max_body_bytes:
        return False
    return traits.binary or _is_text(delivery.body)


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
