"""A job's checkpoint beside its lake: whose it is, and whether both count the same batches.

Spark counts batches in the checkpoint, the tables count them in their logs. Restoring one of the two from a
backup breaks the count: a batch would be skipped as done, or be missing for good. Reads no message and knows
no broker module.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec

from shinar import durable_files as durable
from shinar.errors import ConfigError, RestoredLake
from shinar.pipeline.batch.journal import BatchId
from shinar.pipeline.config import PipelineConfig, url_ref
from shinar.pipeline.lake.store import STATE_DIR, TableStore

#: What a job does when its lake and its checkpoint do not agree.
AfterRestore = Literal["fail", "replay", "accept"]

_EPOCH_FILE: Final = "shinar-epoch"
_BROKER_FILE: Final = "shinar-broker"
#: The last batch that the lake had when this checkpoint moved past it.
_COMMITTED_FILE: Final = "shinar-committed"
#: Lines before the sources' own in a file of Spark's offset log: its version, and metadata with a clock time.
_LOG_HEAD: Final = 2


def checkpoint_dir(store: TableStore, config: PipelineConfig, job: str) -> Path:
    """The job's checkpoint; the lake remembers where it is, for `pipeline status`."""
    path = (
        Path(config.checkpoint) if config.checkpoint else store.root / STATE_DIR / "checkpoints" / job
    ).absolute()
    note = store.root / STATE_DIR / "jobs" / job / "checkpoint"
    if not note.exists() or note.read_text() != str(path):
        durable.write(note, str(path).encode())
    return path


def epoch_of(checkpoint: Path) -> str:
    """One per checkpoint, kept inside it: whoever deletes the checkpoint starts a new count of batches."""
    path = checkpoint / _EPOCH_FILE
    if not path.exists():
        new_epoch(checkpoint)
    return path.read_text().strip()


def new_epoch(checkpoint: Path) -> None:
    """Count batches anew: none of them is taken for one that the lake has."""
    (checkpoint / _COMMITTED_FILE).unlink(missing_ok=True)
    durable.write(checkpoint / _EPOCH_FILE, uuid.uuid4().hex.encode())


def same_broker(config: PipelineConfig, checkpoint: Path) -> None:
    """A checkpoint counts the positions of one broker: with another's, messages would be passed over. A queue
    has no positions, and may move."""
    where = url_ref(config)
    if not where.traits().replayable:
        return
    url = where.url()
    hosts = ",".join(sorted(url.netloc.lower().split(",")))
    mark = sha256(f"{url.scheme}\0{hosts}\0{url.path}".encode()).hexdigest()
    path = checkpoint / _BROKER_FILE
    if not path.exists():
        durable.write(path, mark.encode())
    elif path.read_text().strip() != mark:
        raise ConfigError(
            f"the checkpoint {checkpoint} is that of another broker, or of this one under another address; "
            f"give the job another name (--job), or remove {path} if it is the same broker",
            setting="url",
        )


class Committed(msgspec.Struct, frozen=True):
    epoch: str
    number: int


def remember_committed(checkpoint: Path, batch: BatchId) -> None:
    """After the lake has the batch, before Spark moves on."""
    durable.write(checkpoint / _COMMITTED_FILE, msgspec.json.encode(Committed(batch.epoch, batch.number)))


def check_lake(store: TableStore, checkpoint: Path, job: str, after: AfterRestore) -> None:
    """Refuse to go on from a checkpoint whose batches the lake has lost; or do what `after` says."""
    try:
        last = msgspec.json.decode((checkpoint / _COMMITTED_FILE).read_bytes(), type=Committed)
    except FileNotFoundError:
        return
    have = store.committed("batches", BatchId(job, last.epoch, last.number).app)
    if last.epoch != epoch_of(checkpoint) or (have is not None and have >= last.number) or after == "accept":
        return
    if after == "replay":
        aside = checkpoint.with_name(f"{checkpoint.name}.before-{uuid.uuid4().hex[:8]}")
        checkpoint.rename(aside)
        return
    found = "none of its batches" if have is None else f"its batches up to {have}"
    raise RestoredLake(
        f"the lake {store.root} is older than the checkpoint of job {job}: it has {found}, the checkpoint "
        f"counts {last.number} as committed. Restore the checkpoint {checkpoint} of the same time. Or add "
        "--after-restore replay to read again everything the broker still has (known ids are dropped), or "
        "--after-restore accept to go on without the missing messages"
    )


def planned_offsets(checkpoint: Path, number: int) -> str:
    """What Spark planned batch `number` to read, as a hash; "" when the offset log does not say."""
    lines = _offset_lines(checkpoint, number)
    return sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def _offset_lines(checkpoint: Path, number: int) -> list[str]:
    try:
        return (checkpoint / "offsets" / str(number)).read_text().splitlines()[_LOG_HEAD:]
    except OSError:
        return []


def check_batch(store: TableStore, batch: BatchId, planned: str, done: str | None) -> None:
    """Refuse a batch whose number the lake has with other messages: it would be skipped as done.

    `planned` are the offsets of the batch now, `done` those it was committed with (None: no record of it)."""
    if done is None:
        last = store.committed("batches", batch.app)
        if last is None or last < batch.number:
            return
    elif not done or not planned or done == planned:
        return
    raise RestoredLake(
        f"the checkpoint of job {batch.job} is older than the lake {store.root}: the lake has a batch "
        f"{batch.number} with other messages than the one to be read now. Restore the checkpoint of the same "
        "time. Or add --after-restore replay to read on from this checkpoint (known ids are dropped)"
    )


class CapturedBatch(msgspec.Struct, frozen=True):
    """A batch that Spark planned and the tables do not have: its messages may be out of the queue already."""

    job: str
    number: int
    #: Messages in its segments; None where the broker itself still has them.
    rows: int | None


def captured_batches(store: TableStore) -> Iterator[CapturedBatch]:
    """Of all jobs of a lake, as their checkpoints have it."""
    notes = (store.root / STATE_DIR / "jobs").glob("*/checkpoint")
    checkpoints = {note.parent.name: Path(note.read_text()) for note in sorted(notes)}
    for path in sorted((store.root / STATE_DIR / "checkpoints").glob("*/offsets")):
        checkpoints.setdefault(path.parent.name, path.parent)
    for job, checkpoint in sorted(checkpoints.items()):
        planned, done = (_numbers(checkpoint / log) for log in ("offsets", "commits"))
        epoch = checkpoint / _EPOCH_FILE
        for number in sorted(planned - done) if epoch.exists() else ():
            last = store.committed("batches", BatchId(job, epoch.read_text().strip(), number).app)
            if last is None or last < number:
                rows = _captured_rows(store, job, checkpoint, number)
                if rows != 0:
                    yield CapturedBatch(job, number, rows)


def _numbers(log: Path) -> set[int]:
    return {int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit()}


def _captured_rows(store: TableStore, job: str, checkpoint: Path, number: int) -> int | None:
    from shinar.pipeline.source.wal.segments import row_count

    try:
        offset = msgspec.json.decode(_offset_lines(checkpoint, number)[0])
        folder = store.root / STATE_DIR / "landing" / job / offset["epoch"] / f"batch-{offset['batch']:012d}"
    except (IndexError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return None
    return sum(row_count(path) for path in sorted(folder.glob("part-*.arrow")))
