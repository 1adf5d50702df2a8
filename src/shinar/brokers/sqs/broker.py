"""Amazon SQS through boto3: ten messages a request, several requests at a time.

A reservation is a visibility timeout, asked for at each receive (`?lease_s=`). Handing back is a
change of that timeout, never a second send, so the broker's own receive count stays right.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, Final

from shinar.brokers.contract import Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.recent import Recent
from shinar.brokers.sqs import messages as wire
from shinar.brokers.sqs.client import driver_errors, has_lapsed, open_client
from shinar.brokers.sqs.limits import (
    DLQ_SUFFIX,
    FIFO,
    MAX_DELAY_SECONDS,
    MAX_VISIBILITY_S,
    is_fifo,
    release_visibility_s,
)
from shinar.brokers.sqs.outcomes import SqsOutcome, first_error
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BodyTooLarge, BrokerError, ConfigError, PublishFailed, QueueMissing, Unsupported
from shinar.settlement.traits import Traits

log = logging.getLogger(__name__)

OPTIONS = frozenset({
    "access_key", "connections", "content_dedup", "declare", "endpoint", "group", "lease_s", "max_body",
    "profile", "secret_key", "session_token",
})  # fmt: skip
#: The receipt handle.
RECEIPT: Final = str

#: Seconds a message stays invisible unless extended.
DEFAULT_LEASE_S: Final = 60
#: Requests in flight at a time. SQS answers in 5-20 ms, so one connection alone is idle most of the time.
DEFAULT_CONNECTIONS: Final = 8
#: Longest long poll of one request.
MAX_POLL_S: Final = 20
#: So much longer than asked may a wait be: a half second polls for a whole one. It is a little over the
#: half, because some of a wait has always passed when its length is looked at.
OVERTIME_S: Final = 0.55
#: A long poll may end this much early; that is not worth another request.
EARLY_S: Final = 0.05
#: SQS swallows a second message under the same deduplication id for this long (FIFO).
DEDUP_WINDOW_S: Final = 300.0

#: What brings a missing queue into being, unless ?declare=false; looking at one or settling does not.
_DECLARING: Final = frozenset({"send_message_batch", "receive_message"})


def traits(url: BrokerUrl) -> Traits:
    fifo = is_fifo(url.queue)
    return Traits(
        name="sqs",
        key=fifo,
        delay=not fifo,
        max_delay_s=float(MAX_DELAY_SECONDS),
        binary=False,
        max_body_bytes=int(url.number("max_body", wire.MAX_BODY_BYTES, least=1)),
        dedup_window_s=DEDUP_WINDOW_S if fifo else None,
        ordered=fifo,
        attempts="max",
        count_base=1,
        gate_property="bq-schema-version",
        lease_s=_lease_s(url),
        max_lease_s=float(MAX_VISIBILITY_S),
        lasting_lease=True,
        portable_receipts=True,
        stable_position=True,
        release_counts=True,
        browse=False,
        depth_lags=True,
        poison_without_dlq="native",
        gated_without_dlq="native",
        dlq_suffix=DLQ_SUFFIX,
        kind_suffix=FIFO,
    )


def connect(url: BrokerUrl, clock: Clock) -> SqsBroker:
    return SqsBroker(url, clock)


class SqsBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self._traits = traits(url)
        self._clock = clock
        self._declare = url.flag("declare", True)
        self._group = url.option("group")
        self._content_dedup = url.flag("content_dedup")
        self._lease_s = int(_lease_s(url))
        connections = int(url.number("connections", DEFAULT_CONNECTIONS, least=1))
        self._client = open_client(url, connections)
        self._pool = ThreadPoolExecutor(connections, "shinar-sqs")
        self._connections = connections
        self._addresses: dict[str, str] = {}
        #: Queues whose last reservation came back full: the next need not try one request first.
        self._flowing: frozenset[str] = frozenset()
        # A second ack of the same delivery is no lapsed lease.
        self._deleted = Recent()

    @property
    def traits(self) -> Traits:
        return self._traits

    # -- publishing

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        writing = self._writing(queue)
        self._send(queue, [wire.entry(writing, message) for message in messages])

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        writing = self._writing(queue)
        entries = [wire.entry(writing, copy, origin) for origin, copy in copies]
        # Renewing the leases first tells who lost his, and keeps the rest until the delete is through.
        lapsed = self.extend([origin for origin, _ in copies], self._lease_s)
        gone = {id(delivery) for delivery in lapsed}
        held = [at for at, (origin, _) in enumerate(copies) if id(origin) not in gone]
        try:
            self._send(queue, [entries[at] for at in held])
        except PublishFailed as exc:
            unsent = {held[at] for at in exc.unconfirmed}
            self.ack([copies[at][0] for at in held if at not in unsent])
            raise PublishFailed(
                "not every copy was confirmed; the originals of those stay reserved",
                total=len(copies),
                unconfirmed=tuple(sorted(unsent)),
                broker="sqs",
                queue=queue,
            ) from exc
        return lapsed + self.ack([copies[at][0] for at in held])

    def _send(self, queue: str, entries: Sequence[tuple[wire.Entry, int]]) -> None:
        def send(chunk: list[int]) -> SqsOutcome:
            return self._batch("send_message_batch", queue, {at: entries[at][0] for at in chunk})

        chunks = list(wire.batches([size for _, size in entries]))
        outcomes = self._in_order(send, chunks) if is_fifo(queue) else self._at_once(send, chunks)
        confirmed = {
            at
            for outcome in outcomes
            if not outcome.error
            for at in outcome.chunk
            if at not in outcome.refused
        }
        if len(confirmed) == len(entries):
            return
        unconfirmed = tuple(at for at in range(len(entries)) if at not in confirmed)
        error = first_error(outcomes, queue)
        if isinstance(error, BodyTooLarge):
            error = self._too_large(queue, max(entries[at][1] for at in unconfirmed))
        if not confirmed:
            raise error
        raise PublishFailed(
            str(error),
            total=len(entries),
            unconfirmed=unconfirmed,
            broker="sqs",
            queue=queue,
        ) from error

    def _too_large(self, queue: str, size_bytes: int) -> BodyTooLarge:
        """SQS does not say how much was too much: the queue may have a limit of its own."""
        name = "MaximumMessageSize"
        found = self._call("get_queue_attributes", queue, AttributeNames=[name]).get("Attributes") or {}
        return BodyTooLarge(size_bytes, int(found.get(name, wire.BATCH_BYTES)), broker="sqs", queue=queue)

    def _writing(self, queue: str) -> wire.Writing:
        limit = self._traits.max_body_bytes or wire.MAX_BODY_BYTES
        return wire.Writing(queue, self._group, self._content_dedup, limit)

    # -- consuming

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        if queue in self._flowing:
            found = self._receive_more(queue, limit, [])
            if found:
                return found
        until_s = self._clock.monotonic_s() + wait_s
        while True:
            left_s = max(0.0, until_s - self._clock.monotonic_s())
            # SQS waits whole seconds only; simply cut off, a wait of one second would poll for none.
            poll_s = min(int(left_s + OVERTIME_S), MAX_POLL_S)
            found = self._receive(queue, min(limit, wire.BATCH), poll_s)
            if found:
                return found if len(found) < wire.BATCH else self._receive_more(queue, limit, found)
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= (EARLY_S if poll_s else 0.0):
                return []
            if left_s + OVERTIME_S < 1:
                # Too short for a poll: the rest is slept, with one last look at the end.
                self._clock.sleep(left_s)
                until_s = self._clock.monotonic_s()

    def _receive_more(self, queue: str, limit: int, found: list[Delivery]) -> list[Delivery]:
        """Fill up without waiting, over all connections, as long as every request brings all it may."""
        left = limit - len(found)
        if left <= 0:
            return found
        wanted = deque(min(wire.BATCH, left - at) for at in range(0, left, wire.BATCH))

        def receive() -> list[Delivery]:
            taken: list[Delivery] = []
            try:
                while wanted:
                    count = wanted.popleft()
                    got = self._receive(queue, count, 0)
                    taken += got
                    if len(got) < count:
                        wanted.clear()
            except IndexError:
                pass  # another connection had the last one
            except BrokerError as exc:
                # What is already here must not be thrown away with it; the next call meets the error.
                log.warning("sqs queue %s: a parallel receive failed: %s", queue, exc)
                wanted.clear()
            return taken

        asked = [self._pool.submit(receive) for _ in range(min(len(wanted), self._connections))]
        found = found + [delivery for request in asked for delivery in request.result()]
        self._flowing = self._flowing - {queue} if len(found) < limit else self._flowing | {queue}
        return found

    def _receive(self, queue: str, count: int, wait_s: int) -> list[Delivery]:
        answer = self._call(
            "receive_message",
            queue,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=self._lease_s,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageGroupId"],
        )
        now_ms = self._clock.epoch_ms()
        group = self._group or queue
        return [
            wire.delivery(queue, group, raw, now_ms, self._lease_s * 1000)
            for raw in answer.get("Messages") or ()
        ]

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        left = [delivery for delivery in deliveries if delivery.receipt not in self._deleted]
        lapsed = self._settle("delete_message_batch", left, {})
        gone = {delivery.receipt for delivery in lapsed}
        self._deleted.update(delivery.receipt for delivery in left if delivery.receipt not in gone)
        return lapsed

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        hidden_s = release_visibility_s(delay_s)
        if hidden_s < delay_s:
            log.warning("sqs holds a message back for %d s at most; asked for %g s", hidden_s, delay_s)
        return self._settle("change_message_visibility_batch", deliveries, {"VisibilityTimeout": hidden_s})

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        hidden = {"VisibilityTimeout": release_visibility_s(lease_s)}
        return self._settle("change_message_visibility_batch", deliveries, hidden)

    def _settle(self, operation: str, deliveries: Sequence[Delivery], more: dict[str, Any]) -> Lapsed:
        lapsed: list[Delivery] = []
        for queue, group in groupby(deliveries, key=lambda delivery: delivery.queue):
            held = list(group)

            def settle(chunk: list[int], queue: str = queue, held: list[Delivery] = held) -> SqsOutcome:
                entries = {at: {"ReceiptHandle": held[at].receipt, **more} for at in chunk}
                return self._batch(operation, queue, entries)

            chunks = [
                list(range(at, min(at + wire.BATCH, len(held)))) for at in range(0, len(held), wire.BATCH)
            ]
            outcomes = self._at_once(settle, chunks)
            lost = {at for outcome in outcomes for at, why in outcome.refused.items() if has_lapsed(why)}
            if any(outcome.error or outcome.refused.keys() - lost for outcome in outcomes):
                raise first_error(outcomes, queue)
            lapsed += [held[at] for at in sorted(lost)]
        return tuple(lapsed)

    # -- looking

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        raise Unsupported(
            "sqs",
            "show a queue without taking from it",
            "reserve the messages and release them: it counts as a delivery",
        )

    def depth(self, queue: str) -> Depth:
        names = ("", "NotVisible", "Delayed")
        counted = self._call(
            "get_queue_attributes",
            queue,
            AttributeNames=[f"ApproximateNumberOfMessages{name}" for name in names],
        ).get("Attributes", {})
        ready, reserved, delayed = (counted.get(f"ApproximateNumberOfMessages{name}") for name in names)
        return Depth(
            ready=None if ready is None else int(ready),
            reserved=None if reserved is None else int(reserved),
            delayed=None if delayed is None else int(delayed),
        )

    def close(self) -> None:
        # What is reserved comes back when its visibility timeout ends: SQS ties it to no connection.
        self._pool.shutdown(wait=True)
        self._client.close()

    # -- requests

    def _batch(self, operation: str, queue: str, entries: dict[int, dict[str, Any]]) -> SqsOutcome:
        chunk = list(entries)
        try:
            answer = self._call(
                operation, queue, Entries=[{"Id": str(at), **entry} for at, entry in entries.items()]
            )
        except BrokerError as exc:
            return SqsOutcome(chunk, {}, exc)
        return SqsOutcome(chunk, {int(failure["Id"]): failure for failure in answer.get("Failed") or ()})

    def _at_once(self, call: Callable[[list[int]], SqsOutcome], chunks: list[list[int]]) -> list[SqsOutcome]:
        if len(chunks) < 2:
            return [call(chunk) for chunk in chunks]
        return list(self._pool.map(call, chunks))

    @staticmethod
    def _in_order(call: Callable[[list[int]], SqsOutcome], chunks: list[list[int]]) -> list[SqsOutcome]:
        """One after the other, and nothing after a failure: a gap must not be overtaken."""
        outcomes: list[SqsOutcome] = []
        for chunk in chunks:
            outcomes.append(call(chunk))
            if outcomes[-1].error or outcomes[-1].refused:
                break
        return outcomes

    def _call(self, operation: str, queue: str, **request: Any) -> Any:
        try:
            return self._request(operation, queue, request)
        except QueueMissing:
            if queue not in self._addresses or operation not in _DECLARING:
                raise
            # Its address was known, so it was deleted behind our back: look again, once.
            self._addresses.pop(queue, None)
            return self._request(operation, queue, request)

    def _request(self, operation: str, queue: str, request: dict[str, Any]) -> Any:
        with driver_errors(queue):
            address = self._addresses.get(queue)
            if address is None:
                address = self._addresses[queue] = self._find(queue, operation in _DECLARING)
            return getattr(self._client, operation)(QueueUrl=address, **request)

    def _find(self, queue: str, create: bool) -> str:
        try:
            with driver_errors(queue):
                return str(self._client.get_queue_url(QueueName=queue)["QueueUrl"])
        except QueueMissing:
            if not (create and self._declare):
                raise
        attributes = {"FifoQueue": "true"} if is_fifo(queue) else {}
        if attributes and self._content_dedup:
            attributes["ContentBasedDeduplication"] = "true"
        return str(self._client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"])


def _lease_s(url: BrokerUrl) -> float:
    lease_s = url.number("lease_s", DEFAULT_LEASE_S, least=1)
    if lease_s > MAX_VISIBILITY_S:
        raise ConfigError(f"SQS leases last {MAX_VISIBILITY_S} s at most", setting="?lease_s=")
    return float(int(lease_s))
