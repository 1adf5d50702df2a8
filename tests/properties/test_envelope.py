"""Attacks on the judge: it never raises, agrees with itself, and copies change what they say only."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from shinar.envelope import (
    DeadReason,
    Kind,
    attempts_of,
    build,
    classify,
    dead_letter,
    dead_letter_copy,
    encode,
    judge,
    poison_record,
    redrive_copy,
    reencode,
    retry_copy,
    unwrap_poison,
)
from shinar.envelope.verdict import _examine

text = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=12,
)
payloads = st.dictionaries(text, values, max_size=5)
#: Documents near the contract: known names with values that may or may not fit them.
names = st.sampled_from(
    ["job", "urn", "trace_id", "data", "meta", "attempts", "dead_letter", "timestamp", "x"]
)
metas = st.dictionaries(
    st.sampled_from(["id", "queue", "lang", "schema_version", "created_at", "ts", "source", "ext"]),
    scalars,
    max_size=5,
)
near = st.dictionaries(
    names, scalars | metas | payloads | st.sampled_from(["urn:x", " ", 1, 2**63]), max_size=8
)

BODY = encode(build("urn:babel:orders:created", {"n": 1.5, "s": "é", "a": [{}]}, trace_id="t"))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(body: bytes) -> None:
    assert judge(body).kind in Kind
    assert unwrap_poison(poison_record(body, POISON)).strip(b" \t\n\r") == body.strip(
        b" \t\n\r"
    ) or body.strip(b" \t\n\r").startswith(b"{")


POISON = dead_letter(DeadReason.POISON, queue="q", attempts=1, failed_ms=1)


@given(payloads, text, text)
def test_what_we_build_is_accepted_as_it_was_meant(data: dict, urn: str, trace: str) -> None:
    message = build("u" + urn, data, trace_id=trace)
    verdict = judge(encode(message))
    assert verdict.accepts
    assert verdict.message == message


@given(st.data())
def test_mutated_envelopes_get_the_same_answer_on_both_paths(data: st.DataObject) -> None:
    body = bytearray(BODY)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                body[place] = data.draw(st.integers(0, 255))
            case 1:
                del body[place]
            case _:
                body[place:place] = data.draw(
                    st.sampled_from([b'"', b"{", b"}", b"\\u", b"0", b",", b"\xff", b" "])
                )
    mutant = bytes(body)
    fast, exact = judge(mutant), _examine(mutant)
    assert (fast.kind, fast.reason, fast.pointer, fast.message) == (
        exact.kind,
        exact.reason,
        exact.pointer,
        exact.message,
    )


@given(near)
def test_documents_near_the_contract_get_the_same_answer_on_both_paths(document: dict) -> None:
    body = json.dumps(document, ensure_ascii=False).encode()
    fast, exact = judge(body), _examine(body)
    assert (fast.kind, fast.reason, fast.message) == (exact.kind, exact.reason, exact.message)


@given(near, st.sampled_from([None, 1, 2]), st.booleans())
def test_copies_change_what_they_say_and_nothing_else(
    document: dict, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    if classify(body) != "ok":
        return
    kept = json.loads(reencode(body))
    assert not kept.keys() & {"urn", "timestamp"}
    retried = json.loads(retry_copy(body))
    assert retried == kept | {"attempts": attempts_of(body) + 1}
    dead = dead_letter_copy(body, dead_letter(DeadReason.FAILED, queue="q", attempts=9, failed_ms=1))
    assert json.loads(dead) == kept | {"attempts": 9, "dead_letter": json.loads(dead)["dead_letter"]}
    back = json.loads(redrive_copy(dead))
    kept.pop("dead_letter", None)
    assert back == kept | {"attempts": 0}
