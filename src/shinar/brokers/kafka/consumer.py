"""One consumer-group membership on one topic: records out, finished offsets in.

The caller's thread polls when it wants records; a keeper thread commits what is finished and
polls while the caller is busy, so that a long handler neither loses its partitions nor holds up
a rebalance. Every call of the client happens under `_polling`: it lets one thread in at a time
and runs our callbacks meanwhile. `_state` guards the bookkeeping and comes second; nobody holds it
while calling the client.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, TopicPartition

from shinar.brokers.contract import Delivery, Lapsed
from shinar.brokers.kafka.client import (
    BROKER,
    ClusterWatch,
    KafkaSettings,
    group_config,
    kafka_errors,
    our_error,
)  # fmt: skip
from shinar.brokers.kafka.lag import OtherMembers, behind, refuse
from shinar.brokers.kafka.offsets import HandedBack, KafkaReceipt, Track, Unstored, any_unstored
from shinar.brokers.kafka.records import delivery_of
from shinar.clock import SYSTEM, Clock
from shinar.errors import BrokerUnavailable, ShinarError

log = logging.getLogger(__name__)

#: The keeper polls for a caller that has not for this long.
_KEEP_ALIVE_S: Final = 0.5
#: Between two commits, and between two looks for the answer, which is only heard in a poll.
_ANSWER_S: Final = 0.02
#: How long `flush` waits for it; and a reserve, when it is overdue.
_FLUSH_S: Final = 5.0
_STORE_S: Final = 2.0
#: Longest single wait inside the client, so that Ctrl-C and close are noticed.
_SLICE_S: Final = 1.0
#: Records the keeper may have taken ahead before it pauses the partitions.
_AHEAD: Final = 100
#: The first reserve may take this long to join: the session of a killed member has to end first.
_JOIN_S: Final = 60.0
#: How long a reserve that must not wait does wait for records the cluster says are there.
_GRACE_S: Final = 1.0


class GroupMember:
    def __init__(self, settings: KafkaSettings, topic: str, clock: Clock) -> None:
        self.topic = topic
        self._settings = settings
        self._clock = clock
        self._watch = ClusterWatch()
        self._polling = threading.Lock()
        self._state = threading.Lock()
        self._tracks: dict[int, Track] = {}
        #: Partitions taken away in a rebalance that may yet give them back (eager groups).
        self._between: dict[int, Track] = {}
        self._ahead: deque[Delivery] = deque()
        self._later = HandedBack()
        self._unstored = Unstored()
        self._paused = False
        self.joined = False
        self._fault: ShinarError | None = None
        self._polled_s = self._asked_s = clock.monotonic_s()
        self._wake = threading.Event()
        self._closed = False
        with kafka_errors(topic):
            config = group_config(settings, settings.group, self._watch)
            self._consumer = Consumer(config | {"on_commit": self._on_commit})
            self._consumer.subscribe(
                [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        self._others = OtherMembers(self._consumer, topic, settings, clock)
        self._keeper = threading.Thread(target=self._keep, name=f"shinar-kafka-{topic}", daemon=True)
        self._keeper.start()

    # -- for the broker

    def take(self, limit: int, wait_s: float) -> list[Delivery]:
        with self._polling:
            if self._fault is not None:
                fault, self._fault = self._fault, None
                raise fault
            with kafka_errors(self.topic, self._watch):
                self._commit()
                self._join(wait_s)
                self._await_stored()
                out = self._from_ahead(limit)
                if len(out) < limit:
                    out += self._poll(limit - len(out), 0.0 if out else wait_s)
            if not out:
                self._complain_if_down()
            return out

    def finish(self, deliveries: Sequence[Delivery]) -> Lapsed:
        lapsed: list[Delivery] = []
        with self._state:
            for delivery in deliveries:
                receipt: KafkaReceipt = delivery.receipt
                if not receipt.track.finish(receipt.offset, receipt.turn):
                    lapsed.append(delivery)
            self._unstored.finished(self._clock.monotonic_s())
        self._wake.set()
        return tuple(lapsed)

    def put_back(self, deliveries: Sequence[Delivery], delay_s: float = 0.0) -> Lapsed:
        """Kafka cannot take a record back, so we hand it out again ourselves. Its offset stays
        uncommitted: if we die first, the next owner of the partition reads it again."""
        lapsed, due_s = [], self._clock.monotonic_s() + delay_s
        with self._state:
            for delivery in deliveries:
                receipt: KafkaReceipt = delivery.receipt
                if not receipt.held:
                    lapsed.append(delivery)
                elif not receipt.track.finished(receipt.offset):
                    turn = receipt.track.again(receipt.offset)
                    fresh = msgspec.structs.replace(receipt, turn=turn)
                    self._later.add(due_s, msgspec.structs.replace(delivery, receipt=fresh))
        return tuple(lapsed)

    def flush(self) -> None:
        """Store what is finished and wait for the answer, as far as it comes."""
        deadline = self._clock.monotonic_s() + _FLUSH_S
        with self._polling, kafka_errors(self.topic, self._watch):
            while self._unsaved() and self._clock.monotonic_s() < deadline:
                self._commit()
                self._ahead.extend(self._accept([self._consumer.poll(_ANSWER_S)]))

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._keeper.join()
        with kafka_errors(self.topic):
            self._consumer.close()
        self._drop(self._tracks, self._between)

    # -- polling (under `_polling`)

    def _join(self, wait_s: float) -> None:
        """An empty answer before the group gave us partitions would be a lie about the queue."""
        deadline = self._clock.monotonic_s() + max(_JOIN_S, wait_s)
        while not self.joined:
            if self._clock.monotonic_s() >= deadline:
                denied = self._watch.denied
                if denied is not None:
                    raise our_error(denied, self.topic)
                raise BrokerUnavailable(
                    f"group {self._settings.group} did not let us join within {_JOIN_S:g} s",
                    broker=BROKER,
                    queue=self.topic,
                )
            self._ahead.extend(self._accept([self._consumer.poll(0.1)]))

    def _await_stored(self) -> None:
        """A cluster that stores no positions may be away, however many records we have of it."""
        deadline = self._clock.monotonic_s() + _STORE_S
        while self._unstored.overdue(now_s := self._clock.monotonic_s()) and self._unsaved():
            if now_s > deadline:
                self._complain_if_down()
                return  # it is there: a long rebalance, perhaps
            self._ahead.extend(self._accept([self._consumer.poll(_ANSWER_S)]))
            self._commit()

    def _from_ahead(self, limit: int) -> list[Delivery]:
        out = self._ripe(limit)
        while self._ahead and len(out) < limit:
            delivery = self._ahead.popleft()
            if delivery.receipt.held:
                out.append(delivery)
        if self._paused and not self._ahead:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False
        return out

    def _ripe(self, limit: int) -> list[Delivery]:
        with self._state:
            return self._later.ripe(self._clock.monotonic_s(), limit)

    def _poll(self, limit: int, wait_s: float) -> list[Delivery]:
        out = self._accept(self._consumer.consume(limit, 0))
        if out:
            return out
        if wait_s <= 0:
            there = behind(self._consumer, self._tracks.values(), self._settings.timeout_s)
            wait_s = _GRACE_S if there else 0.0
        deadline = self._clock.monotonic_s() + wait_s
        while not out and (left_s := deadline - self._clock.monotonic_s()) > 0 and not self._closed:
            due_s = self._later.next_s(deadline) - self._clock.monotonic_s()
            out = self._accept([self._consumer.poll(max(0.0, min(left_s, due_s, _SLICE_S)))])
            out += self._ripe(limit - len(out))
            self._commit()  # again, if the last one failed
        while not out and not self._closed and self._others.may_be_dead(self._tracks.keys()):
            out = self._accept([self._consumer.poll(_SLICE_S)])
        if out and len(out) < limit:
            out += self._accept(self._consumer.consume(limit - len(out), 0))
        return out

    def _accept(self, messages: Sequence[Any]) -> list[Delivery]:
        self._polled_s = self._clock.monotonic_s()
        now_ms = self._clock.epoch_ms()
        out: list[Delivery] = []
        faults: list[KafkaError] = []
        doubtful: set[Track] = set()
        with self._state:
            for message in messages:
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    faults.append(error)
                    continue
                number, offset = message.partition(), message.offset()
                track = self._tracks.get(number)
                # Fetched before a rebalance took the partition away, or before it came back.
                if track is None or offset < track.next_offset or (doubtful and track in doubtful):
                    continue
                if not track.verified:
                    if offset > track.next_offset:
                        doubtful.add(track)
                        continue
                    track.verified = True
                track.took(offset)
                receipt = KafkaReceipt(track, offset, 0, message)
                out.append(delivery_of(message, self.topic, receipt, now_ms, f"{number}:{offset}"))
        for track in doubtful:
            self._ask_again(track)
        for error in faults:
            refuse(error, self.topic, self._watch)
        return out

    def _ask_again(self, track: Track) -> None:
        """The first record after an assignment lies beyond the stored position: compacted away what
        is between, or a leftover of an earlier assignment? Taking a leftover would skip records."""
        with contextlib.suppress(KafkaException):  # then the next record raises the same doubt
            self._consumer.seek(TopicPartition(self.topic, track.number, track.next_offset))
            track.verified = True

    def _complain_if_down(self) -> None:
        if not (self._watch.down or self._watch.denied):
            return
        with kafka_errors(self.topic, self._watch):
            self._consumer.list_topics(self.topic, timeout=2.0)
        self._watch.clear()

    # -- commits

    def _commit(self) -> None:
        """Ask the group to store what is finished. The answer comes by callback in a later poll."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < _ANSWER_S:
            return  # one for each batch would be stored ever later, and a later one stores as much
        with self._state:
            due = [(track, at) for track in self._tracks.values() if (at := track.due()) is not None]
        if due:
            self._consumer.commit(
                offsets=[TopicPartition(self.topic, track.number, at) for track, at in due],
                asynchronous=True,
            )
            self._asked_s = now_s
            for track, at in due:
                track.sent = at

    def _unsaved(self) -> bool:
        """Is anything finished of which we do not know that the group has stored it?"""
        with self._state:
            return any_unstored(self._tracks.values())

    def _on_commit(self, error: KafkaError | None, places: list[Any]) -> None:
        with self._state:
            for place in places:
                track = self._tracks.get(place.partition)
                if track is None:
                    continue
                if error is None and place.error is None:
                    track.committed = max(track.committed, place.offset)
                else:
                    track.sent = track.committed  # ask again
            if error is None:
                more = any_unstored(self._tracks.values())
                self._unstored.stored(self._clock.monotonic_s() if more else None)

    # -- rebalances (called by the client inside a poll)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        if self._closed:
            return  # while a consumer closes nobody answers its questions
        stored = partitions
        with contextlib.suppress(KafkaException):  # then the client itself looks the offsets up
            stored = consumer.committed(partitions, timeout=self._settings.timeout_s) if partitions else []
        with self._state:
            starts = [self._start(place) for place in stored]
            self._drop(self._between)
        if self._settings.incremental:
            consumer.incremental_assign(starts)
        else:
            consumer.assign(starts)
        self.joined = True
        self._others.rebalanced()

    def _start(self, place: Any) -> Any:
        """Where to read a partition from: where we stopped, if it only went round in a rebalance."""
        track = self._between.pop(place.partition, None)
        if track is not None and place.offset in (track.committed, track.sent):
            track.committed = track.sent = place.offset
            track.verified = False
            self._tracks[place.partition] = track
            return TopicPartition(self.topic, place.partition, track.next_offset)
        if track is not None:
            track.live = False  # another member had it in the meantime and got further
        self._tracks[place.partition] = Track(self.topic, place.partition, max(place.offset, 0), place.offset)
        # Without a stored offset a queue starts at its oldest record.
        return TopicPartition(
            self.topic, place.partition, place.offset if place.offset >= 0 else OFFSET_STORED
        )

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        self._commit_now(partitions)
        with self._state:
            gone = {place.partition: self._tracks.pop(place.partition, None) for place in partitions}
            kept = {number: track for number, track in gone.items() if track is not None}
            if self._settings.incremental:
                self._drop(kept)
            else:
                self._between.update(kept)

    def _commit_now(self, partitions: list[Any]) -> None:
        """The last chance before the partitions go. Waiting is safe here, inside the callback."""
        numbers = {place.partition for place in partitions}
        with self._state:
            ends = {
                number: track.position()
                for number, track in self._tracks.items()
                if number in numbers and track.position() > max(track.committed, 0)
            }
        if not ends:
            return
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self.topic, number, at) for number, at in ends.items()],
                asynchronous=False,
            )
        except KafkaException as exc:
            log.warning("kafka %s: finished offsets not committed on revoke: %s", self.topic, exc)
            return
        with self._state:
            for number, at in ends.items():
                self._tracks[number].committed = self._tracks[number].sent = at

    def _on_lost(self, _consumer: Any, partitions: list[Any]) -> None:
        log.warning("kafka %s: lost %d partitions; their records go to others", self.topic, len(partitions))
        with self._state:
            self._drop(self._tracks, self._between)

    def _drop(self, *groups: dict[int, Track]) -> None:
        for tracks in groups:
            for track in tracks.values():
                track.live = False
            tracks.clear()

    # -- the keeper's own thread

    def _keep(self) -> None:
        while not self._closed:
            if self._wake.wait(_ANSWER_S if self._unsaved() else _KEEP_ALIVE_S):
                SYSTEM.sleep(_ANSWER_S)  # a busy caller commits by itself, with its next reserve
            self._wake.clear()
            # While the caller polls it does all of this itself.
            if self._polling.acquire(blocking=False):
                try:
                    with kafka_errors(self.topic, self._watch):
                        self._keep_alive()
                except ShinarError as exc:
                    log.warning("kafka %s: %s; trying again", self.topic, exc)
                    self._fault = None if exc.transient else exc
                finally:
                    self._polling.release()

    def _keep_alive(self) -> None:
        self._commit()
        idle_s = self._clock.monotonic_s() - self._polled_s
        if idle_s < (_ANSWER_S if self._unsaved() else _KEEP_ALIVE_S):
            return
        self._ahead.extend(self._accept(self._consumer.consume(1, 0)))
        if len(self._ahead) >= _AHEAD and not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True
