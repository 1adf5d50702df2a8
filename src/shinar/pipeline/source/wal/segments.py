"""Frozen batches on disk: who may write one, who wins, when it goes. Files only; knows no broker, no Spark.

    <landing>/<stream>/<epoch>/
        batch-000000000007/part-0000.arrow      the segment: whoever links it first has won
                           part-0000.settled    its messages are acknowledged
        attempts/7-0-<attempt>.arrow            what an attempt has taken so far, before it wins or loses
        gone/  kept/                            batches on their way out, or kept for replay
        owed/                                   frozen messages whose ack did not take; see `owed`
        begun                                   written before any offset names this epoch
        committed                               number of the last batch the sink is done with

Only the driver makes a batch's folder and only the driver takes it away (by one rename), so an attempt that
comes late finds no folder to link into. That is the fence.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from shinar import durable_files as durable
from shinar.errors import StoreError
from shinar.pipeline.rows import schema
from shinar.pipeline.rows.chunk import Chunk

#: Cuts what is fsynced to a quarter, at a speed no broker reaches. In this thread: the other has the broker.
_WRITE: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_RECEIPTS: Final = b"shinar.receipts"
_BATCH: Final = "batch-"
#: The file that says that an epoch has begun.
BEGUN: Final = "begun"


class Fenced(StoreError):
    """The batch is over: this attempt came too late and must give back what it took."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the segment of one partition of one batch is, or will be."""

    root: str
    batch: int
    part: int

    @property
    def folder(self) -> Path:
        return Path(self.root, f"{_BATCH}{self.batch:012d}")

    @property
    def segment(self) -> Path:
        return self.folder / f"part-{self.part:04d}.arrow"

    @property
    def settled(self) -> Path:
        return self.segment.with_suffix(".settled")

    def mark_settled(self) -> None:
        # Worth repeating, not worth an fsync: without it the messages are only acknowledged once more.
        if self.folder.is_dir():
            self.settled.touch()


class Attempt:
    """One try to freeze a partition. Rows are written as they come; `publish` decides who wins."""

    def __init__(self, place: Place) -> None:
        self.place = place
        if not place.folder.is_dir():
            raise Fenced(f"batch {place.batch} is over; nothing was read")
        name = f"{place.batch}-{place.part}-{uuid.uuid4().hex}.arrow"
        self._path = Path(place.root, "attempts", name)
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._file, schema.ARROW, options=_WRITE)

    def write(self, chunk: Chunk) -> None:
        metadata = None if chunk.packed is None else {_RECEIPTS: chunk.packed}
        self._writer.write_batch(chunk.rows, custom_metadata=metadata)
        self._file.flush()

    def publish(self) -> bool:
        """Make the segment durable and visible. False: another attempt was first. Raises Fenced."""
        self._writer.close()
        self._file.close()
        try:
            durable.sync(self._path)
            os.link(self._path, self.place.segment)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise Fenced(f"batch {self.place.batch} is over; nothing was kept of it") from None
        durable.sync(self.place.folder)
        return True

    def discard(self) -> None:
        """The attempt needs no trace any more: it has won, or has given everything back."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()
        self._path.unlink(missing_ok=True)


class Landing:
    """The driver's side: opens batches, closes them, and sweeps what earlier runs left."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, batch: int, part: int) -> Place:
        return Place(str(self._root), batch, part)

    def begin(self) -> None:
        """Mark the epoch as begun, for as long as its checkpoint lives."""
        if not self.begun():
            durable.write(self._root / BEGUN, b"")

    def begun(self) -> bool:
        return (self._root / BEGUN).exists()

    def open(self, batch: int) -> None:
        folder = self.place(batch, 0).folder
        if folder.is_dir():
            return
        for path in (self._root / "attempts", folder):
            path.mkdir(parents=True, exist_ok=True)
        durable.sync(self._root)

    def open_batches(self) -> list[int]:
        """Batches whose folder is still there, oldest first."""
        return sorted(int(path.name.removeprefix(_BATCH)) for path in self._root.glob(f"{_BATCH}*"))

    def places(self, batch: int) -> list[Place]:
        """The segments a batch has, by partition."""
        names = sorted(self.place(batch, 0).folder.glob("part-*.arrow"))
        return [self.place(batch, int(path.stem.removeprefix("part-"))) for path in names]

    def left_attempts(self, batch: int) -> list[Path]:
        """Files of attempts at this batch that ended without saying so."""
        return sorted((self._root / "attempts").glob(f"{batch}-*.arrow"))

    def committed(self) -> int:
        try:
            return int((self._root / "committed").read_text())
        except FileNotFoundError:
            return 0

    def kept(self, batch: int, part: int) -> Path:
        return (
            self._root / "kept" / self.place(batch, part).folder.name / self.place(batch, part).segment.name
        )

    def restore(self, batch: int) -> None:
        """Bring a kept batch back for a replay."""
        folder = self.place(batch, 0).folder
        (self._root / "kept" / folder.name).replace(folder)

    def close(self, batch: int, *, keep: bool) -> None:
        """The sink is done with this batch. Remember it, fence it off, then delete or keep the segments."""
        folder = self.place(batch, 0).folder
        if self.committed() < batch:
            durable.write(self._root / "committed", str(batch).encode())
        target = self._root / ("kept" if keep else "gone") / folder.name
        target.parent.mkdir(exist_ok=True)
        if folder.is_dir():
            folder.replace(target)
            durable.sync(self._root)
        for path in self.left_attempts(batch):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._root / "gone", ignore_errors=True)


def read_segment(path: Path | str) -> Iterator[Chunk]:
    """The chunks of a segment, or of an attempt's file as far as it was written."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            while True:
                rows, metadata = stream.read_next_batch_with_custom_metadata()
                if rows is None:
                    return
                yield Chunk(rows, metadata.get(_RECEIPTS) if metadata is not None else None)
    except StopIteration:
        return


def read_left_attempt(path: Path | str) -> Iterator[Chunk]:
    """`read_segment` of a file that may end anywhere."""
    try:
        yield from read_segment(path)
    except (pa.ArrowInvalid, OSError):
        return


def row_count(path: Path | str) -> int:
    return sum(chunk.rows.num_rows for chunk in read_segment(path))
