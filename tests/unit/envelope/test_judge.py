"""What a body is: our own vectors for every step of the judge."""

from __future__ import annotations

import json
import time

import pytest

from shinar.envelope import Kind, Reason, classify, decode, judge
from shinar.envelope.decode import SENTENCES
from shinar.envelope.model import MAX_DEPTH
from shinar.errors import ContractError

GOOD = (
    b'{"job":"urn:babel:orders:created","trace_id":"t-1","data":{"n":1},"meta":{"id":"m-1","queue":"orders",'
    b'"lang":"php","schema_version":1,"created_at":1749132727000},"attempts":0}'
)


def deep(levels: int) -> bytes:
    return b'{"job":"u","data":{"x":' + b"[" * levels + b"]" * levels + b"}}"


POISON = [
    (b"", Reason.INVALID_JSON),
    (b" \t", Reason.INVALID_JSON),
    (b"plain text", Reason.INVALID_JSON),
    (GOOD[:-1], Reason.INVALID_JSON),
    (GOOD + b"x", Reason.INVALID_JSON),
    (GOOD + GOOD, Reason.INVALID_JSON),
    (GOOD + b"\x00", Reason.INVALID_JSON),
    (b"\xef\xbb\xbf" + GOOD, Reason.INVALID_JSON),
    (GOOD.decode().encode("utf-16"), Reason.INVALID_UTF8),
    (GOOD.replace(b"php", b"p\xffp"), Reason.INVALID_UTF8),
    (GOOD.replace(b"php", b"\xed\xa0\x80"), Reason.INVALID_UTF8),
    (b'{"job":"u","x":"\xc0\xaf"}', Reason.INVALID_UTF8),
    (b"{'job':'u'}", Reason.INVALID_JSON),
    (b'{"job":"u","n":NaN}', Reason.INVALID_JSON),
    (b'{"job":"u","n":-Infinity}', Reason.INVALID_JSON),
    (b'{"job":"u","n":01}', Reason.INVALID_JSON),
    (b'{"job":"u","s":"a\nb"}', Reason.INVALID_JSON),
    (b'{"job":"u","s":"\\x"}', Reason.INVALID_JSON),
    (b'{"job":"u",}', Reason.INVALID_JSON),
    (b"[]", Reason.NOT_AN_OBJECT),
    (b'"urn:x"', Reason.NOT_AN_OBJECT),
    (b"7", Reason.NOT_AN_OBJECT),
    (b'{"job":"u","data":{"n":1e400}}', Reason.NUMBER_OUT_OF_RANGE),
    (b'{"job":"u","data":{"a":[{"n":-1e999}]}}', Reason.NUMBER_OUT_OF_RANGE),
    (b'{"job":"u","other":1e400}', Reason.NUMBER_OUT_OF_RANGE),
    (b'{"job":"u","data":{"n":' + b"9" * 309 + b"}}", Reason.NUMBER_OUT_OF_RANGE),
    (b'{"job":"u","data":{"n":' + b"9" * 5000 + b"}}", Reason.NUMBER_OUT_OF_RANGE),
    (GOOD.replace(b'"n":1', b'"n":' + b"9" * 400), Reason.NUMBER_OUT_OF_RANGE),
    (deep(MAX_DEPTH), Reason.TOO_DEEP),
    (deep(100_000), Reason.TOO_DEEP),
    (b"[" * 100_000, Reason.TOO_DEEP),
]


@pytest.mark.parametrize(("body", "reason"), POISON, ids=lambda value: str(value)[:40])
def test_poison(body: bytes, reason: Reason) -> None:
    verdict = judge(body)
    assert (verdict.kind, verdict.reason, verdict.message) == (Kind.POISON, reason, None)
    assert verdict.body == body
    assert classify(body) == "poison"


WRONG_TYPES = [
    ({"trace_id": 1}, "/trace_id"),
    ({"data": []}, "/data"),
    ({"data": "x"}, "/data"),
    ({"meta": "x"}, "/meta"),
    ({"meta": {"id": 1}}, "/meta/id"),
    ({"meta": {"queue": []}}, "/meta/queue"),
    ({"meta": {"lang": True}}, "/meta/lang"),
    ({"meta": {"schema_version": "1"}}, "/meta/schema_version"),
    ({"meta": {"schema_version": 1.0}}, "/meta/schema_version"),
    ({"meta": {"created_at": True}}, "/meta/created_at"),
    ({"attempts": 1.0}, "/attempts"),
    ({"attempts": "3"}, "/attempts"),
    ({"attempts": False}, "/attempts"),
    ({"attempts": 2**63}, "/attempts"),
    ({"dead_letter": []}, "/dead_letter"),
    ({"dead_letter": {"reason": 5}}, "/dead_letter/reason"),
    ({"dead_letter": {"attempts": 1.5}}, "/dead_letter/attempts"),
]


