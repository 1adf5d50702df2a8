"""The hash of an id is the one Spark computes, whatever the id."""

from __future__ import annotations

import random

import pyarrow as pa
from pyspark.sql import functions as F

from shinar.pipeline.batch.id_hash import id_hashes
from unit.pipeline.lakes import spark


def test_hashes_are_those_of_spark() -> None:
    dice = random.Random(7)
    ids = ["".join(dice.choice("ab0-ü€😀 ") for _ in range(length)) for length in range(1, 150)]
    ids = [text for text in ids if text.strip()]
    found = spark().createDataFrame([(text,) for text in ids], "id string").select("id", F.xxhash64("id"))
    expected = dict(map(tuple, found.collect()))
    assert id_hashes(pa.array(ids)).to_pylist() == [expected[text] for text in ids]
    same_length = [f"{number:036d}" for number in range(50)]
    alone = [id_hashes(pa.array([text])).to_pylist()[0] for text in same_length]
    assert id_hashes(pa.array(["x", *same_length, "y"]).slice(1, 50)).to_pylist() == alone


def test_what_is_no_identity_has_no_hash() -> None:
    found = id_hashes(pa.array([None, "", " \t\r\n", " a "], pa.string())).to_pylist()
    assert found[:3] == [None, None, None]
    assert found[3] is not None
    assert id_hashes(pa.array([], pa.string())).to_pylist() == []
