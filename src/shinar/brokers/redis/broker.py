"""Redis lists and sorted sets as queues, in both layouts of the contract (contract rules,
chapter 14). The queue's own mechanics are in `queue`, the sleeping in `wakeup`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shinar.brokers.contract import NOTHING, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.redis.errors import translated
from shinar.brokers.redis.frame import frame, unframe
from shinar.brokers.redis.keys import DEFAULT_PREFIX, DEFAULT_RETRY_AFTER_S, Layout
from shinar.brokers.redis.queue import (
    RedisQueue,
    RedisSettings,
    RedisStep,
    RedisWrite,
    Reservation,
    open_queue,
)
from shinar.brokers.redis.wakeup import QueueWatch
from shinar.brokers.tls import tls_context
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BodyTooLarge, ConfigError, Unsupported
from shinar.settlement.traits import Traits

log = logging.getLogger(__name__)

RECEIPT: Final = Reservation
OPTIONS: Final = frozenset(
    {
        "layout", "laravel", "prefix", "retry_after", "lease_s", "adopt_s", "adopt_counts", "headers",
        "migration_batch_size", "hash_tags", "cluster", "timeout_s", "tls_ca", "tls_cert", "tls_key",
        "tls_verify",
    }
)  # fmt: skip

#: Redis's own limit for one string.
MAX_BODY_BYTES: Final = 512 * 1024 * 1024
#: Longest sleep before due entries are looked for again, in seconds.
WAIT_SLICE_S: Final = 1.0
#: Shortest one, so that a clock a little behind the server's does not make us spin.
WAIT_LEAST_S: Final = 0.005
#: Pause when all that is ready waits for an identical twin to be settled.
TWIN_PAUSE_S: Final = 0.1
#: The only header that must not be dropped: without it a redrive repeats side effects.
BYPASS_HEADER: Final = "bq-replay-bypass"

_T = TypeVar("_T")


def settings(url: BrokerUrl) -> RedisSettings:
    layout = url.option("layout", "laravel" if url.flag("laravel") else "processing")
    layouts: dict[str, Layout] = {"processing": "processing", "legacy": "processing", "laravel": "laravel"}
    if layout not in layouts:
        raise ConfigError(f"{layout!r} is neither processing nor laravel", setting="?layout=")
    batch = int(url.number("migration_batch_size", -1, least=-1))
    if batch == 0:
        raise ConfigError("must be -1 (all) or at least 1", setting="?migration_batch_size=")
    # Other SDKs call it retry_after, every other broker here lease_s.
    name = "lease_s" if "lease_s" in url.options else "retry_after"
    never = url.option(name).lower() in ("none", "null")
    adopt_s = url.number("adopt_s", 0.0)
    if adopt_s and layouts[layout] == "laravel":
        raise ConfigError(
            "is for the processing layout; Laravel's has deadlines for all", setting="?adopt_s="
        )
    if url.flag("adopt_counts") and not adopt_s:
        raise ConfigError("counts what ?adopt_s= brings back; set that too", setting="?adopt_counts=")
    return RedisSettings(
        layout=layouts[layout],
        # With none at all the same message would go to everybody who asks.
        retry_after_s=None if never else url.number(name, DEFAULT_RETRY_AFTER_S, least=0.001),
        migration_batch_size=batch,
        prefix=url.option("prefix", DEFAULT_PREFIX),
        hash_tags=url.flag("hash_tags") or url.flag("cluster"),
        adopt_s=adopt_s or None,
        adopt_counts=url.flag("adopt_counts"),
        headers=layouts[layout] == "processing" and url.flag("headers", True),
    )


def traits(url: BrokerUrl) -> Traits:
    chosen = settings(url)
    return Traits(
        name="redis",
        headers=chosen.headers,
        max_body_bytes=MAX_BODY_BYTES,
        lease_s=chosen.retry_after_s,
        lapse_counts=chosen.layout == "laravel",
        lasting_lease=True,
        portable_receipts=True,
        atomic_move=not chosen.hash_tags,
        release_to="back",
        release_uncounted=True,
        poison_without_dlq="dead_letter",
    )


def connect(url: BrokerUrl, clock: Clock) -> RedisBroker:
    chosen = settings(url)
    client = _client(url)
    with translated(""):
        client.ping()
    return RedisBroker(client, traits(url), chosen, clock)


def _client(url: BrokerUrl) -> redis.Redis:
    options: dict[str, Any] = {
        "host": url.host or "127.0.0.1",
        "port": url.port or url.usual_port,
        "username": url.user or None,
        "password": url.password or None,
        "socket_timeout": url.number("timeout_s", 10.0, least=0.1),
        "socket_connect_timeout": url.number("timeout_s", 5.0, least=0.1),
        "socket_keepalive": True,
        # Never retried by the client: a push whose answer was lost may have arrived.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
    }
    if url.scheme == "rediss":
        tls_context(url)  # a file that cannot be read is told here, as what it is
        verify = url.flag("tls_verify", True)
        options |= {
            "ssl": True,
            "ssl_ca_certs": url.option("tls_ca") or None,
            "ssl_certfile": url.option("tls_cert") or None,
            "ssl_keyfile": url.option("tls_key") or None,
            "ssl_cert_reqs": "required" if verify else "none",
            "ssl_check_hostname": verify,
        }
    if url.flag("cluster"):
        if int(url.path or 0):
            raise ConfigError(
                f"a cluster has database 0 only; leave /{url.path} out of the URL", setting="?cluster="
            )
        with translated(""):
            return redis.RedisCluster(**options)  # type: ignore[return-value]  # same commands
    return redis.Redis(db=int(url.path or 0), **options)


class RedisBroker:
    def __init__(self, client: redis.Redis, traits: Traits, settings: RedisSettings, clock: Clock) -> None:
        self.traits = traits
        self._client = client
        self._settings = settings
        self._clock = clock
        self._watch = QueueWatch(client, clock)
        self._queues: dict[str, RedisQueue] = {}
        #: Queues whose `:processing` list was looked at for messages without a deadline.
        self._hinted: set[str] = set()

    def _queue(self, name: str) -> RedisQueue:
        if name not in self._queues:
            opened = open_queue(self._client, name, self._clock, self._settings)
            if self._settings.hash_tags and not _tag(opened.keys.ready):
                raise Unsupported(
                    "redis with hash tags",
                    f"keep the queue {name!r} in one slot",
                    "give it a name, and write braces as in {shop}:orders or not at all",
                )
            self._queues[name] = opened
        return self._queues[name]

    def _write(self, queue: str, message: Outgoing, *, framed: bool = False) -> RedisWrite:
        """`framed`: the original came in a frame, so whoever reads this queue can read one."""
        if len(message.body) > MAX_BODY_BYTES:
            raise BodyTooLarge(len(message.body), MAX_BODY_BYTES, broker="redis", queue=queue)
        delay_s = message.delay_s if message.delay_s > 0 else None
        if self.traits.headers or framed:
            return RedisWrite(frame(message.body, message.headers), delay_s)
        if BYPASS_HEADER in message.headers:
            raise Unsupported(
                "redis in the laravel layout, or with ?headers=off,",
                f"carry the header {BYPASS_HEADER}",
                "redrive without the bypass, or use the processing layout with headers",
            )
        return RedisWrite(message.body, delay_s)

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        writes = [self._write(queue, message) for message in messages]
        if not writes:
            return
        with translated(queue):
            if any(write.delay_s is not None for write in writes):
                self._queue(queue).settle([(None, write) for write in writes])
            else:
                self._queue(queue).push([write.value for write in writes])

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        source = self._queue(queue)
        with translated(queue):
            self._hint_once(source)
        end_s = self._clock.monotonic_s() + wait_s
        with translated(queue):
            while True:
                batch = source.reserve(limit)
                left_s = end_s - self._clock.monotonic_s()
                if batch.reservations or left_s <= 0:
                    now_ms = self._clock.epoch_ms()
                    return [self._delivery(queue, found, now_ms) for found in batch.reservations]
                pause_s = min(left_s, WAIT_SLICE_S)
                if batch.next_due_s is not None:
                    pause_s = min(pause_s, max(batch.next_due_s - self._clock.epoch_s(), WAIT_LEAST_S))
                if batch.put_back:
                    self._clock.sleep(min(pause_s, TWIN_PAUSE_S))
                else:
                    until_s = self._clock.epoch_s() + pause_s
                    if batch.next_due_s is not None:
                        until_s = min(until_s, batch.next_due_s)
                    self._watch.wait(source.keys, pause_s, until_s)

    def _hint_once(self, source: RedisQueue) -> None:
        """Messages that nothing will ever bring back are worth one line in the log."""
        if source.name in self._hinted or self._settings.adopt_s is not None:
            return
        self._hinted.add(source.name)
        stuck = source.held_without_deadline()
        if stuck:
            log.warning(
                "%s: %d messages in %s have no deadline. A consumer that writes none (InitPHP/Queue, or "
                "the Node, Go or Java SDK) is handling them, failed on them, or has died. Set ?adopt_s= to "
                "a time longer than its longest handler: Shinar then returns them to the queue",
                source.name,
                stuck,
                source.keys.reserved,
            )

    def _delivery(self, queue: str, reservation: Reservation, now_ms: int) -> Delivery:
        body, headers = self._unframed(reservation.raw)
        return Delivery(
            body=body,
            queue=queue,
            receipt=reservation,
            headers=headers,
            refused="" if reservation.counted else "its attempts cannot be counted",
            received_ms=now_ms,
            lease_until_ms=None if reservation.lapses_s is None else reservation.lapses_s * 1000,
        )

    def _unframed(self, value: bytes) -> tuple[bytes, Mapping[str, str]]:
        """Frames are read whatever ?headers= says: others may write them. Laravel's layout has none."""
        return (value, NOTHING) if self._settings.layout == "laravel" else unframe(value)

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return self._settle([(delivery, None) for delivery in deliveries])

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        delay = delay_s if delay_s > 0 else None
        return self._settle([(delivery, RedisWrite(delivery.receipt.raw, delay)) for delivery in deliveries])

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        target = self._queue(queue)
        writes = [
            (delivery, self._write(queue, copy, framed=bool(delivery.headers))) for delivery, copy in copies
        ]
        return self._settle(writes, target)

    def _settle(
        self, steps: Sequence[tuple[Delivery, RedisWrite | None]], target: RedisQueue | None = None
    ) -> Lapsed:
        def settle(source: RedisQueue, part: Sequence[tuple[Delivery, RedisWrite | None]]) -> list[bool]:
            ready: list[RedisStep] = [(delivery.receipt, write) for delivery, write in part]
            if target is not None and self._settings.hash_tags and not _one_slot(source, target):
                return _move_in_two(source, ready, target)
            return source.settle(ready, target)

        return self._each_queue(list(steps), lambda step: step[0], settle)

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        def extend(source: RedisQueue, part: Sequence[Delivery]) -> list[bool]:
            return source.extend([delivery.receipt for delivery in part], lease_s)

        return self._each_queue(deliveries, lambda delivery: delivery, extend)

    def _each_queue(
        self,
        items: Sequence[_T],
        delivery_of: Callable[[_T], Delivery],
        act: Callable[[RedisQueue, Sequence[_T]], list[bool]],
    ) -> Lapsed:
        """One round trip per source queue, nearly always one."""
        parts: dict[str, list[_T]] = {}
        for item in items:
            parts.setdefault(delivery_of(item).queue, []).append(item)
        lapsed: list[Delivery] = []
        for name, part in parts.items():
            with translated(name):
                held = act(self._queue(name), part)
            lapsed += [delivery_of(item) for item, kept in zip(part, held, strict=True) if not kept]
        return tuple(lapsed)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        """What the next reserve would find, page by page: what is consumed meanwhile shifts the pages."""
        with translated(queue):
            for at, raw in enumerate(islice(self._queue(queue).browse(), limit)):
                body, headers = self._unframed(raw)
                yield Delivery(body=body, queue=queue, headers=headers, position=str(at))

    def depth(self, queue: str) -> Depth:
        with translated(queue):
            ready, reserved, delayed = self._queue(queue).depth()
        return Depth(ready=ready, reserved=reserved, delayed=delayed)

    def close(self) -> None:
        self._watch.close()
        self._client.close()


def _tag(key: str) -> str:
    """What Redis hashes instead of the whole key; "" when it hashes that."""
    inner, closed, _ = key.partition("{")[2].partition("}")
    return inner if closed else ""


def _one_slot(source: RedisQueue, target: RedisQueue) -> bool:
    return _tag(source.keys.ready) == _tag(target.keys.ready)


def _move_in_two(source: RedisQueue, steps: Sequence[RedisStep], target: RedisQueue) -> list[bool]:
    """Cluster slots share no script: write the copies of what is still held, then settle."""
    held = source.extend([reservation for reservation, _ in steps if reservation], None)
    kept = [step for step, is_held in zip(steps, held, strict=True) if is_held]
    if kept:
        target.settle([(None, write) for _, write in kept])
        settled = iter(source.settle([(reservation, None) for reservation, _ in kept]))
        return [is_held and next(settled) for is_held in held]
    return held
