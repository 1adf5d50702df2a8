"""Writes parked records back to their work topic once they are due (RULES chapter 16).

Every worker runs one in a thread of its own; a cluster with many workers shares the work by
consumer group. Value, key and all headers but the two of the tier stay as they are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from shinar.brokers.kafka_client import Record, Sender, Settings, Watch, group_config, kafka_errors, settings
from shinar.brokers.kafka_record import unparked
from shinar.brokers.registry import parse
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, PublishFailed, ShinarError
from shinar.settlement.kafka import (
    DELAY_HEADER,
    ORIGINAL_TOPIC_HEADER,
    due_ms,
    retry_topic,
    wait_ms,
    work_topic,
)

log = logging.getLogger(__name__)

#: Appended to the group's name. Other SDKs use the same, so that theirs and ours share the tiers
#: instead of each writing every record back.
GROUP_SUFFIX: Final = "-retry-reinject"
#: Records read at once; a partition is paused as soon as its first one has to wait.
_BATCH: Final = 500
#: A tier topic made by somebody else is found within this time.
_REFRESH_MS: Final = 2_000
_PAUSE_AFTER_ERROR_S: Final = 1.0

_Place = tuple[str, int]


class Reinjector:
    """`run` until `stop`. Give the URL the workers have, and the work topics, not the tiers."""

    def __init__(self, url: str | BrokerUrl, topics: Sequence[str], clock: Clock = SYSTEM) -> None:
        self._settings: Settings = settings(parse(url) if isinstance(url, str) else url)
        if not self._settings.tiers_ms or not topics:
            raise ConfigError("a re-injector needs retry tiers and at least one work topic")
        self._clock = clock
        self._watch = Watch()
        self._sender = Sender(self._settings, self._watch)
        self._topics = set(topics)
        #: Per partition, oldest first, with the time each is due.
        self._parked: dict[_Place, deque[tuple[Any, int]]] = {}
        self._stopped = threading.Event()
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
        finally:
            self._consumer.close()
            self._sender.close()

    def stop(self) -> None:
        self._stopped.set()

    def step(self, wait_s: float) -> int:
        """Read for at most `wait_s`, write back what is due, return how many."""
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
            self._parked.pop((place.topic, place.partition), None)

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
            for message, when_ms in held:
                if when_ms > now_ms:
                    break
                due.append((place, message))
        if not due:
            return 0
        unconfirmed: set[int] = set()
        try:
            self._sender.send("", [_back(message) for _, message in due])
        except PublishFailed as exc:
            unconfirmed = set(exc.unconfirmed)
            log.warning("kafka re-injector: %s", exc)
        return self._settle(due, unconfirmed)

    def _settle(self, due: Sequence[tuple[_Place, Any]], unconfirmed: set[int]) -> int:
        """Commit up to the first unconfirmed one of each partition; those after it go again."""
        stuck: set[_Place] = set()
        ends: dict[_Place, int] = {}
        for index, (place, message) in enumerate(due):
            if index in unconfirmed:
                stuck.add(place)
            if place not in stuck:
                self._parked[place].popleft()
                ends[place] = message.offset() + 1
        with kafka_errors(watch=self._watch):
            if ends:
                self._consumer.commit(
                    offsets=[TopicPartition(*place, offset) for place, offset in ends.items()],
                    asynchronous=False,
                )
            empty = [place for place, held in self._parked.items() if not held]
            for place in empty:
                del self._parked[place]
            if empty:
                self._consumer.resume([TopicPartition(*place) for place in empty])
        return len(due) - len(unconfirmed)


def _back(message: Any) -> Record:
    tier = work_topic(message.topic())
    target = _text(message, ORIGINAL_TOPIC_HEADER) or (tier[0] if tier else message.topic())
    return target, message.value(), message.key(), unparked(message.headers()), 0


def _text(message: Any, wanted: str) -> str | None:
    for name, value in message.headers() or ():
        if name == wanted:
            return None if value is None else str(value.decode("utf-8", "replace"))
    return None
