"""Kafka: a queue is a topic, a worker is a member of a consumer group, a delay is a tier topic.

What the contract asks for and Kafka lacks is made here from the parts next door: the member settles
single records over a committed position, tiers and a re-injector make delays and counted retries.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from shinar.brokers.contract import Broker, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.kafka.client import (
    BROKER,
    DEFAULT_BODY_BYTES,
    OPTIONS,
    ClusterWatch,
    Record,
    RecordSender,
    settings,
    tiers_of,
    weight,
)
from shinar.brokers.kafka.consumer import GroupMember
from shinar.brokers.kafka.reader import LogReader, commit_group, offsets, read_range
from shinar.brokers.kafka.records import may_outgrow, new_record, parked, unparked
from shinar.brokers.kafka.reinjector import GROUP_SUFFIX, Reinjector
from shinar.brokers.kafka.retry_tiers import (
    ATTEMPTS_HEADER,
    DELAY_HEADER,
    delay_record,
    retry_record,
    retry_topic,
    work_topic,
)
from shinar.brokers.kafka.topics import Topics
from shinar.brokers.projection import facts_of
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BodyTooLarge, BrokerUnavailable, PublishFailed, QueueMissing
from shinar.settlement.traits import Traits

log = logging.getLogger(__name__)

__all__ = [
    "OPTIONS",
    "KafkaBroker",
    "Reinjector",
    "commit_group",
    "connect",
    "offsets",
    "read_range",
    "traits",
]

#: A delay published elsewhere makes its tier topic there; we notice within this time.
_LOOK_EVERY_S: Final = 5.0


def traits(url: BrokerUrl) -> Traits:
    tiers_ms = tiers_of(url)
    return Traits(
        name=BROKER,
        replayable=True,
        stable_position=True,
        key=True,
        delay=bool(tiers_ms),
        max_delay_s=tiers_ms[-1] / 1000 if tiers_ms else 0.0,
        max_body_bytes=int(url.number("max_body_bytes", DEFAULT_BODY_BYTES, least=1)),
        # Kafka orders within a partition only.
        ordered=url.option("partitions") == "1",
        attempts="property",
        release_uncounted=True,
        gate_property="bq-schema-version",
        poison_without_dlq="retry" if tiers_ms else "drop",
    )


def connect(url: BrokerUrl, clock: Clock) -> Broker:
    return KafkaBroker(url, clock)


class KafkaBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._traits = traits(url)
        self._settings = settings(url)
        watch = ClusterWatch()
        self._topics = Topics(self._settings, watch)
        self._sender = RecordSender(self._settings, watch, self._topics.limit_bytes)
        self._members: dict[str, GroupMember] = {}
        self._reader: LogReader | None = None
        self._reinjector: Reinjector | None = None
        self._reinjecting: threading.Thread | None = None
        #: When to look next whether a queue has tiers in use; never again once it has.
        self._look_again_s: dict[str, float] = {}
        #: Tier topics whose mixed delays were told.
        self._warned: set[str] = set()

    @property
    def traits(self) -> Traits:
        return self._traits

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self._topics.ensure(queue)
        now_ms = self._clock.epoch_ms()
        self._check_sizes(queue, messages)
        limit = self._settings.max_record_bytes
        if any(message.delay_s > 0 or may_outgrow(message, limit) for message in messages):
            self._send(queue, [self._record(queue, message, now_ms) for message in messages])
        else:
            oldest_ms = self._topics.oldest_stamp_ms(queue, now_ms)
            self._sender.send(queue, (new_record(queue, message, now_ms, oldest_ms) for message in messages))

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        member = self._members.get(queue)
        if member is None:
            self._topics.ensure(queue)
            member = self._members[queue] = GroupMember(self._settings, queue, self._clock)
        self._reinject_if_used(queue)
        try:
            return member.take(limit, wait_s)
        except QueueMissing as exc:
            if not member.joined:
                raise
            # A cluster that has just started knows none of its topics for a moment. We have read from this
            # one: connecting again finds it, makes it, or says for good that it is missing.
            text = "the topic is gone or not loaded yet"
            raise BrokerUnavailable(text, broker=BROKER, queue=queue) from exc

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return self._by_member(deliveries, GroupMember.finish)

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        if delay_s <= 0:
            return self._by_member(deliveries, GroupMember.put_back)
        if not self._settings.tiers_ms or _ms(delay_s) > self._settings.tiers_ms[-1]:
            # No tier holds it that long: we do, and the partition's position waits with us.
            return self._by_member(deliveries, partial(GroupMember.put_back, delay_s=delay_s))
        copies = [(delivery, self._held_back(delivery, delay_s)) for delivery in _held(deliveries)]
        self._copy_then_finish(copies)
        return _lapsed(deliveries)

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        self._topics.ensure(queue)
        now_ms = self._clock.epoch_ms()
        held = [
            (delivery, self._moved(queue, delivery, message, now_ms))
            for delivery, message in copies
            if delivery.receipt.held
        ]
        self._copy_then_finish(held)
        return _lapsed([delivery for delivery, _ in copies])

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        """Nothing to do: a record is ours for as long as its partition is."""
        return _lapsed(deliveries)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        """What the group has not finished, in flight or not. A client of its own: many may run."""
        self._commit(queue)
        reader = LogReader(self._settings, self._clock)
        seen = 0
        try:
            for batch in reader.ranges(queue, reader.unconsumed(queue)):
                for delivery in batch:
                    if limit is not None and seen >= limit:
                        return
                    seen += 1
                    yield delivery
        finally:
            reader.close()

    def depth(self, queue: str) -> Depth:
        """`ready` is the group's lag: Kafka does not know which of it is being worked on."""
        self._commit(queue)
        if self._reader is None:
            self._reader = LogReader(self._settings, self._clock)
        reader = self._reader
        ready = sum(end - start for start, end in reader.unconsumed(queue).values())
        group = self._settings.group + GROUP_SUFFIX
        tiers = [retry_topic(queue, n) for n in range(1, len(self._settings.tiers_ms) + 1)]
        waiting = [reader.unconsumed(tier, group) for tier in tiers if reader.exists(tier)]
        return Depth(
            ready=ready, delayed=sum(end - start for spans in waiting for start, end in spans.values())
        )

    def close(self) -> None:
        if self._reinjector is not None and self._reinjecting is not None:
            self._reinjector.stop()
            self._reinjecting.join()
        for member in self._members.values():
            member.close()
        self._members.clear()
        if self._reader is not None:
            self._reader.close()
        self._sender.close()

    # -- settling

    def _by_member(
        self, deliveries: Sequence[Delivery], settle: Callable[[GroupMember, list[Delivery]], Lapsed]
    ) -> Lapsed:
        if len(self._members) == 1:
            return settle(next(iter(self._members.values())), list(deliveries))
        lapsed: list[Delivery] = []
        for queue, member in self._members.items():
            mine = [delivery for delivery in deliveries if delivery.queue == queue]
            if mine:
                lapsed.extend(settle(member, mine))
        return tuple(lapsed)

    def _copy_then_finish(self, copies: Sequence[tuple[Delivery, Record]]) -> None:
        """Confirmed first. What was not confirmed stays unfinished, and so uncommitted."""
        if not copies:
            return
        unconfirmed: frozenset[int] = frozenset()
        failure: PublishFailed | None = None
        try:
            self._send(copies[0][0].queue, [record for _, record in copies])
        except PublishFailed as exc:
            failure, unconfirmed = exc, frozenset(exc.unconfirmed)
        self.ack([delivery for index, (delivery, _) in enumerate(copies) if index not in unconfirmed])
        if failure is not None:
            raise failure

    def _check_sizes(self, queue: str, messages: Sequence[Outgoing]) -> None:
        longest = max((len(message.body) for message in messages), default=0)
        if longest > self._settings.max_body_bytes:
            raise BodyTooLarge(longest, self._settings.max_body_bytes, broker=BROKER, queue=queue)

    def _send(self, queue: str, records: Sequence[Record]) -> None:
        """Weighed as records: the copy of a full-sized message is a little longer, and must fit."""
        heaviest, limit = max(map(weight, records), default=0), self._settings.max_record_bytes
        if heaviest > limit:
            raise BodyTooLarge(heaviest, limit, broker=BROKER, queue=queue)
        for topic in {record[0] for record in records}:
            self._topics.ensure(topic)
            self._reinject_tier(topic)
        self._sender.send(queue, records)

    # -- records for the tiers: stamped with the time of parking, or the tier would not delay

    def _record(self, queue: str, message: Outgoing, now_ms: int) -> Record:
        if message.delay_s <= 0:
            return new_record(queue, message, now_ms, self._topics.oldest_stamp_ms(queue, now_ms))
        topic, tier = delay_record(queue, self._settings.tiers_ms, _ms(message.delay_s))
        self._warn_of_tier(topic, _ms(message.delay_s))
        _, body, key, headers, _ = new_record(queue, message, now_ms)
        return topic, body, key, parked(headers, tier), now_ms

    def _held_back(self, delivery: Delivery, delay_s: float) -> Record:
        topic, tier = delay_record(delivery.queue, self._settings.tiers_ms, _ms(delay_s))
        headers = parked(unparked(delivery.receipt.message.headers()), tier)
        return topic, delivery.body, delivery.key, headers, self._clock.epoch_ms()

    def _moved(self, queue: str, delivery: Delivery, message: Outgoing, now_ms: int) -> Record:
        key = message.key if message.key is not None else delivery.key
        counted = _counted(delivery, message) if queue == delivery.queue else None
        if counted is not None and self._settings.tiers_ms:
            topic, tier, _ = self._retry_tier(queue, counted, message.delay_s)
            _, body, _, headers, _ = new_record(queue, message, now_ms)
            return topic, body, key, parked(headers, tier), now_ms
        topic, body, _, headers, stamp_ms = self._record(queue, message, now_ms)
        return topic, body, key, headers, stamp_ms

    def _retry_tier(self, queue: str, counted: int, delay_s: float) -> tuple[str, dict[str, str], int]:
        """The tier of the attempt; a longer one when a longer delay was asked for, as far as there is one."""
        tiers_ms = self._settings.tiers_ms
        topic, headers, attempts = retry_record(queue, tiers_ms, counted - 1)
        wanted_ms = min(_ms(delay_s), tiers_ms[-1])
        if wanted_ms > int(headers[DELAY_HEADER]):
            topic, longer = delay_record(queue, tiers_ms, wanted_ms)
            headers |= longer
        return topic, headers, attempts

    def _warn_of_tier(self, topic: str, delay_ms: int) -> None:
        """Once per tier: a record waits behind those of its partition that are due later."""
        tier = work_topic(topic)
        tier_ms = self._settings.tiers_ms[tier[1] - 1] if tier else delay_ms
        if tier_ms != delay_ms and topic not in self._warned:
            self._warned.add(topic)
            log.warning(
                "kafka: a delay of %g s waits on %s with delays of up to %g s and may last as long; for a "
                "delay on time add %d to ?retry_tiers_ms=, on producers and workers",
                delay_ms / 1000, topic, tier_ms / 1000, delay_ms,
            )  # fmt: skip

    # -- the re-injector

    def _reinject_if_used(self, queue: str) -> None:
        """Start writing back once some tier of the queue exists; most queues never need it."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_again_s.get(queue, 0.0):
            return
        self._look_again_s[queue] = now_s + _LOOK_EVERY_S
        if not self._settings.reinject or work_topic(queue) is not None:
            return
        for n in range(1, len(self._settings.tiers_ms) + 1):
            if self._topics.exists(retry_topic(queue, n)):
                self._reinject(queue)
                return

    def _reinject_tier(self, topic: str) -> None:
        tier = work_topic(topic)
        if tier is not None and tier[0] in self._members and self._settings.reinject:
            self._reinject(tier[0])

    def _reinject(self, queue: str) -> None:
        self._look_again_s[queue] = math.inf
        if self._reinjector is not None:
            self._reinjector.add(queue)
            return
        self._reinjector = Reinjector(self._url, [queue], self._clock)
        self._reinjecting = threading.Thread(
            target=self._reinjector.run, name="shinar-kafka-reinject", daemon=True
        )
        self._reinjecting.start()

    def _commit(self, queue: str) -> None:
        """What this object has finished counts as consumed, also where the keeper is not done yet."""
        member = self._members.get(queue)
        if member is not None:
            member.flush()


def _held(deliveries: Sequence[Delivery]) -> list[Delivery]:
    return [delivery for delivery in deliveries if delivery.receipt.held]


def _lapsed(deliveries: Sequence[Delivery]) -> Lapsed:
    return tuple(delivery for delivery in deliveries if not delivery.receipt.held)


def _ms(delay_s: float) -> int:
    return max(1, round(delay_s * 1000))


def _counted(delivery: Delivery, copy: Outgoing) -> int | None:
    """The attempts of a copy that counts one more failure; None for a copy put back as it was."""
    attempts = (copy.facts or facts_of(copy.body)).attempts
    before = delivery.properties.get(ATTEMPTS_HEADER)
    if before is None:
        before = str(facts_of(delivery.body).attempts or 0)
    return attempts if attempts and attempts > 0 and str(attempts) != before else None
