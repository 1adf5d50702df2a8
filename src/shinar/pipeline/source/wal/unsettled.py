"""Messages of published segments whose ack the broker has not confirmed. Files only; settles nothing.

    <landing>/<stream>/<epoch>/redelivery/<batch>-<partition>/
        unsettled                        a fingerprint for each message that may be delivered again
        <batch>-<partition>.possible     fingerprints of the rows that a later segment marked because of it
        known                            fingerprints of redeliveries that were recognised and acknowledged

Beside these, a segment of an open batch counts as unsettled until it has its `.settled` mark. Nothing
here needs a lock: what a crash leaves out only makes later rows carry a mark that they need not carry.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from shinar import durable_files as durable
from shinar.clock import SYSTEM, Clock
from shinar.pipeline.rows.chunk import Chunk
from shinar.pipeline.rows.delivery_rows import named_messages
from shinar.pipeline.source.wal.redelivery import (
    FINGERPRINT_BYTES,
    Marked,
    Sifted,
    fingerprint,
)
from shinar.pipeline.source.wal.segments import (
    ATTEMPTS,
    SegmentRef,
    attempts_of,
    open_segments,
    read_left_attempt,
    read_segment,
)
from shinar.settlement.traits import Traits

#: How long a message may be delivered again: a week, as far as a stream's dedupe looks back. Longer than any
#: broker's lease, and long enough for a job that stood still over the weekend.
KEPT_S: Final = 7 * 86_400.0


class UnsettledLog:
    """What may be delivered again to one stream. Cheap while that is nothing, which is nearly always."""

    def __init__(self, ref: SegmentRef, traits: Traits, clock: Clock = SYSTEM) -> None:
        self._ref = ref
        self._clock = clock
        self._traits = traits
        self._folder = Path(ref.root, "redelivery")
        #: By path and size: neither a segment nor a list of fingerprints changes once it is written.
        self._read: dict[tuple[Path, int], Counter[bytes]] = {}

    def record(self, ref: SegmentRef, fingerprints: Iterable[bytes]) -> None:
        """The broker may deliver these messages of a segment again. The first record stands: it follows the
        first complete answer to the ack, and a repeated ack also misses what that one removed."""
        path = self._folder / _name(ref) / "unsettled"
        if not path.exists():
            durable.write(path, b"".join(fingerprints))

    def unsettled(self) -> dict[str, Counter[bytes]]:
        """What a delivery is compared with, by segment."""
        found = {path.parent.name: self._load(path) for path in self._folder.glob("*/unsettled")}
        # Of this batch, and of earlier ones whose commit could not reach the broker.
        for ref in open_segments(self._ref.root):
            if ref != self._ref and not ref.settled.exists() and self._may_have_lapsed(ref.path):
                found.setdefault(_name(ref), self._load(ref.path))
        # A task that stopped just before it publishes may still do so when its leases are over.
        for path, ref in attempts_of(self._ref) if self._leases_tell else []:
            if ref.partition != self._ref.partition and self._may_have_lapsed(path):
                found[_name(ref)] = found.get(_name(ref), Counter()) | self._load(path)
        return found

    def marked(self) -> Marked:
        """The marks that published segments carry, by the segment that is their reason."""
        found: Marked = Counter()
        for path in self._folder.glob("*/*.possible"):
            found.update((path.parent.name, print_) for print_ in _split(path.read_bytes()))
        return found

    def record_marked(self, ref: SegmentRef, marked: Sequence[tuple[str, bytes]]) -> None:
        """The segment `ref` is published, and its rows carry these marks."""
        for source in {source for source, _ in marked}:
            prints = [print_ for name, print_ in marked if name == source]
            durable.write(self._folder / source / f"{_name(ref)}.possible", b"".join(prints))

    def record_known(self, sifted: Sifted) -> None:
        """These redeliveries are acknowledged. For the count that users see, so not worth an fsync."""
        for source in set(sifted.known_in):
            prints = [
                fingerprint(delivery.queue, delivery.position, delivery.body, self._traits)
                for delivery, name in zip(sifted.known, sifted.known_in, strict=True)
                if name == source
            ]
            (self._folder / source).mkdir(parents=True, exist_ok=True)
            with open(self._folder / source / "known", "ab") as file:
                file.write(b"".join(prints))

    def counts(self) -> tuple[int, int]:
        """(redeliveries recognised, rows marked as possible ones), of the segments not forgotten yet."""
        sizes = (sum(path.stat().st_size for path in self._folder.glob(f"*/{name}")) for name in _COUNTED)
        known, possible = (size // FINGERPRINT_BYTES for size in sizes)
        return known, possible

    def forget_old(self) -> None:
        end_s = self._clock.epoch_s() - KEPT_S
        for folder in self._folder.glob("*-*"):
            if max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < end_s:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _leases_tell(self) -> bool:
        """A stable position is proof, and a lost connection has no term: there a lease says nothing."""
        return self._traits.lasting_lease and not self._traits.stable_position

    def _may_have_lapsed(self, path: Path) -> bool:
        """Whether the reservations of another task can have ended since it last wrote to `path`.

        It renewed them before a third of the lease had gone, so for half a lease they are safe."""
        if not (self._leases_tell and self._traits.lease_s):
            return True
        try:
            return self._clock.epoch_s() - path.stat().st_mtime > self._traits.lease_s / 2
        except FileNotFoundError:
            return False

    def _load(self, path: Path) -> Counter[bytes]:
        try:
            key = (path, path.stat().st_size)
            if key not in self._read:
                self._read[key] = Counter(self._prints(path))
            return self._read[key]
        except FileNotFoundError:
            return Counter()  # its batch was committed, or it was forgotten, just now

    def _prints(self, path: Path) -> Iterable[bytes]:
        if path.suffix != ".arrow":
            return _split(path.read_bytes())
        # An attempt's file is still being written; a segment must be whole.
        chunks = read_left_attempt(path) if path.parent.name == ATTEMPTS else read_segment(path)
        return _fingerprints(chunks, self._traits)


#: Files that `counts` sums up.
_COUNTED: Final = ("known", "*.possible")


def segment_fingerprints(path: Path, traits: Traits) -> Iterator[bytes]:
    return _fingerprints(read_segment(path), traits)


def _fingerprints(chunks: Iterable[Chunk], traits: Traits) -> Iterator[bytes]:
    for chunk in chunks:
        for queue, position, body in named_messages(chunk.rows):
            yield fingerprint(queue, position, body, traits)


def sync_before_ack(ref: SegmentRef) -> None:
    """A neighbour's segment is the reason for an ack: its name must survive a power cut first."""
    durable.sync(ref.folder)


def _name(ref: SegmentRef) -> str:
    return f"{ref.batch}-{ref.partition}"


def _split(packed: bytes) -> list[bytes]:
    # A crash may leave half a fingerprint at the end.
    size = FINGERPRINT_BYTES
    return [packed[at : at + size] for at in range(0, len(packed) - size + 1, size)]
