"""Which deliveries were seen before, against the plain truth, when hashes collide and when they are many."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shinar.pipeline.batch import dedupe
from shinar.pipeline.batch.stage import KEYS
from shinar.pipeline.lake import store as tables
from unit.pipeline.lakes import NOON, spark


def keys(folder: Path, name: str, ids: list[str], hashes: list[int]) -> Path:
    count = len(ids)
    nothing = [None] * count
    columns = [hashes, ids, nothing, nothing, [NOON] * count, nothing, list(range(count))]
    path = folder / f"{name}.keys.parquet"
    arrays = [pa.array(column, field.type) for column, field in zip(columns, KEYS, strict=True)]
    pq.write_table(pa.table(arrays, schema=KEYS), path)
    return path


def history(folder: Path, ids: list[str], hashes: list[int]) -> object:
    rows = [
        {"id": id, "id_hash": hash, "batch": "old", "received_at": NOON}
        for id, hash in zip(ids, hashes, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=tables.ROW), folder / "history.parquet")
    return tables.read_files(spark(), [str(folder / "history.parquet")], tables.to_spark(tables.ROW))


def found(folder: str) -> set[tuple[str, int, str]]:
    return {
        (path.parent.name.removeprefix("file="), row["row"], row["first_batch"])
        for path in Path(folder).glob("*/*.parquet")
        for row in pq.read_table(path, partitioning=None).to_pylist()
    }


@pytest.mark.parametrize("with_history", [False, True])
def test_against_the_plain_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_history: bool) -> None:
    """Hashes of two bits collide all the time; the driver holds seven at a time."""
    monkeypatch.setattr(dedupe, "HASHES_IN_MEMORY", 7)
    dice = random.Random(5)
    ids = [[f"id-{dice.randrange(40)}" for _ in range(25)] for _ in range(2)]
    hashed = [[int(id[3:]) % 4 - 2 for id in part] for part in ids]
    paths = [keys(tmp_path, name, *part) for name, *part in zip("ab", ids, hashed, strict=True)]
    old = ["id-1", "id-2", "id-99"]
    past = history(tmp_path, old, [int(id[3:]) % 4 - 2 for id in old]) if with_history else None
    seen = dict.fromkeys(old, "old") if with_history else {}
    expected = set()
    for name, part in zip("ab", ids, strict=True):
        for row, id in enumerate(part):
            if id in seen:
                expected.add((name, row, seen[id]))
            seen.setdefault(id, "new")
    place = dedupe.find(spark(), paths, past, batch="new", work=tmp_path)
    assert found(place) == expected


def test_nothing_met_is_nothing_done(tmp_path: Path) -> None:
    path = keys(tmp_path, "a", ["id-1", "id-2"], [1, 2])
    assert dedupe.find(spark(), [path], None, batch="new", work=tmp_path) == ""