@pytest.mark.parametrize(("members", "pointer"), WRONG_TYPES, ids=lambda value: str(value)[:40])
def test_a_known_member_of_a_wrong_type_is_poison_and_named(members: dict, pointer: str) -> None:
    verdict = judge(json.dumps({"job": "urn:x", **members}).encode())
    assert (verdict.kind, verdict.reason, verdict.pointer) == (Kind.POISON, Reason.WRONG_TYPE, pointer)


NO_IDENTITY = [
    b"null",
    b"{}",
    b'{"job":""}',
    b'{"job":" \\t\\n\\u000b\\f\\r"}',
    b'{"job":5}',
    b'{"urn":5}',
    b'{"job":null,"urn":" "}',
    b'{"JOB":"urn:x"}',
    b'{"job":"urn:x","job":5}',
]


@pytest.mark.parametrize("body", NO_IDENTITY)
def test_no_identity(body: bytes) -> None:
    assert judge(body).kind is Kind.NO_IDENTITY
    assert classify(body) == "no_identity"


IDENTITIES = [
    (b'{"job":"urn:x"}', "urn:x", []),
    (b'{"job":" urn:x\\t"}', " urn:x\t", []),
    (b'{"job":"\\u2003"}', "\u2003", []),
    (b'{"urn":"urn:y"}', "urn:y", []),
    (b'{"job":"","urn":"urn:y"}', "urn:y", []),
    (b'{"job":5,"urn":"urn:y"}', "urn:y", ["/job"]),
    (b'{"job":null,"urn":"urn:y"}', "urn:y", ["/job"]),
    (b'{"job":"urn:x","urn":"urn:y"}', "urn:x", ["/urn"]),
    (b'{"job":"urn:x","urn":5}', "urn:x", ["/urn"]),
    (b'{"job":5,"job":"urn:x"}', "urn:x", []),
    (b'{"j\\u006fb":"urn:x"}', "urn:x", []),
    (
        b'{"job":"urn:x","timestamp":1,"meta":{"ts":1,"source":2}}',
        "urn:x",
        ["/timestamp", "/meta/source", "/meta/ts"],
    ),
]


@pytest.mark.parametrize(("body", "urn", "warned"), IDENTITIES)
def test_identity_and_warnings(body: bytes, urn: str, warned: list[str]) -> None:
    verdict = judge(body)
    assert verdict.message is not None
    assert verdict.message.urn == urn
    assert [warning.pointer for warning in verdict.warnings] == warned


def test_a_canonical_body_is_accepted_whole() -> None:
    verdict = judge(GOOD)
    message = verdict.message
    assert message is not None
    assert verdict.accepts
    assert (message.urn, message.trace_id, message.data, message.attempts) == (
        "urn:babel:orders:created",
        "t-1",
        {"n": 1},
        0,
    )
    assert (message.meta.id, message.meta.lang, message.meta.created_at) == ("m-1", "php", 1749132727000)
    assert message.id == "m-1"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ((b'"trace_id":"t-1",', b""), "/trace_id"),
        ((b'"t-1"', b'" "'), "/trace_id"),
        ((b'"t-1"', b"null"), "/trace_id"),
        ((b'"data":{"n":1},', b""), "/data"),
        ((b'{"n":1}', b"null"), "/data"),
        ((b'"schema_version":1', b'"schema_version":null'), "/meta/schema_version"),
        ((b',"attempts":0', b""), "/attempts"),
    ],
)
def test_an_incomplete_body_is_accepted_but_says_so(change: tuple[bytes, bytes], pointer: str) -> None:
    verdict = judge(GOOD.replace(*change))
    assert verdict.kind is Kind.ACCEPTED
    assert (verdict.reason, verdict.pointer, verdict.accepts) == (Reason.INCOMPLETE, pointer, False)


def test_nulls_are_presented_as_empty() -> None:
    message = judge(b'{"job":"u","trace_id":null,"data":null,"meta":null,"attempts":null}').message
    assert message is not None
    assert (message.trace_id, message.data, message.attempts, message.meta.id) == ("", {}, 0, "")


