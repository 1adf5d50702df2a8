"""One queue on Redis, in either layout of the contract (contract rules, chapter 14): every operation is one
script and one round trip. Knows keys, scores and reservations; nothing of envelopes or brokers.

All times come from the given clock and travel as arguments, so that a pinned clock pins Redis.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import msgspec
import redis

from shinar.brokers.redis.frame import counted
from shinar.brokers.redis.keys import (
    DEFAULT_PREFIX,
    DEFAULT_RETRY_AFTER_S,
    DLQ_SUFFIX,
    Layout,
    deadline_score,
    delayed_score,
    keys,
    score_text,
)
from shinar.clock import Clock

log = logging.getLogger(__name__)

#: Elements in one variadic push: long enough to be quick, short enough to let others in.
PUSH_CHUNK: Final = 1000
#: Entries that one look at a queue fetches: flat memory, few round trips.
BROWSE_PAGE: Final = 100
#: What stands before the value in a deadline, in a twin, and in what earlier versions delayed.
_TOKEN: Final = re.compile(rb"[0-9a-f]{32}:")
#: Begins the token of an adopted reservation (8 of its 32 hex digits), so that its lapse can be counted.
ADOPTED_STEM: Final = "ad0b7ed0"


@dataclass(frozen=True, slots=True)
class RedisSettings:
    layout: Layout = "processing"
    #: None: a reservation never lapses, and dead workers' messages stay reserved.
    retry_after_s: float | None = DEFAULT_RETRY_AFTER_S
    #: How many entries one recovery moves at most; -1 is all.
    migration_batch_size: int = -1
    prefix: str = DEFAULT_PREFIX
    hash_tags: bool = False
    #: Processing layout: what a consumer without deadlines holds longer than this goes to another.
    adopt_s: float | None = None
    #: An adopted message that lapsed goes back with one attempt more, so that it cannot go round for ever.
    adopt_counts: bool = False
    #: False: never write a frame; headers stay behind (see `frame`).
    headers: bool = True


class Reservation(msgspec.Struct, frozen=True):
    #: The element as it was stored, frame included.
    raw: bytes
    #: What settles it: its token (processing) or its reserved member (laravel).
    handle: bytes
    #: Epoch seconds; None when it never lapses.
    lapses_s: int | None = None

    @property
    def counted(self) -> bool:
        """Laravel layout: False when the body has no attempts that could be counted."""
        return self.handle != self.raw


class RedisBatch(msgspec.Struct, frozen=True):
    reservations: list[Reservation]
    #: When the next delayed or reserved entry falls due, if nothing was there to reserve.
    next_due_s: float | None = None
    #: Laravel layout: identical copies left in the list because their twin is handed out.
    put_back: int = 0


class RedisWrite(msgspec.Struct, frozen=True):
    """What is stored in place of a settled message, or as a new one."""

    value: bytes
    #: None: at once. A number, also 0, goes through the delayed set.
    delay_s: float | None = None


#: A reservation to settle (None: just write) and what takes its place (None: nothing).
RedisStep = tuple[Reservation | None, RedisWrite | None]


class RedisQueue(ABC):
    """Base of the two layouts; `open_queue` picks."""

    def __init__(self, client: redis.Redis, name: str, clock: Clock, settings: RedisSettings) -> None:
        self.name = name
        self.keys = keys(name, settings.layout, settings.prefix, hash_tag=settings.hash_tags)
        self._client = client
        self._clock = clock
        self._settings = settings

    @abstractmethod
    def push(self, values: Sequence[bytes]) -> None: ...

    @abstractmethod
    def reserve(self, limit: int) -> RedisBatch:
        """Recover what lapsed, then take up to `limit`; never waits."""

    @abstractmethod
    def settle(self, steps: Sequence[RedisStep], target: RedisQueue | None = None) -> list[bool]:
        """Per step: True when done, False when the reservation had lapsed and nothing was touched."""

    @abstractmethod
    def extend(self, reservations: Sequence[Reservation], lease_s: float | None) -> list[bool]:
        """Per reservation: whether it is still held. None as lease only looks."""

    def held_without_deadline(self) -> int:
        """How many reserved messages no deadline will ever bring back; 0 where every reservation has one."""
        return 0

    # -- one at a time, for the conformance adapter and for tests

    def push_delayed(self, value: bytes, delay_s: float) -> None:
        self.settle([(None, RedisWrite(value, delay_s))])

    def recover(self) -> None:
        self.reserve(0)

    def reserve_one(self) -> Reservation | None:
        found = self.reserve(1).reservations
        return found[0] if found else None

    def ack(self, reservation: Reservation) -> bool:
        return self.settle([(reservation, None)])[0]

    def release(self, reservation: Reservation, delay_s: float, value: bytes) -> bool:
        """Hand back as `value`, which is the body with one attempt more."""
        return self.settle([(reservation, RedisWrite(value, delay_s))])[0]

    def dead_letter(self, reservation: Reservation, record: bytes) -> bool:
        target = open_queue(self._client, self.name + DLQ_SUFFIX, self._clock, self._settings)
        return self.settle([(reservation, RedisWrite(record))], target)[0]

    # -- shared

    def browse(self) -> Iterator[bytes]:
        """The ready list, then what the next reserve adds to it: lapsed reservations, delays that ended."""
        now_s = self._clock.epoch_s()
        yield from _pages(lambda first, last: self._client.lrange(self.keys.ready, first, last))
        if self._recovers:
            yield from self._due(self.keys.deadlines or self.keys.reserved, math.floor(now_s))
        for key in filter(None, (self.keys.delayed, self.keys.twins)):
            yield from self._due(key, now_s if self.keys.deadlines else math.floor(now_s))

    def _due(self, key: str, score: float) -> Iterator[bytes]:
        for member in _pages(
            lambda first, last: self._client.zrangebyscore(key, "-inf", score, first, last - first + 1)
        ):
            token = _TOKEN.match(member) if self.keys.deadlines else None
            yield member[token.end() :] if token else member

    def depth(self) -> tuple[int, int, int]:
        """Ready, reserved, delayed. What the next reserve brings back, lapsed or due, is ready."""
        now_s = self._clock.epoch_s()
        due_s = now_s if self.keys.deadlines else math.floor(now_s)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.llen(self.keys.ready)
            # In the processing layout by the list: other SDKs' consumers write no deadlines.
            (pipe.llen if self.keys.deadlines else pipe.zcard)(self.keys.reserved)
            pipe.zcount(self.keys.deadlines or self.keys.reserved, "-inf", math.floor(now_s))
            for key in filter(None, (self.keys.delayed, self.keys.twins)):
                pipe.zcard(key)
                pipe.zcount(key, "-inf", due_s)
            ready, held, lapsed, *waiting = pipe.execute()
        lapsed = min(lapsed, held) if self._recovers else 0
        delayed, due = sum(waiting[::2]), sum(waiting[1::2])
        return ready + lapsed + due, held - lapsed, delayed - due

    @property
    def _recovers(self) -> bool:
        """Laravel layout: without a retry_after nobody's lapsed messages are brought back."""
        return bool(self.keys.deadlines) or self._settings.retry_after_s is not None

    def _deadline(self, lease_s: float | None) -> int | None:
        return deadline_score(self._clock.epoch_s(), lease_s)

    def _extend(
        self, reservations: Sequence[Reservation], members: list[bytes], lease_s: float | None
    ) -> list[bool]:
        # Without retry_after nothing lapses: a finite deadline would shorten the lease.
        only_look = lease_s is None or self._settings.retry_after_s is None
        score = "" if only_look else score_text(self._deadline(lease_s))
        key = self.keys.deadlines or self.keys.reserved
        return _flags(_run(self._client, "extend", [key], [score, *members]))


