"""Azure Service Bus through azure-servicebus: peek-lock, batches both ways, native schedule and dead letter.

A reservation is a message lock, as long as the queue's LockDuration says; `extend` renews it for
as long again. `release` abandons, so the broker counts; a delayed one, which the service does not
have, is a scheduled copy that carries the count along.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from shinar.brokers.contract import Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.projection import checked_delay_s
from shinar.brokers.recent import Recent
from shinar.brokers.servicebus import messages as wire
from shinar.brokers.servicebus.client import (
    MAX_BODY_BYTES,
    allow_answers,
    driver_errors,
    open_client,
    renew,
    settle,
)
from shinar.brokers.servicebus.sessions import Sessions
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BodyTooLarge, BrokerError, BrokerUnavailable, PublishFailed, Unsupported
from shinar.settlement.traits import Traits

#: Lock token, session, and the headers that are not text.
RECEIPT: Final = tuple[str, str, tuple[tuple[str, bool | int | float | uuid.UUID], ...]]
OPTIONS = frozenset(
    {
        "aad",
        "connection_string_env",
        "dedup_window_s",
        "emulator",
        "lease_s",
        "max_body",
        "prefetch",
        "sessions",
    }
)

#: LockDuration of a queue nobody configured.
DEFAULT_LEASE_S: Final = 60.0
#: Shortest wait for messages: less than a round trip would find none, ever.
MIN_WAIT_S: Final = 0.2
#: Messages per peek request.
PEEK: Final = 100
DEAD_LETTERS: Final = "/$DeadLetterQueue"


#: Left free in a batch for what the SDK does not count.
BATCH_HEADROOM_BYTES: Final = 1024


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name="servicebus",
        key=True,
        max_body_bytes=int(url.number("max_body", MAX_BODY_BYTES, least=1)),
        dedup_window_s=url.number("dedup_window_s", 0) or None,
        # Without sessions the SDK hands back what reaches an idle receiver, and it comes again out of turn.
        ordered=url.flag("sessions"),
        attempts="max",
        count_base=0,
        gate_property="bq-schema-version",
        lease_s=url.number("lease_s", DEFAULT_LEASE_S, least=1),
        lasting_lease=not url.flag("sessions"),
        portable_receipts=not url.flag("sessions"),
        stable_position=True,
        release_counts=True,
        release_delay=False,
        depth=False,
        poison_without_dlq="native",
        gated_without_dlq="native",
        native_dlq_suffix=DEAD_LETTERS,
    )


def connect(url: BrokerUrl, clock: Clock) -> ServiceBusBroker:
    return ServiceBusBroker(url, clock)


class ServiceBusBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self._traits = traits(url)
        self._clock = clock
        self._max_body_bytes = self._traits.max_body_bytes or MAX_BODY_BYTES
        self._prefetch = int(url.number("prefetch", 0))
        self._client = open_client(url)
        self._sessions = Sessions(open_client(url, tries=1)) if url.flag("sessions") else None
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: dict[str, ServiceBusReceiver] = {}
        # A second ack of the same delivery is no lost lock.
        self._completed = Recent()

    @property
    def traits(self) -> Traits:
        return self._traits

    # -- publishing

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        now_s = self._clock.epoch_s()
        for message in messages:
            if len(message.body) > self._max_body_bytes:
                raise BodyTooLarge(len(message.body), self._max_body_bytes, broker="servicebus", queue=queue)
        self._send(queue, [wire.message_of(message, now_s) for message in messages])

    def _send(self, queue: str, messages: Sequence[ServiceBusMessage]) -> None:
        """Batch after batch, each confirmed as a whole; nothing after a failure, so order holds."""
        sender = self._sender(queue)
        sent = 0
        try:
            while sent < len(messages):
                with driver_errors(queue):
                    sent += self._send_batch(sender, queue, messages[sent:])
        except BrokerError as exc:
            if sent == 0:
                raise
            raise PublishFailed(
                str(exc),
                total=len(messages),
                unconfirmed=tuple(range(sent, len(messages))),
                broker="servicebus",
                queue=queue,
            ) from exc

    def _send_batch(self, sender: ServiceBusSender, queue: str, messages: Sequence[ServiceBusMessage]) -> int:
        # The SDK's own count of a batch's size is a few bytes short, so a full one is refused.
        most_bytes = sender.create_message_batch().max_size_in_bytes - BATCH_HEADROOM_BYTES
        batch = sender.create_message_batch(most_bytes)
        count = 0
        for message in messages:
            if self._sessions and message.session_id != messages[0].session_id:
                break  # a batch is of one session
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                break
            count += 1
        if count == 0:
            # Larger than a batch may be: premium namespaces still take it alone.
            self._send_alone(sender, queue, messages[0])
            return 1
        sender.send_messages(batch)
        return count

    def _send_alone(self, sender: ServiceBusSender, queue: str, message: ServiceBusMessage) -> None:
        try:
            sender.send_messages(message)
        except MessageSizeExceededError as exc:
            size = sum(len(part) for part in message.body)
            raise BodyTooLarge(size, self._max_body_bytes, broker="servicebus", queue=queue) from exc

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        if queue.endswith(DEAD_LETTERS):
            return self._dead_letter(queue, copies)
        now_s = self._clock.epoch_s()
        made = [wire.message_of(copy, now_s, origin=origin) for origin, copy in copies]
        return self._replace(queue, [origin for origin, _ in copies], made)

    def _replace(self, queue: str, origins: Sequence[Delivery], made: Sequence[ServiceBusMessage]) -> Lapsed:
        # Renewing first tells whose lock is lost, and keeps the rest until they are completed.
        lapsed = self.extend(origins, 0)
        gone = {id(delivery) for delivery in lapsed}
        held = [at for at, origin in enumerate(origins) if id(origin) not in gone]
        try:
            self._send(queue, [made[at] for at in held])
        except PublishFailed as exc:
            unsent = {held[at] for at in exc.unconfirmed}
            self.ack([origins[at] for at in held if at not in unsent])
            raise PublishFailed(
                "not every copy was confirmed; the originals of those stay locked",
                total=len(origins),
                unconfirmed=tuple(sorted(unsent)),
                broker="servicebus",
                queue=queue,
            ) from exc
        return lapsed + self.ack([origins[at] for at in held])

    def _dead_letter(self, target: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        """The service's own dead-letter queue takes no sends: the original moves there, as it is."""
        lapsed: list[Delivery] = []
        reasons: dict[tuple[str, str], list[Delivery]] = {}
        for origin, copy in copies:
            if target != origin.queue + DEAD_LETTERS or copy.body != origin.body:
                raise Unsupported(
                    "servicebus",
                    f"write to {target}",
                    "only unchanged messages of that very queue go there; give dead letters another queue",
                )
            reasons.setdefault(wire.dead_letter_reason(copy.headers), []).append(origin)
        for (reason, description), origins in reasons.items():
            bury = partial(settle, "suspended", reason=reason, description=description)
            lapsed += self._each_receiver(origins, bury)
        return tuple(lapsed)

    # -- consuming

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        with driver_errors(queue):
            if self._sessions is not None:
                found = self._sessions.receive(queue, limit, wait_s)
            else:
                receiver = self._receiver(queue)
                # Opened apart, so that the time to connect is not taken from the wait.
                receiver.__enter__()
                found = receiver.receive_messages(limit, max(wait_s, MIN_WAIT_S))
        now_ms = self._clock.epoch_ms()
        lease_ms = int((self._traits.lease_s or 0) * 1000)
        return [wire.delivery_of(queue, message, now_ms, lease_ms) for message in found]

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        left = [delivery for delivery in deliveries if delivery.receipt[0] not in self._completed]
        lapsed = self._each_receiver(left, partial(settle, "completed"))
        gone = {delivery.receipt for delivery in lapsed}
        self._completed.update(delivery.receipt[0] for delivery in left if delivery.receipt not in gone)
        return lapsed

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        if checked_delay_s(wire.BROKER, delay_s) <= 0:
            return self._each_receiver(deliveries, partial(settle, "abandoned"))
        now_s = self._clock.epoch_s()
        lapsed: list[Delivery] = []
        for queue in {delivery.queue: None for delivery in deliveries}:
            held = [delivery for delivery in deliveries if delivery.queue == queue]
            lapsed += self._replace(queue, held, [wire.released_copy(one, now_s, delay_s) for one in held])
        return tuple(lapsed)

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """Renews for the queue's LockDuration, whatever `lease_s` says: the service knows no other length."""
        return self._each_receiver(deliveries, renew)

    def _each_receiver(
        self, deliveries: Sequence[Delivery], act: Callable[[ServiceBusReceiver, list[str]], set[str]]
    ) -> Lapsed:
        """`act` on the lock tokens of each queue, or of each session, and tell which were lost."""
        places: dict[tuple[str, str], list[str]] = {}
        for delivery in deliveries:
            token, session = delivery.receipt[:2]
            places.setdefault((delivery.queue, session if self._sessions else ""), []).append(token)
        lost: set[str] = set()
        for (queue, session), tokens in places.items():
            holder = self._sessions.receiver(queue, session) if self._sessions else self._receiver(queue)
            with driver_errors(queue):
                lost.update(tokens if holder is None else act(holder, tokens))
            if self._sessions and act is not renew:
                self._sessions.settled(queue, session, tokens)
        # Tokens are unique in the whole namespace.
        return tuple(delivery for delivery in deliveries if delivery.receipt[0] in lost)

    # -- looking

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        after, left = 0, limit
        while left is None or left > 0:
            with driver_errors(queue):
                receiver = self._receiver(queue)
                allow_answers(receiver)
                seen = receiver.peek_messages(PEEK, sequence_number=after + 1)
            if not seen:
                return
            now_ms = self._clock.epoch_ms()
            after = seen[-1].sequence_number or after
            ready = [message for message in seen if message.state is not ServiceBusMessageState.SCHEDULED]
            for message in ready[:left]:
                yield wire.peeked(queue, message, now_ms)
            left = None if left is None else left - len(ready)

    def depth(self, queue: str) -> Depth:
        # AMQP tells no counts, and the HTTP management interface wants Manage rights no worker should have.
        return Depth()

    def close(self) -> None:
        # Locked messages come back when their locks end: closing a link does not unlock them.
        handlers: list[Any] = [*self._senders.values(), *self._receivers.values()]
        if self._sessions is not None:
            handlers += self._sessions.handlers
        for handler in [*handlers, self._client]:
            # A line that is dead already needs no goodbye.
            with suppress(BrokerUnavailable, OSError), driver_errors():
                handler.close()

    def _sender(self, queue: str) -> ServiceBusSender:
        found = self._senders.get(queue)
        if found is None:
            found = self._senders[queue] = self._client.get_queue_sender(queue)
        return found

    def _receiver(self, queue: str) -> ServiceBusReceiver:
        found = self._receivers.get(queue)
        if found is None:
            base, dead = queue.removesuffix(DEAD_LETTERS), queue.endswith(DEAD_LETTERS)
            found = self._receivers[queue] = self._client.get_queue_receiver(
                base, sub_queue="deadletter" if dead else None, prefetch_count=self._prefetch
            )
        return found
