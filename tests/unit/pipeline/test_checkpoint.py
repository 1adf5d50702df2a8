"""A lake and a checkpoint of different times: never a message lost in silence, on a queue and on Kafka."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import servers
from shinar.brokers import Outgoing, connect, parse
from shinar.errors import RestoredLake
from shinar.pipeline.batch.journal import BatchId
from shinar.pipeline.checkpoint import captured_batches, check_batch, planned_offsets
from shinar.pipeline.lake.parquet import FolderStore
from shinar.pipeline.maintenance import retention, status
from shinar.pipeline.pipeline import Pipeline
from unit.pipeline.lakes import envelope, rows, spark, table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def publish(url: str, numbers: range) -> None:
    broker = connect(parse(url))
    broker.publish("orders", [Outgoing(body=envelope(number)) for number in numbers])
    broker.close()


def run(lake: Path, url: str, checkpoint: Path, **given: object) -> Pipeline:
    job = Pipeline(
        spark(), lake=str(lake), url=url, queue="orders", checkpoint=str(checkpoint), typed=False, **given
    )
    job.run(once=True)
    return job


def ids(job: Pipeline) -> set[int]:
    return {int(row["id"].removeprefix("id-")) for row in table(job.store, "messages", "id")}


def restored(folder: Path, backup: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)


def test_a_lake_older_than_its_checkpoint(tmp_path: Path) -> None:
    """A queue cannot hand its messages out again: the loss is named, and accepted only when asked for."""
    lake, checkpoint, backup = tmp_path / "lake", tmp_path / "checkpoint", tmp_path / "backup"
    url = f"sqlite://{tmp_path}/queue.db"
    publish(url, range(5))
    run(lake, url, checkpoint)
    shutil.copytree(lake, backup)
    publish(url, range(5, 8))
    assert ids(run(lake, url, checkpoint)) == set(range(8))
    for folder in lake.iterdir():  # as a backup of the tables has it; the landing belongs to the checkpoint
        if folder.name != "_shinar":
            restored(folder, backup / folder.name)
    publish(url, range(8, 10))
    with pytest.raises(RestoredLake, match=r"older than the checkpoint of job orders.*--after-restore"):
        run(lake, url, checkpoint)
    job = run(lake, url, checkpoint, after_restore="accept")
    assert ids(job) == {*range(5), 8, 9}
    assert ids(run(lake, url, checkpoint)) == {*range(5), 8, 9}  # said once, accepted for good


def test_a_lake_older_than_its_checkpoint_on_kafka(live_server: object, tmp_path: Path) -> None:
    """Kafka has the messages still: they come back."""
    server: servers.Server = live_server("kafka")
    lake, checkpoint, backup = tmp_path / "lake", tmp_path / "checkpoint", tmp_path / "backup"
    topic = f"orders{time.time_ns()}"
    broker = connect(parse(server.url))
    broker.publish(topic, [Outgoing(body=envelope(number)) for number in range(7)])

    def go(**given: object) -> Pipeline:
        job = Pipeline(
            spark(),
            lake=str(lake),
            url=server.url,
            queue=topic,
            checkpoint=str(checkpoint),
            typed=False,
            **given,
        )
        job.run(once=True)
        return job

    assert ids(go()) == set(range(7))
    shutil.copytree(lake, backup)
    broker.publish(topic, [Outgoing(body=envelope(number)) for number in range(7, 10)])
    assert ids(go()) == set(range(10))
    restored(lake, backup)
    broker.publish(topic, [Outgoing(body=envelope(10))])
    with pytest.raises(RestoredLake, match="older than the checkpoint"):
        go()
    assert ids(go(after_restore="replay")) == set(range(11))
    # And the other way round: the checkpoint is the older one, its next batch has a number the lake knows.
    shutil.copytree(checkpoint, tmp_path / "older")
    broker.publish(topic, [Outgoing(body=envelope(11))])
    assert ids(go()) == set(range(12))
    broker.publish(topic, [Outgoing(body=envelope(12))])
    restored(checkpoint, tmp_path / "older")
    with pytest.raises(RestoredLake, match=r"checkpoint of job .* is older than the lake"):
        go()
    assert ids(go(after_restore="replay")) == set(range(13))
    broker.close()


def test_a_batch_number_that_the_lake_has_with_other_messages_is_refused(tmp_path: Path) -> None:
    job = Pipeline(spark(), lake=str(tmp_path), job="job", typed=False)
    job.process(rows([envelope(1)]), BatchId("job", "epoch", 4))
    check_batch(job.store, BatchId("job", "epoch", 4), "same", "same")
    check_batch(job.store, BatchId("job", "epoch", 4), "now", "")  # a record of before there were offsets
    check_batch(job.store, BatchId("job", "epoch", 5), "now", None)
    for number, done in ((4, "then"), (4, None), (3, None)):
        with pytest.raises(RestoredLake, match="older than the lake"):
            check_batch(job.store, BatchId("job", "epoch", number), "now", done)


def test_planned_offsets_are_the_sources_own(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    path = tmp_path / "offsets" / "3"
    path.write_text('v1\n{"batchTimestampMs":1}\n{"orders":{"0":7}}')
    first = planned_offsets(tmp_path, 3)
    path.write_text('v1\n{"batchTimestampMs":2}\n{"orders":{"0":7}}')
    assert planned_offsets(tmp_path, 3) == first != ""
    path.write_text('v1\n{"batchTimestampMs":2}\n{"orders":{"0":8}}')
    assert planned_offsets(tmp_path, 3) != first
    assert planned_offsets(tmp_path, 4) == ""


def test_status_shows_a_batch_that_is_captured_and_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, url = tmp_path / "lake", f"sqlite://{tmp_path}/queue.db"
    publish(url, range(5))
    from shinar.errors import StoreError
    from shinar.pipeline.batch.processor import BatchProcessor

    def full(self: object, *_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(BatchProcessor, "decide", full)
        with pytest.raises(StoreError, match="the disk is full"):
            run(lake, url, lake / "_shinar" / "checkpoints" / "orders")
    job = Pipeline(spark(), lake=str(lake), job="other")
    (found,) = captured_batches(job.store)
    assert (found.job, found.rows) == ("orders", 5)
    assert status(job.store).captured == (found,)
    job = run(lake, url, lake / "_shinar" / "checkpoints" / "orders")
    assert ids(job) == set(range(5))
    assert status(job.store).captured == ()


def test_retention_of_plain_folders_keeps_what_was_committed(tmp_path: Path) -> None:
    """Else a quiet lake would look like one that was restored."""
    from datetime import timedelta

    job = Pipeline(spark(), lake=str(tmp_path), job="job", typed=False, table_format="parquet")
    job.process(rows([envelope(1)]), BatchId("job", "epoch", 4))
    assert isinstance(job.store, FolderStore)
    app = BatchId("job", "epoch", 4).app
    assert retention(job.store, timedelta(0), ("messages",)) == {"messages": 1}
    assert table(job.store, "messages") == []
    assert job.store.committed("messages", app) == 4
