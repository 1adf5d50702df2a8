"""Both kinds of store: visible after the commit and once, whatever is repeated or left over."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shinar.errors import ConfigError, StoreError
from shinar.pipeline.batch.journal import BatchId, Manifest, keep_columns, typed_path
from shinar.pipeline.lake import store as tables
from shinar.pipeline.lake.store import Commit, TableStore, existing_store, open_store
from shinar.pipeline.typed.types import PayloadColumn, PayloadColumns

SHAPE = pa.schema([("id", pa.string()), ("received_at", pa.timestamp("us", tz="UTC"))])


@pytest.fixture(params=["delta", "parquet"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TableStore:
    return open_store(tmp_path / "lake", request.param)


def change(
    store: TableStore,
    version: int,
    ids: list[str],
    *,
    app: str = "a",
    shape: pa.Schema = SHAPE,
    hour: int = 12,
) -> Commit:
    place = store.data_dir("messages", f"try-{app}-{version}-{len(ids)}-{hour}")
    place.mkdir(parents=True)
    moment = datetime(2026, 11, 15, hour, tzinfo=UTC)
    columns = {"id": ids, "received_at": [moment] * len(ids)}
    rows = pa.table({f.name: pa.array(columns.get(f.name, [None] * len(ids)), f.type) for f in shape})
    pq.write_table(rows, place / "part.parquet")
    (place / "killed.parquet").touch()  # what a killed task leaves behind
    files = tables.describe(store.root / "messages", [place / "part.parquet"])
    return Commit("messages", app, version, files, tables.packed(shape))


def ids(store: TableStore) -> list[str]:
    return sorted(
        value for path in store.files("messages") for value in pq.read_table(path)["id"].to_pylist()
    )


def test_nothing_is_visible_before_the_commit(store: TableStore) -> None:
    first = change(store, 0, ["x"])
    assert store.files("messages") == []
    assert store.commit(first)
    assert ids(store) == ["x"]


def test_a_repeated_commit_is_recognised(store: TableStore) -> None:
    first = change(store, 0, ["x"])
    assert store.commit(first)
    assert not store.commit(first)
    assert not store.commit(change(store, 0, ["y", "y"]))  # another attempt at the same batch
    assert ids(store) == ["x"]
    assert store.committed("messages", "a") == 0
    assert store.commit(change(store, 1, ["z"]))
    assert store.commit(change(store, 0, ["w"], app="b"))
    assert ids(store) == ["w", "x", "z"]
    assert store.committed("messages", "a") == 1
    assert store.committed("messages", "nobody") is None


def test_columns_are_added_and_never_changed(store: TableStore) -> None:
    store.commit(change(store, 0, ["x"]))
    wider = SHAPE.append(pa.field("amount", pa.int64()))
    store.commit(change(store, 1, ["y"], shape=wider))
    assert store.schema("messages").names == ["id", "received_at", "amount"]
    store.commit(change(store, 2, ["z"]))
    assert store.schema("messages").names == ["id", "received_at", "amount"]
    with pytest.raises(StoreError, match="amount is int64"):
        store.commit(change(store, 3, ["w"], shape=SHAPE.append(pa.field("amount", pa.string()))))
    assert ids(store) == ["x", "y", "z"]


def test_a_horizon_skips_old_files_only(store: TableStore) -> None:
    for version, hour in enumerate((1, 12, 23)):
        store.commit(change(store, version, [f"h{hour}"], hour=hour))
    noon_us = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1_000_000)
    found = [pq.read_table(path)["id"][0].as_py() for path in store.files("messages", noon_us)]
    assert sorted(found) == ["h12", "h23"]


def test_a_batch_without_rows_adds_no_file(store: TableStore) -> None:
    empty = change(store, 0, [])
    assert empty.files == ()


def test_tables_are_listed(store: TableStore) -> None:
    assert store.tables() == []
    store.commit(change(store, 0, ["x"]))
    assert store.tables() == ["messages"]
    assert store.schema("other") is None
    assert store.files("other") == []


def test_a_lake_keeps_its_format(tmp_path: Path) -> None:
    open_store(tmp_path, "parquet")
    assert type(open_store(tmp_path)).__name__ == "FolderStore"
    with pytest.raises(ConfigError, match="has parquet tables"):
        open_store(tmp_path, "delta")


def test_a_reader_makes_no_lake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Shinar tables"):
        existing_store(tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_object_store_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match="copy the tables"):
        open_store("s3://bucket/lake")


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_a_folder_that_delta_would_take_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="in its path"):
        open_store(tmp_path / name)
    assert not (tmp_path / name).exists()
    open_store(tmp_path / name, "parquet")


def test_a_half_written_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1 and no footer")
    with pytest.raises(StoreError, match="not a whole Parquet file"):
        tables.describe(tmp_path, [tmp_path / "part.parquet"])


def test_rivals_that_add_columns_all_get_in(tmp_path: Path) -> None:
    """Delta refuses a commit when the columns changed meanwhile: it is made again on the new ones."""
    store = open_store(tmp_path, "delta")

    def write(job: str) -> None:
        for number in range(6):
            shape = pa.schema([*SHAPE, (f"{job}{number}", pa.int64())])
            store.commit(change(store, number, [f"{job}{number}"], app=job, shape=shape))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, job) for job in "ab"]:
            done.result()
    assert ids(store) == sorted(f"{job}{number}" for job in "ab" for number in range(6))
    assert len(store.schema("messages")) == 2 + 12


def test_a_file_that_is_gone_is_never_committed(store: TableStore) -> None:
    store.commit(change(store, 0, ["x"]))
    second = change(store, 1, ["y"])
    (store.root / "messages" / second.files[0].path).unlink()
    with pytest.raises(StoreError, match=r"part\.parquet is gone.*bring it back"):
        store.commit(second)
    assert ids(store) == ["x"]


def test_columns_of_two_batches_are_joined(store: TableStore) -> None:
    def told(*columns: PayloadColumn) -> Manifest:
        packed = msgspec.Raw(msgspec.json.encode(PayloadColumns(columns)))
        return Manifest(BatchId("job", "e", 0), (), (), {"typed/t": packed})

    a, b = PayloadColumn(("a",), "a", "long"), PayloadColumn(("b",), "b", "string")
    keep_columns(store, told(a))
    keep_columns(store, told(b, PayloadColumn(("a",), "a", "string")))
    found = msgspec.json.decode(typed_path(store, "typed/t").read_bytes(), type=PayloadColumns)
    assert found.columns == (a, b)


def test_a_format_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'csv' is neither delta nor parquet"):
        open_store(tmp_path, "csv")
    for odd in "[]^|%\\":
        with pytest.raises(ConfigError, match="cannot lie in a folder"):
            open_store(tmp_path / f"a{odd}b")
    assert not list(tmp_path.iterdir())
