"""A queue as a folder, a message as a file, a reservation as a rename.

`ready/<due ms>-<id>.<deliveries>` waits. Taking it renames it to `held/<the same>.<token>`: a rename
succeeds once, so one consumer gets it. The modification time of a held file is the end of its lease.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from shinar.brokers.contract import Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.settlement.traits import Traits

OPTIONS = frozenset({"lease_s"})
#: Seconds a reservation lasts unless the URL says otherwise.
LEASE_S = 60.0
#: Pause between two looks at an empty queue, in seconds.
POLL_S = 0.02


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name="file",
        key=True,
        attempts="max",
        count_base=0,
        lease_s=url.number("lease_s", LEASE_S, least=0.001),
        lasting_lease=True,
        portable_receipts=True,
        release_counts=True,
        release_uncounted=True,
    )


def connect(url: BrokerUrl, clock: Clock) -> FileBroker:
    return FileBroker(Path(url.netloc + url.path), clock, traits(url))


class Stored(msgspec.Struct, array_like=True):
    body: bytes
    headers: dict[str, str]
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Name:
    """What a file's name says of its message; held ones have a token."""

    due_ms: int
    id: str
    deliveries: int
    token: str = ""

    @classmethod
    def of(cls, text: str) -> Name:
        head, deliveries, *token = text.split(".")
        due_ms, _, id_ = head.partition("-")
        return cls(int(due_ms), id_, int(deliveries), *token)

    def __str__(self) -> str:
        text = f"{self.due_ms:015d}-{self.id}.{self.deliveries}"
        return f"{text}.{self.token}" if self.token else text


class FileBroker:
    def __init__(self, root: Path, clock: Clock, traits: Traits) -> None:
        self.traits = traits
        self._root = root
        self._clock = clock
        self._numbers = itertools.count()

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            now_ms = self._clock.epoch_ms()
            id_ = f"{now_ms:015d}{next(self._numbers):09d}{secrets.token_hex(4)}"
            name = Name(now_ms + round(message.delay_s * 1000), id_, 0)
            path = self._folder(queue, "new") / id_
            with path.open("wb") as file:
                file.write(msgspec.msgpack.encode(Stored(message.body, dict(message.headers), message.key)))
                file.flush()
                os.fsync(file.fileno())
            path.rename(self._folder(queue, "ready") / str(name))

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        end_s = self._clock.monotonic_s() + wait_s
        while True:
            found = [taken for name in self._due(queue)[:limit] if (taken := self._take(queue, name))]
            left_s = end_s - self._clock.monotonic_s()
            if found or left_s <= 0:
                return found
            self._clock.sleep(min(POLL_S, left_s))

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return tuple(d for d in deliveries if not self._settle(d, None))

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        lapsed = []
        for delivery in deliveries:
            held = Name.of(delivery.receipt)
            due_ms = self._clock.epoch_ms() + round(delay_s * 1000) if delay_s > 0 else held.due_ms
            back = replace(held, due_ms=due_ms, deliveries=held.deliveries - (not count), token="")
            if not self._settle(delivery, self._folder(delivery.queue, "ready") / str(back)):
                lapsed.append(delivery)
        return tuple(lapsed)

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        lapsed = self.extend([delivery for delivery, _ in copies], self.traits.lease_s or LEASE_S)
        gone = {delivery.receipt for delivery in lapsed}
        kept = [(delivery, copy) for delivery, copy in copies if delivery.receipt not in gone]
        self.publish(queue, [copy for _, copy in kept])
        return (*lapsed, *self.ack([delivery for delivery, _ in kept]))

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        until_s = self._clock.epoch_s() + lease_s
        lapsed = []
        for delivery in deliveries:
            try:
                os.utime(self._held(delivery), (until_s, until_s))
            except FileNotFoundError:
                lapsed.append(delivery)
        return tuple(lapsed)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        for name in self._due(queue)[:limit]:
            yield self._delivery(queue, name, self._folder(queue, "ready") / str(name))

    def depth(self, queue: str) -> Depth:
        ready = len(self._due(queue))
        waiting = len(os.listdir(self._folder(queue, "ready")))
        return Depth(ready, len(os.listdir(self._folder(queue, "held"))), waiting - ready)

    def close(self) -> None:
        """Reservations end with their leases."""

    # --

    def _folder(self, queue: str, kind: str) -> Path:
        folder = self._root / quote(queue, safe="") / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _due(self, queue: str) -> list[Name]:
        """What can be taken, oldest first; reservations that lapsed are back among it."""
        now_s = self._clock.epoch_s()
        with os.scandir(self._folder(queue, "held")) as held:
            lapsed = [entry.name for entry in held if entry.stat().st_mtime <= now_s]
        for text in lapsed:
            self._rename(
                self._folder(queue, "held") / text,
                self._folder(queue, "ready") / str(replace(Name.of(text), token="")),
            )
        names = map(Name.of, sorted(os.listdir(self._folder(queue, "ready"))))
        return [name for name in names if name.due_ms <= now_s * 1000]

    def _take(self, queue: str, name: Name) -> Delivery | None:
        held = replace(name, deliveries=name.deliveries + 1, token=secrets.token_hex(8))
        waiting, taken = self._folder(queue, "ready") / str(name), self._folder(queue, "held") / str(held)
        until_s = self._clock.epoch_s() + (self.traits.lease_s or LEASE_S)
        try:
            # Before the rename, so that nobody finds it lapsed.
            os.utime(waiting, (until_s, until_s))
        except FileNotFoundError:
            return None
        if not self._rename(waiting, taken):
            return None
        return self._delivery(queue, name, taken, str(held), round(until_s * 1000))

    def _delivery(
        self, queue: str, name: Name, path: Path, receipt: str | None = None, until_ms: int | None = None
    ) -> Delivery:
        stored = msgspec.msgpack.decode(path.read_bytes(), type=Stored)
        return Delivery(
            body=stored.body,
            queue=queue,
            receipt=receipt,
            headers=stored.headers,
            key=stored.key,
            native_count=name.deliveries,
            received_ms=self._clock.epoch_ms(),
            lease_until_ms=until_ms,
            position=name.id,
        )

    def _held(self, delivery: Delivery) -> Path:
        return self._folder(delivery.queue, "held") / delivery.receipt

    def _settle(self, delivery: Delivery, target: Path | None) -> bool:
        """False when the reservation had lapsed, or was settled before."""
        if target is not None:
            return self._rename(self._held(delivery), target)
        try:
            self._held(delivery).unlink()
        except FileNotFoundError:
            return False
        return True

    def _rename(self, source: Path, target: Path) -> bool:
        try:
            source.rename(target)
        except FileNotFoundError:
            return False
        return True
