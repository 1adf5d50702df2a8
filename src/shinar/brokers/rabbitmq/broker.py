"""RabbitMQ over AMQP 0-9-1: durable queues on the default exchange, every publish confirmed.
Connections and threads are in rabbitmq_link, publishing and consuming in their own modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pika
from pika import exceptions

from shinar.brokers.contract import NOTHING, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.projection import contract_properties, user_headers
from shinar.brokers.rabbitmq.connection import IoThread, Link
from shinar.brokers.rabbitmq.consumer import QueueConsumer, RabbitReceipt
from shinar.brokers.rabbitmq.errors import incomplete, translated
from shinar.brokers.rabbitmq.frames import Content, properties_of
from shinar.brokers.rabbitmq.properties import BROKER_HEADERS, as_it_came, piece
from shinar.brokers.rabbitmq.publisher import Incomplete, Piece, Publisher
from shinar.brokers.rabbitmq.topology import QueueType, declare, declare_delay_queue, delay_steps_ms
from shinar.brokers.tls import tls_context
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BrokerError, ConfigError, PublishFailed, Unsupported
from shinar.settlement.traits import Traits

OPTIONS: Final = frozenset(
    {
        "declare", "queue_type", "delay_type", "heartbeat_s", "timeout_s",
        "tls_ca", "tls_cert", "tls_key", "tls_verify",
    }
)  # fmt: skip

#: Longest delay: the broker keeps times in unsigned 32-bit milliseconds, and a delay queue must outlive it.
_TTL_LIMIT_S: Final = 4_000_000.0
#: A delay queue declared this recently need not be declared again, in seconds.
DELAY_QUEUE_FRESH_S: Final = 10.0
DELIVERY_COUNT: Final = "x-delivery-count"
#: Only deliveries of a stream have it; AMQP tells a queue's type in no other way.
STREAM_OFFSET: Final = "x-stream-offset"
#: AMQP writes it in 16 bits.
MAX_HEARTBEAT_S: Final = 65535
#: Contract properties that AMQP carries outside the header table.
NATIVE: Final = ("type", "correlation_id", "message_id", "app_id", "content_type")


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name="rabbitmq",
        max_delay_s=_TTL_LIMIT_S,
        attempts="body_or_property",
        attempts_property="x-attempts",
        count_base=0 if _queue_type(url) == "quorum" else None,
        release_to="front" if _queue_type(url) == "quorum" else "place",
        release_uncounted=_queue_type(url) == "classic",
        marks_redelivery=True,
        browse=False,
    )


def connect(url: BrokerUrl, clock: Clock) -> RabbitBroker:
    return RabbitBroker(url, clock)


def _queue_type(url: BrokerUrl, option: str = "queue_type", default: QueueType = "classic") -> QueueType:
    kinds: dict[str, QueueType] = {"classic": "classic", "quorum": "quorum"}
    kind = url.option(option, default)
    if kind not in kinds:
        raise ConfigError(f"{kind!r} is neither classic nor quorum", setting=f"?{option}=")
    return kinds[kind]


def _heartbeat_s(url: BrokerUrl) -> int:
    wanted = math.ceil(url.number("heartbeat_s", 30, least=0))
    if wanted > MAX_HEARTBEAT_S:
        raise ConfigError(f"is at most {MAX_HEARTBEAT_S}; 0 switches heartbeats off", setting="?heartbeat_s=")
    return wanted


def _parameters(url: BrokerUrl, timeout_s: float) -> pika.ConnectionParameters:
    host = url.host or "127.0.0.1"
    secure = None
    if url.scheme == "amqps":
        secure = pika.SSLOptions(tls_context(url), host)
    return pika.ConnectionParameters(
        host=host,
        port=url.port or url.usual_port,
        virtual_host=url.path or "/",
        credentials=pika.PlainCredentials(url.user or "guest", url.password or "guest"),
        heartbeat=_heartbeat_s(url),
        ssl_options=secure,
        socket_timeout=timeout_s,
        stack_timeout=timeout_s,
        blocked_connection_timeout=timeout_s,
        connection_attempts=1,
    )


class RabbitBroker:
    """Two connections, each opened on first use: the server stops reading from publishers when it
    is short of memory or disk, and acks must get through even then."""

    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self.traits = traits(url)
        self._clock = clock
        self._timeout_s = url.number("timeout_s", 30.0, least=0.1)
        self._parameters = _parameters(url, self._timeout_s)
        self._declares = url.flag("declare", True)
        self._arguments = {"x-queue-type": "quorum"} if _queue_type(url) == "quorum" else {}
        self._delay_type = _queue_type(url, "delay_type", "quorum")
        self._known: set[str] = set()
        #: Target and delay in ms -> the delay queue and when it was last declared (monotonic seconds).
        self._delay_queues: dict[tuple[str, int], tuple[str, float]] = {}
        self._io = IoThread()
        self._publisher: Publisher | None = None
        self._publish_link: Link | None = None
        self._consume_link: Link | None = None
        self._consumers: dict[str, QueueConsumer] = {}
        try:
            with translated(""):
                # The first connection proves address and password; its first user keeps it.
                self._spare: Link | None = self._new_link()
        except BrokerError:
            self._io.stop()
            raise

    # -- connections

    def _new_link(self) -> Link:
        return Link(self._io, self._parameters, self._timeout_s)

    def _link(self, current: Link | None) -> Link:
        if current is not None and current.lost is None:
            return current
        spare, self._spare = self._spare, None
        if current is not None:
            self._known.clear()
        return spare if spare is not None and spare.lost is None else self._new_link()

    def _producing(self) -> Publisher:
        self._publish_link = self._link(self._publish_link)
        if self._publisher is None or not self._publisher.usable:
            # An alarm must be told as one, so it is waited for longer than its own timeout.
            self._publisher = Publisher(self._publish_link, 2 * self._timeout_s)
        return self._publisher

    def _consuming(self, queue: str) -> QueueConsumer:
        self._consume_link = self._link(self._consume_link)
        found = self._consumers.get(queue)
        if found is None or found.ended is not None or found.cancelled:
            self._declare(self._consume_link, queue)
            found = self._consumers[queue] = QueueConsumer(self._consume_link, queue)
        return found

    # -- queues

    def _declare(self, link: Link, queue: str) -> None:
        if queue in self._known:
            return
        try:
            declare(link, queue, passive=True)
        except exceptions.ChannelClosedByBroker as exc:
            if exc.reply_code != 404 or not self._declares:
                raise
            declare(link, queue, arguments=self._arguments)
        self._known.add(queue)

    def _delay_queue(self, link: Link, queue: str, delay_s: float) -> str:
        longest_s = self.traits.max_delay_s
        if longest_s is not None and delay_s > longest_s:
            raise Unsupported(
                "rabbitmq", f"delay by {delay_s:g} s", f"the longest is {longest_s:g} s; send it later"
            )
        delay_ms = delay_steps_ms(delay_s)
        known = self._delay_queues.get((queue, delay_ms))
        now_s = self._clock.monotonic_s()
        if known is not None and now_s - known[1] <= DELAY_QUEUE_FRESH_S:
            return known[0]
        # Declaring again is what keeps it from expiring: publishing to it does not.
        name = declare_delay_queue(link, queue, delay_ms, self._delay_type)
        self._delay_queues[queue, delay_ms] = (name, now_s)
        return name

    # -- the contract

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        with translated(queue):
            self._send(queue, [(piece(message, queue), message.delay_s) for message in messages])

    def _send(self, queue: str, messages: Sequence[tuple[Piece, float]]) -> None:
        """All of them confirmed, in their order per delay."""
        if not messages:
            return
        publisher = self._producing()
        assert self._publish_link is not None
        self._declare(self._publish_link, queue)
        groups: dict[str, list[int]] = {}
        for index, (_, delay_s) in enumerate(messages):
            place = self._delay_queue(self._publish_link, queue, delay_s) if delay_s > 0 else queue
            groups.setdefault(place, []).append(index)
        pending = set(range(len(messages)))
        for place, indices in groups.items():
            try:
                publisher.publish(place, [messages[index][0] for index in indices])
            except Incomplete as exc:
                pending -= set(indices) - {indices[i] for i in (*exc.returned, *exc.refused, *exc.unknown)}
                if exc.returned:
                    self._known.discard(queue)
                    self._delay_queues = {k: v for k, v in self._delay_queues.items() if v[0] != place}
                raise incomplete(exc, queue, len(messages), tuple(sorted(pending))) from exc
            pending -= set(indices)

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        with translated(queue):
            consumer = self._consuming(queue)
            try:
                taken = consumer.take(limit, wait_s)
            except exceptions.ConsumerCancelled:
                self._known.discard(queue)
                raise
        now_ms = self._clock.epoch_ms()
        return [self._delivery(queue, consumer.life, found, now_ms) for found in taken]

    def _delivery(self, queue: str, life: str, content: Content, now_ms: int) -> Delivery:
        native, table = properties_of(content.properties)
        if STREAM_OFFSET in table:
            raise Unsupported("rabbitmq", f"consume the stream {queue}", "use a classic or a quorum queue")
        # Quorum queues leave the count out of a first delivery.
        count = table.get(DELIVERY_COUNT, self.traits.count_base)
        properties = contract_properties(table)
        headers: Mapping[str, str] = NOTHING
        if len(table) > len(properties):
            headers = user_headers({k: v for k, v in table.items() if not BROKER_HEADERS.match(k)})
        return Delivery(
            body=content.body,
            queue=queue,
            receipt=RabbitReceipt(life, content.tag),
            headers=headers,
            properties={name: native[name] for name in NATIVE if name in native} | properties,
            native_count=int(count) if isinstance(count, int) else None,
            redelivered=content.redelivered,
            received_ms=now_ms,
        )

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return self._settle(deliveries)

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        if delay_s <= 0:
            return self._settle(deliveries, requeue=True)
        held, lapsed = self._split(deliveries)
        for queue in {delivery.queue for delivery, _ in held}:
            part = [(d, (d.body, as_it_came(p)), delay_s) for d, p in held if d.queue == queue]
            lapsed += self._copy_then_ack(queue, part)
        return lapsed

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        held, lapsed = self._split([delivery for delivery, _ in copies])
        mine = {delivery.receipt for delivery, _ in held}
        kept = [(d, piece(copy, queue), copy.delay_s) for d, copy in copies if d.receipt in mine]
        return lapsed + self._copy_then_ack(queue, kept)

    def _copy_then_ack(self, queue: str, copies: Sequence[tuple[Delivery, Piece, float]]) -> Lapsed:
        """What was confirmed is settled even if the rest was not: its copy would come a second time."""
        unconfirmed: frozenset[int] = frozenset()
        failure: PublishFailed | None = None
        try:
            with translated(queue):
                self._send(queue, [(copy, delay_s) for _, copy, delay_s in copies])
        except PublishFailed as exc:
            failure, unconfirmed = exc, frozenset(exc.unconfirmed)
        lapsed = self._settle([d for index, (d, _, _) in enumerate(copies) if index not in unconfirmed])
        if failure is not None:
            raise failure
        return lapsed

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """A delivery is ours as long as the channel lives; there is nothing to renew."""
        return self._split(deliveries)[1]

    def _split(self, deliveries: Sequence[Delivery]) -> tuple[list[tuple[Delivery, bytes]], Lapsed]:
        held: list[tuple[Delivery, bytes]] = []
        lapsed: list[Delivery] = []
        for consumer, part in self._by_consumer(deliveries):
            still: dict[int, bytes] = {}
            if consumer is not None:
                try:
                    still = consumer.still_open(d.receipt.tag for d in part)
                except exceptions.AMQPError:
                    still = {}
            for delivery in part:
                properties = still.get(delivery.receipt.tag)
                if properties is None:
                    lapsed.append(delivery)
                else:
                    held.append((delivery, properties))
        return held, tuple(lapsed)

    def _settle(self, deliveries: Sequence[Delivery], *, requeue: bool = False) -> Lapsed:
        lapsed: list[Delivery] = []
        for consumer, part in self._by_consumer(deliveries):
            done: set[int] = set()
            if consumer is not None:
                try:
                    done = consumer.settle((d.receipt.tag for d in part), requeue=requeue)
                except exceptions.AMQPError:
                    # The connection is gone, and with it the right to settle: all of them lapsed.
                    done = set()
            lapsed += [delivery for delivery in part if delivery.receipt.tag not in done]
        return tuple(lapsed)

    def _by_consumer(
        self, deliveries: Sequence[Delivery]
    ) -> list[tuple[QueueConsumer | None, list[Delivery]]]:
        lives = {consumer.life: consumer for consumer in self._consumers.values() if consumer.ended is None}
        parts: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            parts.setdefault(delivery.receipt.life, []).append(delivery)
        return [(lives.get(life), part) for life, part in parts.items()]

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        raise Unsupported(
            "rabbitmq",
            "be read without consuming",
            "reserve and release instead, or look with the management console",
        )

    def depth(self, queue: str) -> Depth:
        with translated(queue):
            self._consume_link = self._link(self._consume_link)
            ready = declare(self._consume_link, queue, passive=True)
        mine = self._consumers.get(queue)
        return Depth(ready=ready + (len(mine.buffer) if mine else 0))

    def close(self) -> None:
        for link in (self._publish_link, self._consume_link, self._spare):
            if link is not None:
                link.close()
        self._io.stop()
