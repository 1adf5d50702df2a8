"""What ends a delivery: ack, release, extend, move; and a plain client's re-queue and dead letter.

Every function takes receipts out of their leases first, so that whatever happens to a message happens
once. They return the receipts that were not held any more. Nothing is durable before the next tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shinar.phpmq.protocol.extension import Copy, Held, Item
from shinar.phpmq.server import upkeep
from shinar.phpmq.server.engine import Engine
from shinar.phpmq.server.queue import Consumer, Queue
from shinar.phpmq.store import Entry


def ack(engine: Engine, held: Iterable[Held]) -> list[Held]:
    """Done with these. A second ack of the same receipt is not called lapsed."""
    lapsed: list[Held] = []
    for part in held:
        lease, taken, missing = engine.leases.claim(part.token, part.keys)
        if lease is not None and taken:
            engine.forget(lease.queue, taken)
            engine.leases.remember_settled(part.token, taken)
            lease.queue.row.acked += len(taken)
            engine.totals.acked += len(taken)
        if missing:
            missing = engine.leases.not_settled(part.token, missing)
            lapsed.extend([Held(part.token, missing)] if missing else [])
    return lapsed


def release(engine: Engine, held: Iterable[Held], delay_ms: int) -> list[Held]:
    """Back to their places, or with a delay to the end of their queue when it is over."""
    lapsed: list[Held] = []
    for part in held:
        lease, taken, missing = engine.leases.claim(part.token, part.keys)
        if lease is not None and taken:
            engine.totals.released += len(taken)
            if delay_ms:
                _put_off(engine, lease.queue, taken, delay_ms)
            else:
                engine.give_back(lease.queue, taken)
        lapsed.extend([Held(part.token, missing)] if missing else [])
    return lapsed


def extend(engine: Engine, held: Iterable[Held], lease_s: float) -> list[Held]:
    until_s = engine.clock.monotonic_s() + lease_s
    missing = [(part.token, engine.leases.extend(part.token, part.keys, until_s)) for part in held]
    return [Held(token, keys) for token, keys in missing if keys]


def move(engine: Engine, name: str, copies: Sequence[Copy], create: bool = True) -> list[Held]:
    """Publish each copy and forget its original, in one transaction."""
    engine.check([copy.item for copy in copies])
    target = engine.queue(name, create)
    lapsed: list[Held] = []
    items: list[Item] = []
    sources: dict[Queue, dict[int, int]] = {}
    for copy in copies:
        lease, taken, _ = engine.leases.claim(copy.token, (copy.key,))
        if lease is None or not taken:
            lapsed.append(Held(copy.token, [copy.key]))
            continue
        sources.setdefault(lease.queue, {}).update(taken)
        items.append(copy.item)
    if items:
        engine.add(target, items)
        target.row.published += len(items)
        engine.totals.moved += len(items)
    for queue, taken in sources.items():
        engine.forget(queue, taken)
    return lapsed


def requeue(engine: Engine, consumer: Consumer, key: int, ttl_s: int) -> bool:
    """To the end of its queue with a new TTL; False when this consumer does not hold it."""
    entry = _taken(engine, consumer, key)
    if entry is None:
        return False
    queue = consumer.queue
    engine.store.delete([key], counted=True)
    engine.gone(queue, 1)
    extra = None if entry[2] is None else bytes(entry[2])
    expires_ms = engine.clock.epoch_ms() + ttl_s * 1000 if ttl_s else 0
    new, count = queue.row.next, entry[5]
    engine.counts.append((new, count))
    row = (new, entry[1], extra, entry[3], expires_ms)
    engine.insert(queue, [row], [(new, entry[1], entry[2], entry[3], expires_ms, count)])
    engine.totals.released += 1
    return True


def dead_letter(engine: Engine, consumer: Consumer, key: int) -> bool:
    """To the queue's dead letters; False when this consumer does not hold it."""
    entry = _taken(engine, consumer, key)
    if entry is None:
        return False
    upkeep.bury(engine, consumer.queue, entry, upkeep.DEAD)
    consumer.queue.inflight -= 1
    consumer.queue.row.dead += 1
    engine.totals.dead += 1
    engine.freed(consumer.queue)
    return True


def _taken(engine: Engine, consumer: Consumer, key: int) -> Entry | None:
    """A message out of its consumer's hands, with this delivery counted."""
    _, taken, _ = engine.leases.claim(consumer.held.get(key, 0), (key,))
    return engine.store.get(key, taken[key] + 1) if taken else None


def _put_off(engine: Engine, queue: Queue, taken: dict[int, int], delay_ms: int) -> None:
    due_ms = engine.clock.epoch_ms() + delay_ms
    rows: list[tuple[object, ...]] = []
    for key, count in taken.items():
        entry = engine.store.get(key, count + 1)
        if entry is not None:
            extra = None if entry[2] is None else bytes(entry[2])
            rows.append((due_ms, queue.row.id, entry[1], extra, entry[3], entry[4], count + 1))
    engine.store.delete(list(taken), counted=True)
    engine.gone(queue, len(taken))
    engine.delay(queue, rows)
