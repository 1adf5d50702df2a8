"""Records of a topic that nobody has fetched yet: of our own partitions, and of other members' of the group.

A member that was killed keeps its partitions until its session ends. An empty answer of ours in that time
would call a queue empty that is not. Asks the cluster; hands out nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from shinar.brokers.kafka.client import ClusterWatch, KafkaSettings, our_error
from shinar.brokers.kafka.offsets import Track
from shinar.clock import Clock

#: Session of a member under `protocol=consumer`, where the server decides; its default.
_SERVER_SESSION_S: Final = 45.0
#: A rebalance takes a moment after a session has ended.
_MARGIN_S: Final = 3.0
#: Longest a question may take; without an answer nobody is suspected.
_ASK_S: Final = 2.0


def behind(consumer: Any, tracks: Iterable[Track], timeout_s: float) -> bool:
    """Does the cluster have records of ours that the client has not fetched yet?"""
    for track in tracks:
        place = TopicPartition(track.topic, track.number)
        low, high = consumer.get_watermark_offsets(place, timeout=timeout_s)
        if max(track.next_offset, low) < high:
            return True
    return False


def refuse(error: KafkaError, topic: str, watch: ClusterWatch) -> None:
    """Raise what a fetch said instead of a record, unless it passes by itself."""
    if error.code() in (KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED):
        return  # the second comes with on_lost, which is where it is dealt with
    if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        watch.note(error)
        return
    raise our_error(error, topic)


class OtherMembers:
    def __init__(self, consumer: Any, topic: str, settings: KafkaSettings, clock: Clock) -> None:
        self._consumer = consumer
        self._topic = topic
        self._clock = clock
        session_s = _SERVER_SESSION_S if settings.incremental else settings.session_timeout_s
        self._longest_s = session_s + _MARGIN_S
        self._suspected_s: float | None = None
        self._cleared = False
        self._stored: dict[int, int] = {}

    def rebalanced(self) -> None:
        """The group has dealt out its partitions again: look anew."""
        self._suspected_s, self._cleared = None, False
        self._stored.clear()

    def may_be_dead(self, mine: Collection[int]) -> bool:
        """Does another member own records that it does not seem to finish? Once a session's length has
        passed without a rebalance the owners are alive, and the question is not asked again."""
        if self._cleared:
            return False
        now_s = self._clock.monotonic_s()
        if self._suspected_s is not None and now_s - self._suspected_s > self._longest_s:
            self._cleared = True
            return False
        try:
            waiting = self._waiting(mine)
        except KafkaException:
            return False
        stands_still = any(self._stored.get(number, at) == at for number, at in waiting.items())
        self._stored = waiting
        if stands_still and self._suspected_s is None:
            self._suspected_s = now_s
        return stands_still

    def _waiting(self, mine: Collection[int]) -> dict[int, int]:
        """Others' partitions with unfinished records -> the position the group has stored."""
        topics = self._consumer.list_topics(self._topic, timeout=_ASK_S).topics
        numbers = [number for number in topics[self._topic].partitions if number not in mine]
        if not numbers:
            return {}
        places = [TopicPartition(self._topic, number) for number in numbers]
        found = {}
        for place in self._consumer.committed(places, timeout=_ASK_S):
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, place.partition), timeout=_ASK_S
            )
            at = max(low, place.offset)
            if at < high:
                found[place.partition] = at
        return found