@pytest.mark.parametrize("version", [0, 2, -1, 2**62])
def test_a_version_we_do_not_speak(version: int) -> None:
    verdict = judge(GOOD.replace(b'"schema_version":1', b'"schema_version":%d' % version))
    assert (verdict.kind, verdict.pointer) == (Kind.UNSUPPORTED_VERSION, "/meta/schema_version")
    assert not verdict.accepts
    assert classify(verdict.body) == "ok"


def test_unknown_members_are_kept_apart() -> None:
    body = GOOD.replace(b'"attempts":0', b'"attempts":0,"x":[],"extra":1,"__shinar_extra__":2').replace(
        b'"lang":"php"', b'"lang":"php","ext":{"acme":{}},"extra":true'
    )
    message = judge(body).message
    assert message is not None
    assert message.extra == {"x": [], "extra": 1, "__shinar_extra__": 2}
    assert message.meta.extra == {"ext": {"acme": {}}, "extra": True}


def test_our_own_field_name_in_a_body_is_an_unknown_member_like_any_other() -> None:
    message = judge(GOOD.replace(b'"attempts":0', b'"attempts":0,"__shinar_extra__":{"a":1}')).message
    assert message is not None
    assert message.extra == {"__shinar_extra__": {"a": 1}}


def test_lone_surrogates_are_accepted_as_the_contract_says() -> None:
    verdict = judge(b'{"job":"urn:x","data":{"s":"\\ud800"}}')
    assert verdict.kind is Kind.ACCEPTED


def test_the_verdict_does_not_depend_on_the_callers_stack() -> None:
    body = deep(MAX_DEPTH - 2)

    def call(levels: int) -> Kind:
        return judge(body).kind if levels == 0 else call(levels - 1)

    assert call(0) is call(700) is Kind.ACCEPTED


@pytest.mark.parametrize("levels", [MAX_DEPTH - 3, MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, 950, 990])
@pytest.mark.parametrize("inside", [b"", b'"]]\\"]]","[["'])
def test_both_paths_have_the_same_limit_of_depth(levels: int, inside: bytes) -> None:
    nested = b"[" * levels + inside + b"]" * levels
    body = GOOD.replace(b'"n":1', b'"n":' + nested)
    unusual = body.replace(b'"attempts":0', b'"attempts":0,"x":1')  # goes down the exact path
    expected = Reason.NONE if levels + 2 <= MAX_DEPTH else Reason.TOO_DEEP
    assert (judge(body).reason, judge(unusual).reason) == (expected, expected)


def test_brackets_in_strings_do_not_count() -> None:
    wide = b",".join([b'{"a":["[{","]\\\\"]}'] * 2000)
    assert judge(GOOD.replace(b'"n":1', b'"n":[' + wide + b"]")).accepts
    hidden = b'["]",' * 1000 + b"1" + b',"["]' * 1000
    assert judge(GOOD.replace(b'"n":1', b'"n":' + hidden)).reason is Reason.TOO_DEEP


@pytest.mark.parametrize(
    "body", [b"[" * 20_000_000, b"[" * 10_000_000 + b"[]" * 5_000_000, b"[]" * 5_000_000]
)
def test_the_depth_of_a_hostile_body_is_found_at_once(body: bytes) -> None:
    started_s = time.process_time()
    assert judge(body).kind is Kind.POISON
    assert time.process_time() - started_s < 3.0


@pytest.mark.parametrize(("body", "reason"), POISON, ids=lambda value: str(value)[:40])
def test_decode_raises_where_judge_refuses(body: bytes, reason: Reason) -> None:
    with pytest.raises(ContractError) as caught:
        decode(body)
    assert SENTENCES[reason] in str(caught.value)


def test_decode_gives_the_message_and_names_the_member_at_fault() -> None:
    assert decode(GOOD) == judge(GOOD).message
    assert decode(b'{"job":"urn:x"}').data == {}
    for body, pointer in (
        (b'{"job":" "}', "/job"),
        (b'{"job":"u","data":[]}', "/data"),
        (b'{"job":"u","meta":{"schema_version":2}}', "/meta/schema_version"),
    ):
        with pytest.raises(ContractError) as caught:
            decode(body)
        assert caught.value.pointer == pointer


def test_a_large_body_is_judged() -> None:
    body = b'{"job":"urn:x","data":{"s":"' + b"a" * 25_000_000 + b'"}}'
    assert judge(body).kind is Kind.ACCEPTED
    assert judge(body[:-2]).kind is Kind.POISON
