"""Writes parked records back to their work topic once they are due (contract rules, chapter 16).

Every worker runs one in a thread of its own; a cluster with many workers shares the work by
consumer group. Value, key and all headers but the two of the tier stay as they are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from shinar.brokers.kafka.client import (
    ClusterWatch,
    KafkaSettings,
    Record,
    RecordSender,
    group_config,
    kafka_errors,
    settings,
)
from shinar.brokers.kafka.records import unparked
from shinar.brokers.kafka.retry_tiers import (
    DELAY_HEADER,
    ORIGINAL_TOPIC_HEADER,
    due_ms,
    retry_topic,
    wait_ms,
    work_topic,
)
from shinar.brokers.kafka.topics import Topics, is_topic
from shinar.brokers.registry import parse
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, PublishFailed, ShinarError

log = logging.getLogger(__name__)

#: Appended to the group's name. Other SDKs use the same, so that theirs and ours share the tiers
#: instead of each writing every record back.
GROUP_SUFFIX: Final = "-retry-reinject"
#: Records read at once; a partition is paused as soon as its first one has to wait.
_BATCH: Final = 500
#: A tier topic made by somebody else is found within this time.
_REFRESH_MS: Final = 2_000
_PAUSE_AFTER_ERROR_S: Final = 1.0
#: How long a question about a topic may take; a stop waits for no more than that.
_ASK_S: Final = 2.0
#: What is parked was small enough for the cluster once; no limit of ours may keep it there.
_ANY_BYTES: Final = 900_000_000

_Place = tuple[str, int]


class Reinjector:
    """`run` until `stop`. Give the URL the workers have, and the work topics, not the tiers."""

    def __init__(self, url: str | BrokerUrl, topics: Sequence[str], clock: Clock = SYSTEM) -> None:
        self._settings: KafkaSettings = settings(parse(url) if isinstance(url, str) else url)
        if not self._settings.tiers_ms or not topics:
            raise ConfigError("a re-injector needs retry tiers and at least one work topic")
        self._clock = clock
        self._watch = ClusterWatch()
        self._stopped = threading.Event()
        patience_s = min(_ASK_S, self._settings.timeout_s)
        self._cluster = Topics(replace(self._settings, timeout_s=patience_s), self._watch)
        self._sender = RecordSender(
            replace(self._settings, max_body_bytes=_ANY_BYTES),
            self._watch,
            self._cluster.limit_bytes,
            self._stopped,
        )
        self._topics = set(topics)
        #: Per partition, oldest first, with the time each is due.
        self._parked: dict[_Place, deque[tuple[Any, int]]] = {}
        #: Offsets that were written back while one before them was not: not to be written twice.
        self._written: dict[_Place, set[int]] = {}
        #: Positions the group has not been told yet.
        self._ends: dict[_Place, int] = {}
        self._changed = threading.Event()
        with kafka_errors():
            self._consumer = Consumer(
                group_config(self._settings, self._settings.group + GROUP_SUFFIX, self._watch)
                | {"topic.metadata.refresh.interval.ms": _REFRESH_MS}
            )
        self._subscribe()

    def add(self, topic: str) -> None:
        """Look after one more work topic. May be called from another thread."""
        if topic not in self._topics:
            self._topics = self._topics | {topic}
            self._changed.set()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self.step(1.0)
                except ShinarError as exc:
                    log.warning("kafka re-injector: %s; trying again", exc)
                    self._stopped.wait(_PAUSE_AFTER_ERROR_S)
                except Exception:
                    # Without this thread no retry of the worker would ever come back, and nobody would know.
                    log.exception("kafka re-injector: unexpected; trying again")
                    self._stopped.wait(_PAUSE_AFTER_ERROR_S)
        finally:
            self._consumer.close()
            self._sender.close()

    def stop(self) -> None:
        self._stopped.set()

    def step(self, wait_s: float) -> int:
        """Read for at most `wait_s`, write back what is due, return how many. What could not be written
        is an error, after the rest has been settled."""
        if self._changed.is_set():
            self._changed.clear()
            self._subscribe()
        with kafka_errors(watch=self._watch):
            first = self._consumer.poll(self._until_due(wait_s))
            # Read before anything is parked: that pauses the partition, and with it what was fetched is gone.
            found = self._consumer.consume(_BATCH, 0)
            self._park(found if first is None else [first, *found])
        return self._write_back()

    def _subscribe(self) -> None:
        tiers = range(1, len(self._settings.tiers_ms) + 1)
        names = [retry_topic(topic, n) for topic in sorted(self._topics) for n in tiers]
        with kafka_errors():
            self._consumer.subscribe(names, on_revoke=self._forget, on_lost=self._forget)

    def _forget(self, _consumer: Any, partitions: list[Any]) -> None:
        """Nothing of these was committed; the next owner reads them again."""
        for place in partitions:
            for held in (self._parked, self._written, self._ends):
                held.pop((place.topic, place.partition), None)

    def _until_due(self, wait_s: float) -> float:
        heads = [held[0][1] for held in self._parked.values()]
        if not heads:
            return wait_s
        return min(wait_s, max(0.0, (min(heads) - self._clock.epoch_ms()) / 1000))

    def _park(self, messages: Sequence[Any]) -> None:
        now_ms = self._clock.epoch_ms()
        for message in messages:
            if message.error() is not None:
                continue  # a tier topic nobody has needed yet; it is looked up again by itself
            place = (message.topic(), message.partition())
            if place not in self._parked:
                self._parked[place] = deque()
                self._consumer.pause([TopicPartition(*place)])
            self._parked[place].append((message, self._due_ms(message, now_ms)))

    def _due_ms(self, message: Any, now_ms: int) -> int:
        tier = work_topic(message.topic())
        kind, stamp_ms = message.timestamp()
        wait = wait_ms(self._settings.tiers_ms, tier[1] if tier else 0, _text(message, DELAY_HEADER))
        return due_ms(stamp_ms if kind else None, wait, now_ms)

    def _write_back(self) -> int:
        now_ms = self._clock.epoch_ms()
        due: list[tuple[_Place, Any]] = []
        for place, held in self._parked.items():
            written = self._written.get(place, ())
            for message, when_ms in held:
                if when_ms > now_ms:
                    break
                if message.offset() not in written:
                    due.append((place, message))
        failure: PublishFailed | None = None
        if due:
            records = self._records([message for _, message in due])
            try:
                self._sender.send("", records)
            except PublishFailed as exc:
                failure = exc
        unconfirmed = set(failure.unconfirmed) if failure else set()
        for index, (place, message) in enumerate(due):
            if index not in unconfirmed:
                self._written.setdefault(place, set()).add(message.offset())
        self._settle()
        if failure is not None:
            raise failure
        return len(due)

    def _settle(self) -> None:
        """Commit up to the first unwritten one of each partition."""
        for place, written in list(self._written.items()):
            held = self._parked[place]
            while held and (offset := held[0][0].offset()) in written:
                held.popleft()
                written.discard(offset)
                self._ends[place] = offset + 1
            if not written:
                del self._written[place]
        with kafka_errors(watch=self._watch):
            for place in [place for place, held in self._parked.items() if not held]:
                self._consumer.resume([TopicPartition(*place)])
                del self._parked[place]
            if self._ends:
                ends = [TopicPartition(*place, offset) for place, offset in self._ends.items()]
                self._consumer.commit(offsets=ends, asynchronous=False)
                self._ends.clear()

    def _records(self, messages: Sequence[Any]) -> list[Record]:
        found: dict[str, bool] = {}
        records: list[Record] = []
        for message in messages:
            tier = work_topic(message.topic())
            target = own = tier[0] if tier else message.topic()
            asked = _text(message, ORIGINAL_TOPIC_HEADER) or own
            if asked != own:
                if asked not in found:
                    found[asked] = _may_be_work(asked) and self._cluster.exists(asked)
                if found[asked]:
                    target = asked
                else:
                    log.warning(
                        "kafka re-injector: %s[%d]@%d is to go back to %r, which is no topic; it goes to %s",
                        message.topic(), message.partition(), message.offset(), asked, own,
                    )  # fmt: skip
            records.append((target, message.value(), message.key(), unparked(message.headers()), 0))
        return records


def _may_be_work(name: str) -> bool:
    """A tier would park it once more, for ever; Kafka's own topics take nothing from a client."""
    return is_topic(name) and work_topic(name) is None and not name.startswith("__")


def _text(message: Any, wanted: str) -> str | None:
    for name, value in message.headers() or ():
        if name == wanted:
            return None if value is None else str(value.decode("utf-8", "replace"))
    return None