class ProcessingQueue(RedisQueue):
    #: When others' messages were last looked for, by the monotonic clock.
    _adopted_s = -math.inf

    def push(self, values: Sequence[bytes]) -> None:
        if len(values) <= PUSH_CHUNK:
            self._client.rpush(self.keys.ready, *values)
            return
        with self._client.pipeline(transaction=True) as pipe:
            for start in range(0, len(values), PUSH_CHUNK):
                pipe.rpush(self.keys.ready, *values[start : start + PUSH_CHUNK])
            pipe.execute()

    def reserve(self, limit: int) -> RedisBatch:
        self._adopt()
        now_s = self._clock.epoch_s()
        deadline = self._deadline(self._settings.retry_after_s)
        stem = secrets.token_hex(12)
        found, due, uncounted = _run(
            self._client,
            "processing_reserve",
            [self.keys.ready, self.keys.reserved, self.keys.deadlines, self.keys.delayed, self.keys.twins],
            [
                math.floor(now_s),
                repr(now_s),
                score_text(deadline),
                self._settings.migration_batch_size,
                limit,
                stem,
                ADOPTED_STEM if self._settings.adopt_counts else "",
            ],
        )
        if uncounted:
            self._return_counted(uncounted)
            if not found and limit:
                return self.reserve(limit)
        taken = [
            Reservation(raw, f"{stem}{number:08x}".encode(), deadline) for number, raw in enumerate(found, 1)
        ]
        return RedisBatch(taken, float(due) if due else None)

    def depth(self) -> tuple[int, int, int]:
        self._adopt()  # or whoever only looks, as a stream does, would never see them come back
        return super().depth()

    def _adopt(self) -> None:
        after_s, now_s = self._settings.adopt_s, self._clock.monotonic_s()
        if after_s is None or now_s - self._adopted_s < after_s / 4:
            return
        self._adopted_s = now_s
        where = [self.keys.reserved, self.keys.deadlines]
        score = score_text(self._deadline(after_s))
        stem = ADOPTED_STEM + secrets.token_hex(8)
        count = _run(self._client, "processing_adopt", where, [score, stem])
        if count:
            log.info("%s: %d reserved messages had no deadline and have one now", self.name, count)

    def _return_counted(self, members: Sequence[bytes]) -> None:
        """Whoever held these never settled them: back to the queue with one attempt more."""
        steps: list[RedisStep] = []
        for member in members:
            held = Reservation(member[33:], member[:32])
            steps.append((held, RedisWrite(counted(held.raw))))
        self.settle(steps)

    def held_without_deadline(self) -> int:
        where = [self.keys.reserved, self.keys.deadlines]
        return max(0, int(_run(self._client, "processing_undated", where, [])))

    def settle(self, steps: Sequence[RedisStep], target: RedisQueue | None = None) -> list[bool]:
        place = (target or self).keys
        fields: list[bytes | str] = [secrets.token_hex(12)]
        for reservation, write in steps:
            fields += (reservation.handle, reservation.raw) if reservation else (b"", b"")
            fields += self._placed(reservation, write)
        where = [self.keys.reserved, self.keys.deadlines, place.ready, place.delayed, place.twins]
        return _flags(_run(self._client, "processing_settle", where, fields))

    def _placed(self, reservation: Reservation | None, write: RedisWrite | None) -> tuple[bytes | str, ...]:
        if write is None:
            return ("", b"", "")
        unchanged = reservation is not None and write.value == reservation.raw
        value = b"" if unchanged else write.value
        if not write.delay_s:
            return ("r", value, "")
        return ("d", value, repr(self._clock.epoch_s() + write.delay_s))

    def extend(self, reservations: Sequence[Reservation], lease_s: float | None) -> list[bool]:
        return self._extend(reservations, [r.handle + b":" + r.raw for r in reservations], lease_s)


