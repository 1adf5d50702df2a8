"""Frozen messages whose ack did not take: when the broker hands them out again they are known and dropped.

A lease may have ended before the ack, a connection may have been lost with it, a task may have died between
its segment and its ack. The rows are in the segment then, so the message must not become a second row.

    <landing>/<stream>/<epoch>/owed/<batch>-<part>.owed     a digest for each message that may come again
                                    <batch>-<part>.came     digests of those that came, and were acknowledged

A message is known by queue, position and bytes. Where a broker gives no position, two messages equal in every
byte cannot be told apart: then it is their number that is right. Where it takes no ack from another process
either, we may not know whether all of a segment was acknowledged or nothing of it. It is a debt only once a
good part of it comes again together. Files only; settles nothing itself.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from shinar import durable_files as durable
from shinar.brokers.contract import Delivery
from shinar.clock import SYSTEM
from shinar.pipeline.rows.delivery_rows import stamps_of
from shinar.pipeline.source.wal.segments import Place, read_segment
from shinar.settlement.traits import Traits

_SIZE: Final = 16
#: What has not come again by then was acknowledged after all.
KEPT_S: Final = 86_400.0
#: What must come again together to show that a segment was not acknowledged: so many messages, or half of a
#: small one; and this part of all second deliveries beside them.
LEAST_MET: Final = 10
LEAST_SHARE: Final = 0.2
#: So many second deliveries are enough to tell. Fewer may be the first ones of a connection just lost.
ENOUGH: Final = 50


def may_be_second(delivery: Delivery, traits: Traits) -> bool:
    """Whether this may be a second delivery; True as well where the broker does not say.
    A position names the message, so there a mark (which a restarted server may forget) need not agree."""
    if delivery.position:
        return True
    if delivery.redelivered is not None:
        return delivery.redelivered
    if traits.count_base is not None and delivery.native_count is not None:
        return delivery.native_count > traits.count_base
    return True


def tells_seconds(traits: Traits) -> bool:
    """Whether the broker marks, or counts, what it has handed out before."""
    return traits.marks_redelivery or traits.count_base is not None


class Owed:
    """What is owed to one stream. Cheap as long as that is nothing, which is nearly always."""

    def __init__(self, place: Place, traits: Traits) -> None:
        self._place = place
        self._traits = traits
        self._folder = Path(place.root, "owed")
        #: Segments do not change: each is looked into once.
        self._segments: dict[Path, Counter[bytes]] = {}

    def add(self, place: Place, stamps: Iterable[bytes]) -> None:
        """From now on these are no news. Repeating it changes nothing."""
        self._folder.mkdir(exist_ok=True)
        durable.write(self._folder / f"{place.batch}-{place.part}.owed", b"".join(stamps))

    @contextmanager
    def sifted(self, got: Sequence[Delivery]) -> Iterator[tuple[list[Delivery], list[Delivery]]]:
        """(news, frozen before). The caller acknowledges the latter inside, alone with the debts."""
        suspects = [delivery for delivery in got if may_be_second(delivery, self._traits)]
        if not suspects or not self._sources(suspects):
            yield list(got), []
            return
        self._folder.mkdir(exist_ok=True)
        with open(self._folder / "lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            marks = [stamp(delivery.queue, delivery.position, delivery.body) for delivery in suspects]
            debts = {name: self._open_debts(name, stamps) for name, stamps in self._sources(suspects).items()}
            if not self._traits.portable_receipts and not suspects[0].position:
                debts = {name: debt for name, debt in debts.items() if self._is_real(name, debt, marks)}
            again: list[Delivery] = []
            came: dict[str, list[bytes]] = {}
            for delivery, mark in zip(suspects, marks, strict=True):
                for name, debt in debts.items():
                    if debt[mark] > 0:
                        debt[mark] -= 1
                        again.append(delivery)
                        came.setdefault(name, []).append(mark)
                        break
            known = set(map(id, again))
            yield [delivery for delivery in got if id(delivery) not in known], again
            # After the ack: if we die before this, they stay known, and cannot become rows.
            for name, marks in came.items():
                _append(self._folder / f"{name}.came", b"".join(marks))

    def unsure(self, got: Sequence[Delivery]) -> bool:
        """Some of these may be a debt, but they are too few to tell: look at more before deciding."""
        suspects = [delivery for delivery in got if may_be_second(delivery, self._traits)]
        if not suspects or len(suspects) >= ENOUGH or self._traits.portable_receipts or suspects[0].position:
            return False
        marks = [stamp(delivery.queue, delivery.position, delivery.body) for delivery in suspects]
        debts = {name: self._open_debts(name, path) for name, path in self._sources(suspects).items()}
        return any(
            not debt.keys().isdisjoint(marks) and not self._is_real(name, debt, marks)
            for name, debt in debts.items()
        )

    def came(self) -> int:
        """How many came again and were acknowledged, of those not forgotten yet."""
        return sum(path.stat().st_size for path in self._folder.glob("*.came")) // _SIZE

    def forget_old(self, now_s: float | None = None) -> None:
        end_s = (SYSTEM.epoch_s() if now_s is None else now_s) - KEPT_S
        for path in (*self._folder.glob("*.owed"), *self._folder.glob("*.came")):
            if path.stat().st_mtime < end_s:
                path.unlink(missing_ok=True)

    def _sources(self, suspects: Sequence[Delivery]) -> dict[str, Path]:
        """Name of a debt -> the file that says what is owed: a list, or a segment nobody has settled yet."""
        found = {path.stem: path for path in self._folder.glob("*.owed")}
        # A segment of this very batch may be waiting for its ack, or for somebody to see that it never came.
        # Where a broker neither names its messages nor marks second deliveries, an equal one may be new.
        if suspects[0].position or tells_seconds(self._traits):
            for path in self._place.folder.glob("part-*.arrow"):
                part = int(path.stem.removeprefix("part-"))
                if part != self._place.part and not path.with_suffix(".settled").exists():
                    found.setdefault(f"{self._place.batch}-{part}", path)
        return found

    def _open_debts(self, name: str, path: Path) -> Counter[bytes]:
        try:
            debts = self._segment(path) if path.suffix == ".arrow" else Counter(_stamps(path.read_bytes()))
        except FileNotFoundError:
            return Counter()
        came = self._folder / f"{name}.came"
        if came.exists():
            debts.subtract(_stamps(came.read_bytes()))
        return debts

    def _is_real(self, name: str, debt: Counter[bytes], marks: Sequence[bytes]) -> bool:
        """Some of it has come before, or so much of it is among these second deliveries that they are no
        chance: messages equal to one of it, which a dead consumer happened to hold."""
        if (self._folder / f"{name}.came").exists():
            return True
        once = {mark for mark, count in debt.items() if count == 1} or {m for m, c in debt.items() if c > 0}
        met = len(once.intersection(marks))
        return met >= min(LEAST_MET, -(-len(once) // 2)) and met >= LEAST_SHARE * len(marks)

    def _segment(self, path: Path) -> Counter[bytes]:
        if path not in self._segments:
            self._segments[path] = Counter(segment_stamps(path))
        return self._segments[path].copy()


def stamp(queue: str, position: str, body: bytes) -> bytes:
    return blake2b(f"{queue}\0{position}\0".encode() + body, digest_size=_SIZE).digest()


def segment_stamps(path: Path) -> Iterator[bytes]:
    for chunk in read_segment(path):
        yield from (stamp(*named) for named in stamps_of(chunk.rows))


def _stamps(packed: bytes) -> list[bytes]:
    # A crash may leave half a stamp at the end.
    return [packed[at : at + _SIZE] for at in range(0, len(packed) - _SIZE + 1, _SIZE)]


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        # Whatever a crash left of the last write is cut off, or all that follows would be shifted.
        file.truncate(file.tell() // _SIZE * _SIZE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
