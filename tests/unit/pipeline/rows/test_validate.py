from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shinar.envelope import judge
from shinar.envelope.model import MAX_DEPTH
from shinar.pipeline.rows import schema
from shinar.pipeline.rows import validate as judged
from unit.pipeline.fuzz import bodies

#: SHINAR_HEAVY=1 multiplies the fuzz by ten.
FUZZ = 1_000_000 if os.environ.get("SHINAR_HEAVY") else 100_000


def rows_of(column: list[bytes]) -> list[dict]:
    batch = judged.judged_batch(pa.record_batch([pa.array(column, pa.binary())], names=["body"]))
    assert batch.schema == schema.ARROW
    batch.validate(full=True)
    return batch.to_pylist()


def expected(body: bytes) -> dict:
    verdict = judge(body)
    row = {
        "verdict": verdict.kind.value,
        "reason": verdict.reason.value or None,
        "pointer": verdict.pointer or None,
        "warnings": [warning.pointer for warning in verdict.warnings] or None,
    }
    message = verdict.message
    if message is not None:
        shown = lambda text: text.encode("utf-8", "backslashreplace").decode() or None  # noqa: E731  # one line, one use
        row |= {
            "urn": shown(message.urn),
            "trace_id": shown(message.trace_id),
            "id": shown(message.meta.id),
            "queue": shown(message.meta.queue),
            "lang": shown(message.meta.lang),
            "attempts": message.attempts,
        }
    return row


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_every_fuzzed_body_is_judged_as_the_judge_does(seed: int):
    column = list(bodies(FUZZ // 4, seed))
    wrong = []
    kinds = set()
    for body, row in zip(column, rows_of(column), strict=True):
        want = expected(body)
        kinds.add((want["verdict"], want["reason"]))
        if {name: row[name] for name in want} != want or row["body"] != body:
            wrong.append((body, want, row))
    assert wrong == []
    # The fuzz is worth something only if it reaches every answer.
    assert {kind for kind, _ in kinds} == set(schema.VERDICTS)
    assert {"invalid_utf8", "number_out_of_range", "too_deep", "wrong_type", "incomplete"} <= {
        r for _, r in kinds
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=20), st.integers(0, 2**32))
def test_noise_beside_good_bodies_changes_no_neighbour(noise: list[bytes], seed: int):
    column = [*bodies(5, seed), *noise]
    random.Random(seed).shuffle(column)
    for body, row in zip(column, rows_of(column), strict=True):
        want = expected(body)
        assert {name: row[name] for name in want} == want


def test_the_payload_is_the_exact_text_that_was_sent():
    meta = '"meta":{"id":"a","queue":"q","lang":"go","schema_version":1,"created_at":1}'
    texts = ['{"price":99.90,"n":1E2}', '{ "b" : 1,\n"a":2 }', '{"s":"\\ud800","t":"\\/ü"}', "{}"]
    column = [f'{{"job":"u","trace_id":"t","data":{text},{meta},"attempts":0}}'.encode() for text in texts]
    assert [row["data"] for row in rows_of(column)] == texts


def test_the_last_payload_wins_and_an_absent_or_null_one_is_an_empty_object():
    """Contract chapter 5: such a body is ok, and null data is presented as an empty object."""
    column = [
        b'{"job":"u","trace_id":"t","data":5,"data":{"a":1},"meta":{"schema_version":1},"attempts":0}',
        b'{"job":"u","trace_id":"t","data":null,"meta":{"schema_version":1},"attempts":0}',
        b'{"urn":"u"}',
    ]
    found = rows_of(column)
    assert [(row["verdict"], row["reason"], row["data"]) for row in found] == [
        ("accepted", None, '{"a":1}'),
        ("accepted", "incomplete", "{}"),
        ("accepted", "incomplete", "{}"),
    ]


@pytest.mark.parametrize("name", ['"data"', '"d\\u0061ta"', '"DATA"'])
@pytest.mark.parametrize(
    "hidden",
    [b"1e999", b'"\xff"', b"9" * 400, b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, b"nul", b'"\\ud800"', b"1e99"],
)
def test_a_member_that_a_later_one_replaces_is_judged_all_the_same(name: str, hidden: bytes):
    meta = b'"meta":{"id":"","queue":"q","lang":"go","schema_version":1,"created_at":1760000000000}'
    body = b'{"job":"u","trace_id":"t",%s:%s,"data":{},%s,"attempts":-1}' % (name.encode(), hidden, meta)
    swapped = body.replace(b'"data":{},', b"").replace(b'{"job"', b'{"data":{},"job"')
    column = [body, swapped, body.replace(b":-1}", b":-0}")]
    for text, row in zip(column, rows_of(column), strict=True):
        want = expected(text)
        assert {name: row[name] for name in want} == want


@pytest.mark.parametrize("depth", range(MAX_DEPTH - 3, MAX_DEPTH + 4))
def test_depth_is_counted_from_the_envelope(depth: int):
    data = b'{"a":' + b"[" * (depth - 2) + b"]" * (depth - 2) + b"}"
    meta = b'"meta":{"id":"i","queue":"q","lang":"go","schema_version":1,"created_at":1}'
    body = b'{"job":"u","trace_id":"t","data":%s,%s,"attempts":0}' % (data, meta)
    (row,) = rows_of([body])
    assert (row["verdict"], row["reason"]) == (expected(body)["verdict"], expected(body)["reason"])


def test_times_no_calendar_shows_are_null_and_the_rest_are_utc():
    def at(millis: int) -> bytes:
        return json.dumps(
            {
                "job": "u",
                "trace_id": "t",
                "data": {},
                "attempts": 0,
                "meta": {"id": "a", "queue": "q", "lang": "go", "schema_version": 1, "created_at": millis},
            }
        ).encode()

    found = [
        row["created_at"] for row in rows_of([at(1760000000123), at(0), at(2**63 - 1), at(-(2**63)), at(-1)])
    ]
    assert found == [
        datetime(2025, 10, 9, 8, 53, 20, 123000, tzinfo=UTC),
        None,
        None,
        None,
        datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    ]


def test_dead_letter_members_become_columns():
    body = (
        b'{"job":"u","trace_id":"t","data":{},"meta":{"id":"a","queue":"q","lang":"go","schema_version":1,"created_at":1},'
        b'"attempts":3,"dead_letter":{"reason":"failed","error":"no","exception":"E","failed_at":1760000000000,'
        b'"original_queue":"q","attempts":3,"lang":"php"}}'
    )
    (row,) = rows_of([body])
    names = ("dl_reason", "dl_error", "dl_exception", "dl_original_queue", "dl_attempts", "dl_lang")
    assert [row[name] for name in names] == [
        "failed",
        "no",
        "E",
        "q",
        3,
        "php",
    ]
    assert row["dl_failed_at"] == datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)


def test_what_the_archive_knows_of_a_delivery_is_kept():
    batch = pa.record_batch(
        {
            "body": pa.array([b"{}", None], pa.binary()),
            "queue": ["orders", None],
            "position": ["7", "8"],
            "other": [1, 2],
        }
    )
    found = judged.judged_batch(batch).to_pylist()
    assert [(row["queue"], row["position"], row["broker"], row["verdict"]) for row in found] == [
        ("orders", "7", "archive", "no_identity"),
        (None, "8", "archive", "poison"),
    ]


def test_text_bodies_and_many_slices_are_the_same_rows():
    column = list(bodies(judged.CHUNK_ROWS + 77, 9))
    whole = rows_of(column)
    assert whole == [
        row for start in range(0, len(column), 100) for row in rows_of(column[start : start + 100])
    ]
    text = pa.record_batch([pa.array(["{}", '{"job":"u"}'], pa.string())], names=["body"])
    assert [row["verdict"] for row in judged.judged_batch(text).to_pylist()] == ["no_identity", "accepted"]


def test_no_rows_are_no_rows():
    assert rows_of([]) == []