class LaravelQueue(RedisQueue):
    def push(self, values: Sequence[bytes]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            for start in range(0, len(values), PUSH_CHUNK):
                chunk = values[start : start + PUSH_CHUNK]
                pipe.rpush(self.keys.ready, *chunk)
                pipe.rpush(self.keys.notify, *([b"1"] * len(chunk)))
            pipe.execute()

    def reserve(self, limit: int) -> RedisBatch:
        deadline = self._deadline(self._settings.retry_after_s)
        found, changes, due, put_back = _run(
            self._client,
            "laravel_reserve",
            [self.keys.ready, self.keys.reserved, self.keys.notify, self.keys.delayed],
            [
                math.floor(self._clock.epoch_s()),
                score_text(deadline),
                self._settings.migration_batch_size,
                limit,
                "" if self._settings.retry_after_s is None else "1",
            ],
        )
        taken = [
            Reservation(raw, _changed(raw, change), deadline)
            for raw, change in zip(found, changes.split(), strict=True)
        ]
        return RedisBatch(taken, float(due) if due else None, put_back)

    def settle(self, steps: Sequence[RedisStep], target: RedisQueue | None = None) -> list[bool]:
        if all(reservation and write is None for reservation, write in steps):
            members = [reservation.handle for reservation, _ in steps if reservation]
            return _flags(_run(self._client, "laravel_ack", [self.keys.reserved], members))
        place = (target or self).keys
        fields: list[bytes | str] = []
        for reservation, write in steps:
            fields += ("1", reservation.handle) if reservation else ("", b"")
            fields += self._placed(write)
        where = [self.keys.reserved, place.ready, place.notify, place.delayed]
        return _flags(_run(self._client, "laravel_settle", where, fields))

    def _placed(self, write: RedisWrite | None) -> tuple[bytes | str, ...]:
        if write is None:
            return ("", b"", "")
        if write.delay_s is None:
            return ("r", write.value, "")
        return ("d", write.value, score_text(delayed_score(self._clock.epoch_s(), write.delay_s)))

    def extend(self, reservations: Sequence[Reservation], lease_s: float | None) -> list[bool]:
        return self._extend(reservations, [r.handle for r in reservations], lease_s)


def open_queue(client: redis.Redis, name: str, clock: Clock, settings: RedisSettings) -> RedisQueue:
    kind = LaravelQueue if settings.layout == "laravel" else ProcessingQueue
    return kind(client, name, clock, settings)


def _changed(raw: bytes, change: bytes) -> bytes:
    """The member that laravel_reserve made of `raw`."""
    if change == b"-":
        return raw
    if b"," not in change:
        return raw[: raw.rindex(b":") + 1] + change + b"}"
    start, end, text = change.split(b",")
    return raw[: int(start)] + text + raw[int(end) :]


def _pages(fetch: Callable[[int, int], Any]) -> Iterator[bytes]:
    """Entry after entry, fetched by first and last index."""
    for first in itertools.count(0, BROWSE_PAGE):
        page: list[bytes] = fetch(first, first + BROWSE_PAGE - 1)
        yield from page
        if len(page) < BROWSE_PAGE:
            return


def _flags(outcome: bytes | str) -> list[bool]:
    return [mark in (49, "1") for mark in outcome]


@functools.cache
def _source(name: str) -> tuple[str, str]:
    text = (resources.files("shinar.brokers.redis") / "lua" / f"{name}.lua").read_text("utf-8")
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _run(client: redis.Redis, name: str, names: list[str], args: Sequence[Any]) -> Any:
    """By its hash; the text goes over the wire only when the server does not know it yet."""
    text, digest = _source(name)
    try:
        return client.evalsha(digest, len(names), *names, *args)
    except redis.exceptions.NoScriptError:
        return client.eval(text, len(names), *names, *args)
