"""Pulsar: a queue is a topic with one durable, shared subscription.

Pulsar drops what no subscription waits for, so publishing makes the subscription too. Batching is
off: a batch is acknowledged and redelivered as a whole. A release is a negative acknowledgement,
which Pulsar counts; a delayed one is a confirmed copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import pulsar

from shinar.brokers.contract import NOTHING, Broker, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.projection import (
    checked_delay_s,
    contract_properties,
    project,
    user_headers,
)
from shinar.brokers.pulsar.admin import Admin
from shinar.brokers.pulsar.client import BROKER, Parcel, open_client, pulsar_errors, send_all
from shinar.brokers.pulsar.handshake import greet
from shinar.brokers.pulsar.projection import PROJECTION
from shinar.brokers.pulsar.subscription import PulsarReceipt, Subscription
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import (
    BodyTooLarge,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    PublishFailed,
    Unsupported,
)
from shinar.settlement.traits import Traits

OPTIONS: Final = frozenset(
    {
        "subscription", "admin", "token", "tls_ca", "tls_cert", "tls_key", "tls_verify", "timeout_s",
        "prefetch", "declare", "max_body_bytes",
    }
)  # fmt: skip
DEFAULT_SUBSCRIPTION: Final = "babelqueue"
DEFAULT_NAMESPACE: Final = "public/default"
#: Milliseconds the message waits, told beside it as the contract wants.
DELAY_PROPERTY: Final = "bq-delay"
#: Left of a server's limit for properties and framing.
_FRAMING_BYTES: Final = 64 * 1024
#: A server's default is 5 MiB.
DEFAULT_BODY_BYTES: Final = 5 * 1024 * 1024 - _FRAMING_BYTES
#: Messages the client takes ahead. They wait here while a handler runs, so it is small.
DEFAULT_PREFETCH: Final = 100
#: Shortest the client can do; a released message comes back about this much later.
_NACK_MS: Final = 100
#: How long a reserve that must not wait does wait: first for the subscription to be filled,
#: later for what is on the wire.
_FIRST_GRACE_MS: Final = 1_000
_GRACE_MS: Final = 50


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name=BROKER,
        key=True,
        max_body_bytes=int(url.number("max_body_bytes", DEFAULT_BODY_BYTES, least=1)),
        attempts="property_max",
        count_base=0,
        # A lost consumer's messages come back with the count they had; only a negative ack counts.
        crash_counts=False,
        stable_position=True,
        gate_property="bq-schema-version",
        release_to="front",
        browse=bool(url.option("admin")),
        depth=bool(url.option("admin")),
    )


def connect(url: BrokerUrl, clock: Clock) -> Broker:
    return PulsarBroker(url, clock)


class PulsarBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self._traits = traits(url)
        self._clock = clock
        self._timeout_s = url.number("timeout_s", 30.0, least=1)
        self._subscription = url.option("subscription", DEFAULT_SUBSCRIPTION)
        self._prefetch = int(url.number("prefetch", DEFAULT_PREFETCH, least=1))
        self._declare = url.flag("declare", True)
        self._namespace = url.path or DEFAULT_NAMESPACE
        if self._namespace.count("/") != 1:
            raise ConfigError("write pulsar://host/tenant/namespace/queue, or just /queue", setting="url")
        self._admin = (
            Admin(url.option("admin"), url.option("token"), self._timeout_s) if url.option("admin") else None
        )
        server_bytes = greet(url, self._timeout_s)
        self._max_body_bytes = self._traits.max_body_bytes or DEFAULT_BODY_BYTES
        if server_bytes is not None:
            self._max_body_bytes = min(self._max_body_bytes, max(1, server_bytes - _FRAMING_BYTES))
        self._client = open_client(url, self._timeout_s)
        self._producers: dict[str, Any] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._closed = False

    @property
    def traits(self) -> Traits:
        return self._traits

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        keys = [self._checked_key(queue, message) for message in messages]
        self._send(queue, map(_parcel, messages, keys), len(keys))

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        source = self._subscriptions.get(queue)
        wait_ms = int(wait_s * 1000) or _GRACE_MS
        if source is None:
            source = self._subscriptions[queue] = Subscription(self._subscribe(queue, self._prefetch))
            wait_ms = max(wait_ms, _FIRST_GRACE_MS)
        messages = _receive(source.consumer, queue, limit, wait_ms)
        if not messages and not source.consumer.is_connected():
            source.look()
            raise BrokerUnavailable("not connected; the client keeps trying", broker=BROKER, queue=queue)
        now_ms = self._clock.epoch_ms()
        return [_delivery(message, queue, source.receipt(message), now_ms) for message in messages]

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        """Also what an earlier connection received: the server takes it, and it need not be handled again
        if nobody has it yet. It counts as lapsed all the same."""
        lapsed = self._lapsed(deliveries)
        with pulsar_errors():
            for delivery in deliveries:
                source = self._subscriptions.get(delivery.queue)
                if source is not None and delivery.receipt.consumer is source.consumer:
                    source.consumer.acknowledge(delivery.receipt.message)
                    source.settled(delivery.receipt.message)
        return lapsed

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        held = self._held(deliveries)
        lapsed = self._lapsed(deliveries)
        if checked_delay_s(BROKER, delay_s) > 0:
            for queue in {delivery.queue for delivery in held}:
                mine = [delivery for delivery in held if delivery.queue == queue]
                self._copy_then_ack(queue, mine, [_again(delivery, delay_s) for delivery in mine])
        else:
            with pulsar_errors():
                for delivery in held:
                    delivery.receipt.consumer.negative_acknowledge(delivery.receipt.message)
                    self._subscriptions[delivery.queue].settled(delivery.receipt.message)
        return lapsed

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        held = [(delivery, message) for delivery, message in copies if self._is_held(delivery)]
        parcels = [
            _parcel(message, self._checked_key(queue, message) or delivery.receipt.message.partition_key())
            for delivery, message in held
        ]
        self._copy_then_ack(queue, [delivery for delivery, _ in held], parcels)
        return self._lapsed([delivery for delivery, _ in copies])

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """A message is ours until we settle it or the connection ends; there is nothing to renew."""
        for queue in {delivery.queue for delivery in deliveries} & self._subscriptions.keys():
            self._subscriptions[queue].look()
        return self._lapsed(deliveries)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        if self._admin is None:
            raise Unsupported(
                BROKER,
                "browse",
                "a reader also sees what is already acknowledged; give the web service as "
                "?admin=http://host:8080 so that it can be told apart",
            )
        topic = self._topic(queue)
        if self._admin.partitions(topic):
            raise Unsupported(
                BROKER,
                f"browse {queue}",
                f"it is partitioned and has no order as a whole; browse {queue}-partition-0 and so on",
            )
        mark, ranges = self._admin.consumed(topic, self._subscription)
        with pulsar_errors(queue):
            start = pulsar.MessageId(-1, *mark, -1) if mark[0] >= 0 else pulsar.MessageId.earliest
            reader = self._client.create_reader(topic, start)
        seen = 0
        try:
            while (limit is None or seen < limit) and (message := _next(reader, queue)) is not None:
                at = (message.message_id().ledger_id(), message.message_id().entry_id())
                if at <= mark or any(after < at <= last for after, last in ranges):
                    continue
                seen += 1
                yield _delivery(message, queue, None, self._clock.epoch_ms())
        finally:
            reader.close()

    def depth(self, queue: str) -> Depth:
        if self._admin is None:
            return Depth()
        found = self._admin.counts(self._topic(queue), self._subscription)
        if found is None:
            return Depth()
        reserved, delayed = int(found["unackedMessages"]), int(found.get("msgDelayed", 0))
        oldest_ms = int(found.get("earliestMsgPublishTimeInBacklog", 0))
        return Depth(
            ready=max(0, int(found["msgBacklog"]) - reserved - delayed),
            reserved=reserved,
            delayed=delayed,
            oldest_age_s=max(0.0, self._clock.epoch_s() - oldest_ms / 1000) if oldest_ms > 0 else None,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for resource in (*(source.consumer for source in self._subscriptions.values()), self._client):
            # A line that is dead already needs no goodbye.
            with suppress(BrokerUnavailable), pulsar_errors():
                resource.close()

    # --

    def _topic(self, queue: str) -> str:
        return queue if "://" in queue else f"persistent://{self._namespace}/{queue}"

    def _subscribe(self, queue: str, prefetch: int) -> Any:
        with pulsar_errors(queue):
            return self._client.subscribe(
                self._topic(queue),
                self._subscription,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=prefetch,
                negative_ack_redelivery_delay_ms=_NACK_MS,
            )

    def _producer(self, queue: str) -> Any:
        producer = self._producers.get(queue)
        if producer is None:
            if self._declare and queue not in self._subscriptions:
                self._declare_subscription(queue)
            with pulsar_errors(queue):
                producer = self._producers[queue] = self._client.create_producer(
                    self._topic(queue),
                    batching_enabled=False,
                    block_if_queue_full=True,
                    max_pending_messages=5_000,
                    send_timeout_millis=int(self._timeout_s * 1000),
                )
        return producer

    def _declare_subscription(self, queue: str) -> None:
        """By consumers that ask for nothing: they make the subscription and take no message. The client
        has such consumers for one topic only, so each partition gets its own."""
        with pulsar_errors(queue):
            parts = self._client.get_topic_partitions(self._topic(queue))
        for part in parts:
            self._subscribe(part, 0).close()

    def _checked_key(self, queue: str, message: Outgoing) -> str | None:
        """What can be refused is refused before anything is sent."""
        if len(message.body) > self._max_body_bytes:
            raise BodyTooLarge(len(message.body), self._max_body_bytes, broker=BROKER, queue=queue)
        checked_delay_s(BROKER, message.delay_s)
        return _text_key(message.key)

    def _send(self, queue: str, parcels: Iterable[Parcel], total: int) -> None:
        if total:
            send_all(self._producer(queue), queue, parcels, total, self._timeout_s)

    def _copy_then_ack(self, queue: str, originals: Sequence[Delivery], copies: Sequence[Parcel]) -> None:
        """Confirmed first. What was not confirmed stays ours, unsettled."""
        unconfirmed: frozenset[int] = frozenset()
        failure: PublishFailed | None = None
        try:
            self._send(queue, copies, len(copies))
        except PublishFailed as exc:
            failure, unconfirmed = exc, frozenset(exc.unconfirmed)
        self.ack([delivery for index, delivery in enumerate(originals) if index not in unconfirmed])
        if failure is not None:
            raise failure

    def _is_held(self, delivery: Delivery) -> bool:
        """Still ours: what an earlier connection received, the server has handed out again."""
        source = self._subscriptions.get(delivery.queue)
        receipt: PulsarReceipt = delivery.receipt
        return (
            not self._closed
            and source is not None
            and receipt.consumer is source.consumer
            and receipt.connection == source.connection
        )

    def _held(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return [delivery for delivery in deliveries if self._is_held(delivery)]

    def _lapsed(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return tuple(delivery for delivery in deliveries if not self._is_held(delivery))


def _receive(consumer: Any, queue: str, limit: int, wait_ms: int) -> list[Any]:
    found: list[Any] = []
    with pulsar_errors(queue):
        try:
            found.append(consumer.receive(wait_ms))
            while len(found) < limit:
                found.append(consumer.receive(0))
        except pulsar.Timeout:
            pass
    return found


def _next(reader: Any, queue: str) -> Any:
    with pulsar_errors(queue):
        return reader.read_next(10_000) if reader.has_message_available() else None


def _delivery(message: Any, queue: str, receipt: PulsarReceipt | None, now_ms: int) -> Delivery:
    properties = message.properties()
    ours = contract_properties(properties)
    users = user_headers(properties)
    if DELAY_PROPERTY in users:
        ours[DELAY_PROPERTY] = users.pop(DELAY_PROPERTY)
    key = message.partition_key()
    place = message.message_id()
    return Delivery(
        message.data(),
        queue,
        receipt,
        users or NOTHING,
        ours or NOTHING,
        key.encode() if key else None,
        message.redelivery_count(),
        now_ms,
        None,
        f"{place.ledger_id()}:{place.entry_id()}:{place.batch_index()}",
    )


def _parcel(message: Outgoing, key: str | None) -> Parcel:
    properties = {name: str(value) for name, value in project(PROJECTION, message).headers.items()}
    properties.pop(DELAY_PROPERTY, None)
    if message.delay_s > 0:
        properties[DELAY_PROPERTY] = str(round(message.delay_s * 1000))
    return Parcel(message.body, properties, key, message.delay_s)


def _again(delivery: Delivery, delay_s: float) -> Parcel:
    message = delivery.receipt.message
    properties = {**message.properties(), DELAY_PROPERTY: str(round(delay_s * 1000))}
    return Parcel(delivery.body, properties, message.partition_key() or None, delay_s)


def _text_key(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise ContractError("a key on Pulsar is text; encode this one, in base64 for example") from None
