"""Copies are edits of the text: what is not to change does not change by a byte."""

from __future__ import annotations

import base64
import json

import pytest

from shinar.envelope import (
    DeadReason,
    attempts_of,
    build,
    dead_letter,
    dead_letter_copy,
    encode,
    poison_record,
    redrive_copy,
    reencode,
    retry_copy,
    unwrap_poison,
    with_attempts,
)
from shinar.errors import ContractError

BODY = encode(build("urn:babel:orders:created", {"n": 1}))
ODD = (
    b' { "job" : "urn:x" , "data":{"price":1.50,"big":12345678901234567890,"e":1E2,"s":"\\u00e9\\/"} ,\n'
    b'"attempts" : 2 , "x":[ ] } '
)


def block(**changes: object) -> object:
    fields = {"queue": "orders", "attempts": 3, "failed_ms": 7, **changes}
    return dead_letter(DeadReason.FAILED, **fields)  # type: ignore[arg-type]  # any of its fields


def test_retry_changes_the_digits_only() -> None:
    assert retry_copy(BODY) == BODY.replace(b'"attempts":0', b'"attempts":1')
    assert retry_copy(ODD) == ODD.replace(b'"attempts" : 2', b'"attempts" : 3').replace(
        b" ,\n", b","
    ).replace(b'"urn:x" , ', b'"urn:x",').replace(b"3 , ", b"3,").replace(b' { "job"', b' {"job"').replace(
        b"[ ] }", b"[ ]}"
    )


def test_values_keep_their_spelling() -> None:
    copy = retry_copy(ODD)
    for literal in (b"1.50", b"12345678901234567890", b"1E2", b"\\u00e9\\/", b"[ ]"):
        assert literal in copy


def test_an_untouched_body_is_identical() -> None:
    assert reencode(ODD) is ODD
    assert reencode(BODY) == BODY


@pytest.mark.parametrize(
    ("body", "copy"),
    [
        (b'{"job":"u"}', b'{"job":"u","attempts":1}'),
        (b'{"job":"u","attempts":null}', b'{"job":"u","attempts":1}'),
        (b'{"attempts":4,"job":"u"}', b'{"attempts":5,"job":"u"}'),
        (b'{"job":"u","attempts":1,"attempts":6}', b'{"job":"u","attempts":1,"attempts":7}'),
        (b'{"urn":"u","attempts":0}', b'{"job":"u","attempts":1}'),
        (b'{"job":" ","urn":"u","attempts":0}', b'{"job":"u","attempts":1}'),
        (b'{"job":5,"urn":"u","attempts":0}', b'{"job":"u","attempts":1}'),
        (b'{"job":"a","urn":"u","attempts":0}', b'{"job":"a","attempts":1}'),
        (b'{"job":"a","u\\u0072n":"u","attempts":0}', b'{"job":"a","attempts":1}'),
        (b'{"job":"u","timestamp":5,"attempts":0}', b'{"job":"u","attempts":1}'),
        (
            b'{"job":"u","meta":{"ts":1,"id":"i","max_retries":3},"attempts":0}',
            b'{"job":"u","meta":{"id":"i"},"attempts":1}',
        ),
        (b'{"job":"u","data":{"attempts":9,"urn":"v","ts":1},"attempts":0}',) * 2,
    ],
)
def test_retry_of_unusual_bodies(body: bytes, copy: bytes) -> None:
    expected = copy.replace(b'"attempts":0}', b'"attempts":1}')
    assert retry_copy(body) == expected


def test_text_that_looks_like_the_count_is_not_the_count() -> None:
    body = b'{"job":"u","attempts":1,"data":{"a":"x,\\"attempts\\":7}"}}'
    assert attempts_of(body) == 1
    assert retry_copy(body) == body.replace(b'"attempts":1', b'"attempts":2')
    nested = b'{"job":"u","attempts":1,"data":{"b":0,"attempts":7}}'
    assert attempts_of(nested) == 1


def test_dead_letter_appends_its_block_and_redrive_takes_it_off() -> None:
    dead = dead_letter_copy(BODY, block(error=ValueError("boom")))
    document = json.loads(dead)
    assert document["attempts"] == 3
    assert list(document["dead_letter"]) == [
        "reason",
        "error",
        "exception",
        "failed_at",
        "original_queue",
        "attempts",
        "lang",
    ]
    assert document["dead_letter"] == {
        "reason": "failed",
        "error": "boom",
        "exception": "ValueError",
        "failed_at": 7,
        "original_queue": "orders",
        "attempts": 3,
        "lang": "python",
    }
    assert redrive_copy(dead) == BODY


def test_a_second_death_replaces_the_first_block() -> None:
    twice = dead_letter_copy(dead_letter_copy(BODY, block()), block(attempts=5))
    assert twice.count(b'"dead_letter"') == 1
    assert json.loads(twice)["dead_letter"]["attempts"] == 5


def test_an_endless_error_text_is_cut_and_odd_text_is_made_printable() -> None:
    dead = json.loads(dead_letter_copy(BODY, block(error="\ud800" + "x" * 100_000)))
    assert len(dead["dead_letter"]["error"]) < 5000
    assert dead["dead_letter"]["error"].startswith("\\ud800")


def test_a_dead_letter_without_a_count_is_refused() -> None:
    with pytest.raises(ContractError, match="/dead_letter/attempts"):
        dead_letter_copy(BODY, block(attempts=None))


def test_with_attempts() -> None:
    assert attempts_of(with_attempts(BODY, 12)) == 12


POISON = dead_letter(DeadReason.POISON, queue="orders", attempts=1, failed_ms=7)

SPLICED = [
    b"{}",
    b'{"n":1e400}',
    b'{"n":12345678901234567890}',
    b'{"a":1,"a":2}',
    b'{"a":"\\ud83d\\ude00"}',
    b'{"meta":"x"}',
    b'{"deep":' + b"[" * 600 + b"]" * 600 + b"}",
]


@pytest.mark.parametrize("body", SPLICED, ids=lambda value: str(value)[:30])
def test_an_object_is_spliced_and_comes_out_again(body: bytes) -> None:
    record = poison_record(body, POISON)
    assert record.startswith(body[:-1])
    assert b'"raw"' not in record
    assert unwrap_poison(record) == body


WRAPPED = [
    b"",
    b"not json",
    b"null",
    b"[]",
    b'{"a":1} {"b":2}',
    b"\xef\xbb\xbf{}",
    b'{"a":NaN}',
    b'{"a":"\\ud800"}',
    b'{"a":"\\ud800\\u0041"}',
    b'{"\\udc00":1}',
    b'{"dead_letter":null}',
    b"\xff",
    b"\xe2\x82",
    b'{"a":"\xed\xa0\x80"}',
    b'{"deep":' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", WRAPPED, ids=lambda value: str(value)[:30])
def test_anything_else_is_wrapped_and_comes_out_again(body: bytes) -> None:
    record = json.loads(poison_record(body, POISON))
    raw = record["raw"]
    decoded = base64.b64decode(raw) if record.get("raw_encoding") == "base64" else raw.encode()
    assert decoded == body
    assert record["dead_letter"]["reason"] == "poison"
    assert unwrap_poison(poison_record(body, POISON)) == body
