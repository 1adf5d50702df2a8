"""ActiveMQ Artemis over AMQP 1.0, readable by JMS. A queue is an anycast address.

Retries are counted copies, so a release hands a message back uncounted (RELEASED); the server's
own count still grows when a worker dies with messages in hand. A lost connection is opened again
by the next call; what was in hand has lapsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from proton import Message

from shinar.brokers.artemis.connection import ACCEPTED, MODIFIED, RELEASED, ArtemisConnection
from shinar.brokers.artemis.messages import decode, delayed_copy, encode
from shinar.brokers.artemis.transport import BROKER, ArtemisAddress, ReceiveLink
from shinar.brokers.contract import Broker, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.projection import checked_delay_s
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BrokerError, PublishFailed
from shinar.settlement.traits import Traits

OPTIONS: Final = frozenset(
    {"tls_ca", "tls_cert", "tls_key", "tls_verify", "timeout_s", "prefetch", "management"}
)
#: Messages asked for ahead of a caller that comes back quickly for full batches.
DEFAULT_PREFETCH: Final = 200
#: A caller that needs longer for a batch than this gets no messages ahead: others could do them.
_QUICK_S: Final = 0.1
_BROWSE_BATCH: Final = 100
#: A browser that gets nothing for this long has seen everything.
_BROWSE_END_S: Final = 1.0
_MANAGEMENT: Final = "activemq.management"
#: Give up on an answer of the management address after this long; depth is then unknown.
_MANAGEMENT_WAIT_S: Final = 5.0


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name=BROKER,
        attempts="max",
        count_base=0,
        # Measured: of some connections that break the server counts what was in hand, of others not.
        crash_counts=False,
        gate_property="bq_schema_version",
        attempts_property="bq_attempts",
        release_uncounted=True,
        depth=url.flag("management", True),
    )


def connect(url: BrokerUrl, clock: Clock) -> Broker:
    return ArtemisBroker(url, clock)


class ArtemisReceipt(msgspec.Struct, frozen=True, eq=False):
    engine: ArtemisConnection
    number: int
    #: The message as it came over the wire, for copies that must keep all of it.
    packed: bytes

    def __repr__(self) -> str:
        return f"ArtemisReceipt({self.number})"


class ArtemisBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        tls = url.scheme == "artemiss"
        self._address = ArtemisAddress(
            host=url.host or "localhost",
            port=url.port or url.usual_port,
            user=url.user,
            password=url.password,
            tls=tls,
            tls_ca=url.option("tls_ca"),
            tls_cert=url.option("tls_cert"),
            tls_key=url.option("tls_key"),
            tls_verify=url.flag("tls_verify", True),
            timeout_s=url.number("timeout_s", 30.0, least=0.1),
        )
        self._prefetch = int(url.number("prefetch", DEFAULT_PREFETCH))
        self._traits = traits(url)
        self._clock = clock
        self._open: ArtemisConnection | None = None
        #: When the last batch was handed out full, per queue; absent when it was not.
        self._full_s: dict[str, float] = {}

    @property
    def traits(self) -> Traits:
        return self._traits

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        now_ms = self._clock.epoch_ms()
        self._send(queue, [encode(message, now_ms) for message in messages])

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        engine = self._engine()
        box = engine.inbox(queue)
        last_s = self._full_s.pop(queue, None)
        quick = last_s is not None and self._clock.monotonic_s() - last_s < _QUICK_S
        got = engine.take(box, limit, wait_s, min(limit, self._prefetch) if quick else 0)
        now_ms = self._clock.epoch_ms()
        found = [
            decode(packed, queue, ArtemisReceipt(engine, number, packed), now_ms) for number, packed in got
        ]
        if len(found) == limit:
            self._full_s[queue] = self._clock.monotonic_s()
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return self._settle(deliveries, ACCEPTED)

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        if checked_delay_s(BROKER, delay_s) <= 0:
            return self._settle(deliveries, RELEASED)
        due_ms = self._clock.epoch_ms() + round(delay_s * 1000)
        held = [delivery for delivery in deliveries if self._holds(delivery)]
        for queue in {delivery.queue for delivery in held}:
            mine = [delivery for delivery in held if delivery.queue == queue]
            self._copy_then_ack(queue, mine, [delayed_copy(d.receipt.packed, due_ms) for d in mine])
        return self._lapsed(deliveries)

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        now_ms = self._clock.epoch_ms()
        same = [delivery for delivery, message in copies if _only_counts(queue, delivery, message)]
        held = [
            (delivery, encode(message, now_ms))
            for delivery, message in copies
            if self._holds(delivery) and not _only_counts(queue, delivery, message)
        ]
        self._copy_then_ack(queue, [delivery for delivery, _ in held], [packed for _, packed in held])
        self._settle(same, MODIFIED)
        return self._lapsed([delivery for delivery, _ in copies])

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """Nothing to do: a message is ours for as long as the connection lives."""
        return self._lapsed(deliveries)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        engine = self._engine()
        box = engine.inbox(queue, browse=True)
        left = limit
        try:
            while left is None or left > 0:
                size = min(_BROWSE_BATCH, left or _BROWSE_BATCH)
                # The server walks its queue in the background: nothing at once is not yet the end.
                batch = engine.take(box, size, 0.0) or engine.take(box, size, _BROWSE_END_S)
                if not batch:
                    return
                left = None if left is None else left - len(batch)
                now_ms = self._clock.epoch_ms()
                engine.settle([number for number, _ in batch], ACCEPTED)
                for _, packed in batch:
                    yield decode(packed, queue, None, now_ms)
        finally:
            engine.detach(box)

    def depth(self, queue: str) -> Depth:
        """Asked of the server's management address; unknown where we may not."""
        if not self._traits.depth:
            return Depth()
        wanted = ("messageCount", "deliveringCount", "scheduledCount")
        try:
            answers = self._ask(f"queue.{queue}", wanted)
        except BrokerError as exc:
            if exc.transient:
                raise
            return Depth()
        if answers is None:
            return Depth()
        total, reserved, delayed = answers
        return Depth(ready=max(0, total - reserved - delayed), reserved=reserved, delayed=delayed)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    # --

    def _engine(self) -> ArtemisConnection:
        if self._open is None or self._open.fault is not None:
            self._open = ArtemisConnection(self._address)
            self._full_s.clear()
        return self._open

    def _send(self, queue: str, messages: Sequence[bytes]) -> None:
        if not messages:
            return
        engine = self._engine()
        failed = engine.send(engine.outbox(queue), messages)
        if not failed:
            return
        first = failed[min(failed)]
        if len(failed) == len(messages):
            raise first
        raise PublishFailed(
            str(first), total=len(messages), unconfirmed=tuple(sorted(failed)), broker=BROKER, queue=queue
        )

    def _copy_then_ack(self, queue: str, originals: Sequence[Delivery], copies: Sequence[bytes]) -> None:
        """Confirmed first. What was not confirmed stays ours, unsettled."""
        unconfirmed: frozenset[int] = frozenset()
        failure: PublishFailed | None = None
        try:
            self._send(queue, copies)
        except PublishFailed as exc:
            failure, unconfirmed = exc, frozenset(exc.unconfirmed)
        self.ack([delivery for index, delivery in enumerate(originals) if index not in unconfirmed])
        if failure is not None:
            raise failure

    def _settle(self, deliveries: Sequence[Delivery], state: Any) -> Lapsed:
        engine = self._open
        if engine is not None:
            # One that is no longer held was settled before: a second ack does nothing.
            engine.settle([d.receipt.number for d in deliveries if d.receipt.engine is engine], state)
        return self._lapsed(deliveries)

    def _holds(self, delivery: Delivery) -> bool:
        receipt: ArtemisReceipt = delivery.receipt
        return receipt.engine is self._open and receipt.engine.holds(receipt.number)

    def _lapsed(self, deliveries: Sequence[Delivery]) -> Lapsed:
        """Those of a connection that is gone."""
        engine = self._open if self._open is not None and self._open.fault is None else None
        return tuple(delivery for delivery in deliveries if delivery.receipt.engine is not engine)

    def _ask(self, resource: str, attributes: Sequence[str]) -> list[int] | None:
        engine = self._engine()
        replies: ReceiveLink = engine.inbox("reply", dynamic=True)
        try:
            questions = []
            for attribute in attributes:
                question: Any = Message()
                question.properties = {"_AMQ_ResourceName": resource, "_AMQ_Attribute": attribute}
                question.reply_to = replies.queue
                question.correlation_id = attribute
                questions.append(question.encode())
            if engine.send(engine.outbox(_MANAGEMENT), questions):
                return None
            return self._answers(engine, replies, attributes)
        finally:
            engine.detach(replies)

    def _answers(
        self, engine: ArtemisConnection, replies: ReceiveLink, attributes: Sequence[str]
    ) -> list[int] | None:
        found: dict[str, int] = {}
        deadline = self._clock.monotonic_s() + _MANAGEMENT_WAIT_S
        while len(found) < len(attributes) and (left_s := deadline - self._clock.monotonic_s()) > 0:
            for number, packed in engine.take(replies, len(attributes) - len(found), left_s):
                engine.settle([number], ACCEPTED)
                answer: Any = Message()
                answer.decode(packed)
                if not (answer.properties or {}).get("_AMQ_OperationSucceeded"):
                    return None
                found[str(answer.correlation_id)] = int(json.loads(answer.body)[0])
        return [found[name] for name in attributes] if len(found) == len(attributes) else None


def _only_counts(queue: str, delivery: Delivery, copy: Outgoing) -> bool:
    """A retry of bytes without a count of their own (poison): a copy would start from zero each
    time, so the server has to count, and it does when the delivery is handed back as failed."""
    return queue == delivery.queue and copy.body == delivery.body and copy.facts is not None
