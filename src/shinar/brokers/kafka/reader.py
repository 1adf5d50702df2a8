"""Reading a topic by offsets, outside any group: for browsing, counting and Spark's batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from shinar.brokers.contract import Delivery
from shinar.brokers.kafka.client import BROKER, ClusterWatch, KafkaSettings, kafka_errors, our_error, settings
from shinar.brokers.kafka.records import delivery_of
from shinar.brokers.kafka.topics import Topics
from shinar.brokers.registry import parse
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.errors import BrokerError, BrokerUnavailable

#: Records per list handed out.
_BATCH: Final = 500
#: How long a range that the cluster says exists may yield nothing.
_STALL_S: Final = 30.0
#: What a group's coordinator answers while it is being found or is loading.
_NO_COORDINATOR_YET: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_COORDINATOR_PAUSE_S: Final = 0.2


class LogReader:
    """A client that joins no group. `group` only says whose stored offsets it looks at."""

    def __init__(self, settings: KafkaSettings, clock: Clock = SYSTEM) -> None:
        self._settings = settings
        self._clock = clock
        self._watch = ClusterWatch()
        self._topics = Topics(settings, self._watch)
        with kafka_errors():
            self._consumer = Consumer(
                {
                    **settings.common,
                    "error_cb": self._watch.note,
                    "group.id": settings.group,
                    "enable.auto.commit": False,
                    # Records that are gone must be an error, not a silent jump.
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 100,
                }
            )

    def exists(self, topic: str) -> bool:
        return self._topics.exists(topic)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Per partition the oldest offset there is and the one the next record will get."""
        found: dict[int, tuple[int, int]] = {}
        for number in self._topics.partitions(topic):
            with kafka_errors(topic, self._watch):
                found[number] = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=self._settings.timeout_s
                )
        return found

    def unconsumed(self, topic: str, group: str = "") -> dict[int, tuple[int, int]]:
        """The same, but from where the group has got to."""
        bounds = self.offsets(topic)
        stored = self._stored(topic, sorted(bounds), group)
        return {
            number: (min(max(low, stored.get(number, low)), high), high)
            for number, (low, high) in bounds.items()
        }

    def ranges(self, topic: str, wanted: Mapping[int, tuple[int, int]]) -> Iterator[list[Delivery]]:
        """The records of these ranges, each [start, end), oldest first within a partition."""
        left = {number: end for number, (start, end) in wanted.items() if start < end}
        quiet_since_s = self._clock.monotonic_s()
        with kafka_errors(topic, self._watch):
            self._consumer.assign([TopicPartition(topic, number, wanted[number][0]) for number in left])
        while left:
            with kafka_errors(topic, self._watch):
                messages: list[Any] = self._consumer.consume(_BATCH, 0) or [self._consumer.poll(0.5)]
            batch = self._batch(topic, messages, left)
            if batch:
                quiet_since_s = self._clock.monotonic_s()
                yield batch
            elif self._clock.monotonic_s() - quiet_since_s > _STALL_S:
                raise BrokerUnavailable(
                    f"no record for {_STALL_S:g} s though offsets {left} are promised",
                    broker=BROKER,
                    queue=topic,
                )

    def close(self) -> None:
        self._consumer.close()

    def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        with kafka_errors(topic, self._watch):
            stored = self._consumer.commit(
                offsets=[TopicPartition(topic, number, offset) for number, offset in offsets.items()],
                asynchronous=False,
            )
        for place in stored or ():
            if place.error is not None:
                raise our_error(place.error, topic)

    def _batch(self, topic: str, messages: list[Any], left: dict[int, int]) -> list[Delivery]:
        now_ms = self._clock.epoch_ms()
        batch: list[Delivery] = []
        for message in messages:
            if message is None:
                continue
            error, number = message.error(), message.partition()
            if error is not None:
                self._refuse(topic, error)
                if error.code() == KafkaError._PARTITION_EOF:
                    left.pop(number, None)
                continue
            end = left.get(number)
            if end is None:
                continue
            if message.offset() < end:
                batch.append(
                    delivery_of(message, topic, None, now_ms, f"{message.partition()}:{message.offset()}")
                )
            if message.offset() >= end - 1:
                left.pop(number)
        return batch

    def _refuse(self, topic: str, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise BrokerError(
                "the records at these offsets are gone (retention); start from a later offset",
                broker=BROKER,
                queue=topic,
            )
        if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
            raise our_error(error, topic)

    def _committed(self, consumer: Any, places: list[Any]) -> list[Any]:
        """A cluster that has just started is still finding the group's coordinator: ask again for a while."""
        deadline_s = self._clock.monotonic_s() + self._settings.timeout_s
        while True:
            try:
                found: list[Any] = consumer.committed(places, timeout=self._settings.timeout_s)
                return found
            except KafkaException as exc:
                if exc.args[0].code() not in _NO_COORDINATOR_YET or self._clock.monotonic_s() > deadline_s:
                    raise
                self._clock.sleep(_COORDINATOR_PAUSE_S)

    def _stored(self, topic: str, numbers: list[int], group: str) -> dict[int, int]:
        consumer = self._consumer
        if group:
            consumer = Consumer({**self._settings.common, "group.id": group, "enable.auto.commit": False})
        try:
            with kafka_errors(topic, self._watch):
                places = self._committed(consumer, [TopicPartition(topic, number) for number in numbers])
        finally:
            if group:
                consumer.close()
        return {place.partition: place.offset for place in places if place.offset >= 0}


def offsets(url: str | BrokerUrl, topic: str) -> dict[int, tuple[int, int]]:
    """{partition: (oldest offset, offset of the next record)}."""
    reader = _reader(url)
    try:
        return reader.offsets(topic)
    finally:
        reader.close()


def read_range(
    url: str | BrokerUrl, topic: str, partition: int, start: int, end: int
) -> Iterator[list[Delivery]]:
    """The records of [start, end) of one partition, outside any group: the same again each time."""
    reader = _reader(url)
    try:
        yield from reader.ranges(topic, {partition: (start, end)})
    finally:
        reader.close()


def commit_group(url: str | BrokerUrl, topic: str, offsets: Mapping[int, int]) -> None:
    """Store the group's position ({partition: next offset to read}). The cluster refuses while the
    group has live members."""
    reader = _reader(url)
    try:
        reader.commit(topic, offsets)
    finally:
        reader.close()


def _reader(url: str | BrokerUrl) -> LogReader:
    return LogReader(settings(parse(url) if isinstance(url, str) else url))
