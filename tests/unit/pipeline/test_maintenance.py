"""Compaction, retention and vacuum change files, not answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shinar.errors import ConfigError, Unsupported
from shinar.pipeline import maintenance
from shinar.pipeline.batch.journal import BatchId, Journal, Manifest
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import ROW, Commit, TableStore, open_store


def fill(store: TableStore, batches: int) -> None:
    """One message a batch, batch n received n days ago."""
    for number in range(batches):
        moment = datetime.now(UTC) - timedelta(days=number)
        place = store.data_dir("messages", f"try-{number}")
        place.mkdir(parents=True)
        row = {"id": f"id-{number}", "received_at": moment, "headers": [("k", "v")], "batch": f"b{number}"}
        pq.write_table(pa.Table.from_pylist([row], schema=ROW), place / "part.parquet")
        files = tables.describe(store.root / "messages", [place / "part.parquet"])
        store.commit(Commit("messages", "job", number, files, tables.packed(ROW)))


def ids(store: TableStore) -> list[str]:
    found = (pq.read_table(path, columns=["id"])["id"].to_pylist() for path in store.files("messages"))
    return sorted(value for part in found for value in part)


def test_compaction_keeps_rows_and_marks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    (done,) = maintenance.compact(store)
    assert (done.files_before, done.files_after) == (5, 1)
    assert ids(store) == [f"id-{n}" for n in range(5)]
    # The batches are still known: a re-run after a compaction adds nothing.
    assert store.committed("messages", "job") == 4


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_retention(tmp_path: Path, table_format: str) -> None:
    store = open_store(tmp_path, table_format)
    fill(store, 5)
    gone = maintenance.retention(store, timedelta(days=2, hours=12))
    assert gone == {"messages": 2}
    assert ids(store) == ["id-0", "id-1", "id-2"]
    assert maintenance.retention(store, timedelta(days=2, hours=12)) == {"messages": 0}


def test_retention_inside_a_compacted_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    maintenance.compact(store)
    assert maintenance.retention(store, timedelta(days=2, hours=12)) == {"messages": 2}
    assert ids(store) == ["id-0", "id-1", "id-2"]


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_vacuum_removes_what_no_table_names(tmp_path: Path, table_format: str) -> None:
    store = open_store(tmp_path, table_format)
    fill(store, 2)
    orphan = store.data_dir("messages", "killed") / "part.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half a file")
    assert maintenance.vacuum(store) == 0
    assert orphan.exists()
    assert maintenance.vacuum(store, hours=0) >= 1
    assert not orphan.exists()
    assert ids(store) == ["id-0", "id-1"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="delta"):
        maintenance.compact(open_store(tmp_path / "folders", "parquet"))
    store = open_store(tmp_path / "lake")
    fill(store, 1)
    with pytest.raises(ConfigError, match="no table 'nothing'"):
        maintenance.compact(store, ("nothing",))


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_vacuum_leaves_what_a_decided_batch_has_yet_to_commit(tmp_path: Path, table_format: str) -> None:
    store = open_store(tmp_path, table_format)
    fill(store, 1)
    place = store.data_dir("messages", "decided")
    place.mkdir(parents=True)
    row = {"id": "id-1", "received_at": datetime.now(UTC), "batch": "b1"}
    pq.write_table(pa.Table.from_pylist([row], schema=ROW), place / "part.parquet")
    files = tables.describe(store.root / "messages", [place / "part.parquet"])
    commit = Commit("messages", "shinar/job/e", 0, files, tables.packed(ROW))
    journal = Journal(store, "job", "e")
    manifest = journal.record(Manifest(BatchId("job", "e", 0), (commit,), ()))
    maintenance.vacuum(store, hours=0)
    journal.carry_out(manifest)
    assert ids(store) == ["id-0", "id-1"]
    assert maintenance.status(store).unfinished == ()
