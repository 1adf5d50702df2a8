"""Segments of the write-ahead log on disk: who may write one, which attempt wins, when it is removed.

    <landing>/<stream>/<epoch>/
        batch-000000000007/part-0000.arrow      the segment: the attempt that links it first has won
                           part-0000.settled    the broker has confirmed the ack of its messages
        attempts/7-0-<attempt>.arrow            what an attempt has reserved so far, before it wins or loses
        gone/  kept/                            batches on their way out, or kept for replay
        redelivery/                             messages whose ack is not confirmed; see `unsettled`
        begun                                   written before any offset names this epoch
        committed                               number of the last batch that the sink has committed

Only the driver creates a batch's folder and only the driver removes it (by one rename), so an attempt that is
late finds no folder to link into. That is the fence. Files only: no broker and no Spark.
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
#: Metadata key of a chunk's receipts (MessagePack). "shinar.receipts", without a version, was a pickle.
_RECEIPTS: Final = b"shinar.receipts.2"
_PICKLED_RECEIPTS: Final = b"shinar.receipts"
_BATCH: Final = "batch-"
#: Folder of what attempts have reserved so far.
ATTEMPTS: Final = "attempts"
_PART: Final = "part-"
#: The file that says that an epoch has begun.
BEGUN: Final = "begun"


class Fenced(StoreError):
    """The batch is committed: this attempt is too late and must release what it reserved."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """Names the segment of one partition of one batch, whether it exists yet or not."""

    root: str
    batch: int
    partition: int

    @property
    def folder(self) -> Path:
        return Path(self.root, f"{_BATCH}{self.batch:012d}")

    @property
    def path(self) -> Path:
        return self.folder / f"{_PART}{self.partition:04d}.arrow"

    @property
    def settled(self) -> Path:
        return self.path.with_suffix(".settled")

    def mark_settled(self) -> None:
        # Not worth an fsync: without it the messages are only acknowledged once more.
        if self.folder.is_dir():
            self.settled.touch()


class Attempt:
    """One try to capture a partition. Rows are written as they come; `publish` decides which try wins."""

    def __init__(self, ref: SegmentRef) -> None:
        self.ref = ref
        if not ref.folder.is_dir():
            raise Fenced(f"batch {ref.batch} is committed already; this attempt read nothing")
        name = f"{ref.batch}-{ref.partition}-{uuid.uuid4().hex}.arrow"
        self._path = Path(ref.root, ATTEMPTS, name)
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_stream(self._file, schema.ARROW, options=_WRITE)

    def write(self, chunk: Chunk) -> None:
        metadata = None if chunk.receipts is None else {_RECEIPTS: chunk.receipts}
        self._writer.write_batch(chunk.rows, custom_metadata=metadata)
        self._file.flush()

    def seal(self) -> None:
        """Make the rows durable. The rest, `publish`, takes no time: check the leases in between."""
        self._writer.close()
        self._file.close()
        durable.sync(self._path)

    def publish(self) -> bool:
        """Make the sealed segment visible. False: another attempt was first. Raises Fenced."""
        try:
            os.link(self._path, self.ref.path)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise Fenced(f"batch {self.ref.batch} is committed already; this attempt kept nothing") from None
        durable.sync(self.ref.folder)
        return True

    def discard(self) -> None:
        """The attempt needs no trace any more: it has won, or has released everything."""
        if not self._file.closed:
            self._writer.close()
            self._file.close()
        self._path.unlink(missing_ok=True)


class Landing:
    """The driver's side: opens batches, closes them, and removes what earlier runs left."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def segment(self, batch: int, partition: int) -> SegmentRef:
        return SegmentRef(str(self._root), batch, partition)

    def begin(self) -> None:
        """Mark the epoch as begun, for as long as its checkpoint lives."""
        if not self.begun():
            durable.write(self._root / BEGUN, b"")

    def begun(self) -> bool:
        return (self._root / BEGUN).exists()

    def open(self, batch: int) -> None:
        folder = self.segment(batch, 0).folder
        if folder.is_dir():
            return
        for path in (self._root / ATTEMPTS, folder):
            path.mkdir(parents=True, exist_ok=True)
        durable.sync(self._root)

    def open_batches(self) -> list[int]:
        """Batches whose folder is still there, oldest first."""
        return sorted(int(path.name.removeprefix(_BATCH)) for path in self._root.glob(f"{_BATCH}*"))

    def segments(self, batch: int) -> list[SegmentRef]:
        """The segments that a batch has, by partition."""
        return [ref for ref in open_segments(str(self._root)) if ref.batch == batch]

    def left_attempts(self, batch: int) -> list[Path]:
        """Files of attempts at this batch that ended without removing them."""
        return sorted((self._root / ATTEMPTS).glob(f"{batch}-*.arrow"))

    def committed(self) -> int:
        try:
            return int((self._root / "committed").read_text())
        except FileNotFoundError:
            return 0

    def kept(self, batch: int, partition: int) -> Path:
        ref = self.segment(batch, partition)
        return self._root / "kept" / ref.folder.name / ref.path.name

    def restore(self, batch: int) -> None:
        """Bring a kept batch back for a replay."""
        folder = self.segment(batch, 0).folder
        (self._root / "kept" / folder.name).replace(folder)

    def close(self, batch: int, *, keep: bool) -> None:
        """The sink has committed this batch. Record it, fence it off, then delete or keep the segments."""
        folder = self.segment(batch, 0).folder
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


def open_segments(root: str) -> list[SegmentRef]:
    """Every published segment of a batch that is not committed, by batch and partition."""
    paths = sorted(Path(root).glob(f"{_BATCH}*/{_PART}*.arrow"))
    return [
        SegmentRef(root, int(path.parent.name.removeprefix(_BATCH)), int(path.stem.removeprefix(_PART)))
        for path in paths
    ]


def attempts_of(ref: SegmentRef) -> list[tuple[Path, SegmentRef]]:
    """Files of attempts at any partition of this batch, and the segment that each of them is for."""
    found = []
    for path in Path(ref.root, ATTEMPTS).glob(f"{ref.batch}-*.arrow"):
        found.append((path, SegmentRef(ref.root, ref.batch, int(path.stem.split("-")[1]))))
    return found


def read_segment(path: Path | str) -> Iterator[Chunk]:
    """The chunks of a segment, or of an attempt's file as far as it was written."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            while True:
                rows, metadata = stream.read_next_batch_with_custom_metadata()
                if rows is None:
                    return
                found = metadata or {}
                yield Chunk(_current(rows), found.get(_RECEIPTS), pickled=_PICKLED_RECEIPTS in found)
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


def _current(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of an earlier version, which had fewer columns, get nulls for the new ones."""
    if rows.schema.names == schema.ARROW.names:
        return rows
    have = set(rows.schema.names)
    columns = [
        rows.column(field.name) if field.name in have else pa.nulls(rows.num_rows, field.type)
        for field in schema.ARROW
    ]
    return pa.record_batch(columns, schema=schema.ARROW)
