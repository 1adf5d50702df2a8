from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThanOrEqual, StringStartsWith

from shinar.envelope import build, encode
from shinar.errors import ConfigError, StoreError
from shinar.pipeline.rows.chunk import Chunk
from shinar.pipeline.rows.validate import judged_batch
from shinar.pipeline.source.archive import ArchivePartition, _lines, plan_archive, read_archive
from shinar.pipeline.source.filters import passing, queues_left, usable, worth_judging
from shinar.pipeline.source.options import ArchiveOptions
from shinar.pipeline.source.wal.segments import Attempt, SegmentRef
from unit.pipeline.fuzz import bodies as fuzzed


def options_of(path: Path, parts: int = 0, kind: str = "") -> ArchiveOptions:
    return ArchiveOptions(path=str(path), format=kind, min_partitions=parts, include_headers=True)


def rows_of(path: Path, parts: int = 0, kind: str = "", tests: tuple = ()) -> list[dict]:
    found = plan_archive(options_of(path, parts, kind))
    return [row for part in found for batch in read_archive(part, tests, True) for row in batch.to_pylist()]


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=30), st.integers(1, 9))
def test_every_line_belongs_to_exactly_one_partition(tmp_path_factory, lines: list[bytes], parts: int):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    size = path.stat().st_size
    step = max(1, size // parts)
    found = [
        line
        for start in range(0, size, step)
        for _, some in _lines(ArchivePartition(str(path), "jsonl", start, min(start + step, size)))
        for line in some
    ]
    assert found == [line.rstrip(b"\r") for line in lines if line.rstrip(b"\r")]


def test_positions_lead_back_to_the_line(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"job":"a"}\n\n{"job":"b"}\r\nx\n')
    rows = rows_of(path)
    assert [(row["verdict"], row["position"]) for row in rows] == [
        ("accepted", f"{path}:0"),
        ("accepted", f"{path}:13"),
        ("poison", f"{path}:26"),
    ]


def test_compressed_lines_and_folders(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "a.jsonl.gz", "wb") as file:
        file.write(b'{"job":"a"}\n{"job":"b"}')
    pq.write_table(pa.table({"body": [b"{}"], "queue": ["q"]}), tmp_path / "b.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert [(row["urn"], row["queue"]) for row in rows_of(tmp_path)] == [
        (None, "q"),
        ("a", None),
        ("b", None),
    ]


def test_parquet_row_groups_are_divided(tmp_path: Path):
    column = list(fuzzed(500, 3))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": pa.array(column, pa.binary())}), path, row_group_size=100)
    assert len(plan_archive(options_of(path, parts=5))) >= 5
    rows = rows_of(path, parts=5)
    assert [row["body"] for row in rows] == column
    assert rows[-1]["position"] == f"{path}#{len(column) - 1}"


@pytest.mark.parametrize(
    ("name", "content", "error", "text"),
    [
        ("a.xyz", b"x", ConfigError, "archiveFormat"),
        ("a.export.jsonl", b'{"job":"a"}', StoreError, "exactly one of body"),
        ("a.export.jsonl", b"x", StoreError, "not an export record"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str, content: bytes, error: type, text: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=text):
        rows_of(tmp_path / name)


def test_of_a_folder_only_the_data_is_read(tmp_path: Path):
    """Delta's log, Spark's notes, and what a landing holds beside its segments."""
    table = pa.table({"body": pa.array([b"{}"] * 4, pa.binary())})
    for name in ("t/a.parquet", "t/data/b[1].parquet", "t/_delta_log/0.json", "t/_spark_metadata/0", "t/.x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b'{"commitInfo":{}}\n')
        if name.endswith(".parquet"):
            pq.write_table(table, tmp_path / name)
    found = plan_archive(options_of(tmp_path / "t"))
    assert {part.path.rpartition("/")[2] for part in found} == {"a.parquet", "b[1].parquet"}
    assert len(plan_archive(options_of(tmp_path / "t" / "data" / "b[1].parquet"))) == 1
    landing = tmp_path / "landing" / "epoch"
    beside = ("begun", "committed", "redelivery/1-0/unsettled")
    for name in (*beside, "attempts/1-0-x.arrow", "gone/batch-1/part-0000.arrow"):
        (landing / name).parent.mkdir(parents=True, exist_ok=True)
        (landing / name).write_bytes(b"")
    SegmentRef(str(landing), 2, 0).folder.mkdir()
    attempt = Attempt(SegmentRef(str(landing), 2, 0))
    attempt.write(Chunk(judged_batch(pa.record_batch({"body": pa.array([b"{}"], pa.binary())})), None))
    attempt.seal()
    assert attempt.publish()
    for path in (landing, tmp_path / "landing"):
        (part,) = plan_archive(options_of(path))
        assert part.path == str(attempt.ref.path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.jsonl.gz", gzip.compress(b'{"a":1}\n' * 1000)[:-20]),
        ("none.jsonl.gz", b"plain text"),
        ("empty.parquet", b""),
        ("junk.arrow", b"junk"),
        ("bad.export.jsonl", b'{"body_base64":"@@@@"}'),
        ("bad2.export.jsonl", b'{"body_base64":"abc"}'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=name):
        rows_of(tmp_path / name)


def test_no_files_and_object_stores_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no files"):
        rows_of(tmp_path)
    with pytest.raises(ConfigError, match="judged_frame"):
        plan_archive(ArchiveOptions(path="s3://b/x", format="", min_partitions=0, include_headers=True))


# -- filters only save work


def batch_of(column: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(column, pa.binary())})


def test_a_filtered_archive_has_the_rows_spark_would_keep():
    wanted = "urn:babel:orders:created"
    column = [*fuzzed(3000, 11), b'{"job":"urn:babel:orders:\\u0063reated"}']
    tests = usable([EqualTo(("urn",), wanted)])
    whole = [row for row in judged_batch(batch_of(column)).to_pylist() if row["urn"] == wanted]
    cut = worth_judging(batch_of(column), tests)
    assert cut.num_rows < len(column)
    assert passing(judged_batch(cut), tests).to_pylist() == whole
    assert whole[-1]["body"] == column[-1], "an escaped URN is still found"


def test_each_kind_of_filter():
    column = [encode(build("urn:babel:a:b", {})), encode(build("urn:babel:c:d", {})), b"x"]
    rows = judged_batch(batch_of(column))
    old = datetime(2000, 1, 1, tzinfo=UTC)

    def left(*filters) -> int:
        return passing(rows, usable(filters)).num_rows

    assert left(In(("urn",), ("urn:babel:a:b", "u"))) == 1
    assert left(StringStartsWith(("urn",), "urn:babel:")) == 2
    assert left(EqualTo(("verdict",), "poison")) == 1
    assert left(GreaterThan(("created_at",), old)) == 2
    assert left(LessThanOrEqual(("created_at",), old)) == 0
    assert usable([IsNull(("urn",)), EqualTo(("data",), "x"), EqualTo(("urn", "x"), "y")]) == ()
    assert usable([GreaterThan(("created_at",), old.replace(tzinfo=None))]) == (), "needs the session's zone"


def test_only_the_queues_asked_for_are_opened():
    assert queues_left("abc", usable([EqualTo(("queue",), "b")])) == ["b"]
    assert queues_left("abc", usable([In(("queue",), ("a", "c"))])) == ["a", "c"]
    assert queues_left("abc", usable([EqualTo(("urn",), "b")])) == ["a", "b", "c"]
