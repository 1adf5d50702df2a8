"""Redis without a server: names, scores, URL options and the header frame."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shinar.brokers.redis.broker import settings, traits
from shinar.brokers.redis.frame import frame, unframe
from shinar.brokers.redis.keys import deadline_score, delayed_score, keys
from shinar.brokers.registry import connect, parse
from shinar.errors import ConfigError, ContractError


def test_laravel_keys():
    found = keys("emails.High", "laravel")
    assert (found.ready, found.delayed) == ("queues:emails.High", "queues:emails.High:delayed")
    assert (found.reserved, found.notify) == ("queues:emails.High:reserved", "queues:emails.High:notify")


def test_processing_keys_have_no_prefix():
    found = keys("orders", "processing")
    assert (found.ready, found.reserved) == ("orders", "orders:processing")
    assert found.deadlines == "orders:processing:deadlines"


@pytest.mark.parametrize(
    ("queue", "ready"),
    [("orders", "{orders}"), ("orders.dlq", "{orders}.dlq"), ("{shop}:orders", "{shop}:orders")],
)
def test_hash_tags_keep_a_queue_and_its_dead_letters_in_one_slot(queue, ready):
    assert keys(queue, "processing", hash_tag=True).ready == ready


@pytest.mark.parametrize(
    ("now_s", "delay_s", "score"),
    [(1000.0, 5, 1005), (1000.2, 0.1, 1001), (1000.9, 2, 1002), (1000.0, -3, 1000), (1000.5, 3.0, 1003)],
)
def test_delayed_score(now_s, delay_s, score):
    assert delayed_score(now_s, delay_s) == score


def test_deadline_score():
    assert deadline_score(1000.9, 30) == 1030
    assert deadline_score(1000.9, None) is None


@pytest.mark.parametrize("option", ["layout=laravel", "laravel=1", "laravel"])
def test_the_layout_comes_from_the_url(option):
    url = parse(f"redis://localhost/0/orders?{option}")
    assert settings(url).layout == "laravel"
    assert traits(url).headers is False
    assert traits(url).lapse_counts is True


@pytest.mark.parametrize("text", ["none", "NULL"])
def test_retry_after_can_be_switched_off(text):
    assert settings(parse(f"redis://localhost/0/orders?retry_after={text}")).retry_after_s is None


def test_lease_s_is_retry_after():
    assert settings(parse("redis://localhost/orders?lease_s=7")).retry_after_s == 7.0
    assert traits(parse("redis://localhost/orders")).lease_s == 90.0


@pytest.mark.parametrize(
    "option",
    [
        "layout=zset",
        "retry_after=-1",
        "retry_after=0",
        "lease_s=0",
        "retry_after=soon",
        "migration_batch_size=0",
    ],
)
def test_wrong_options_are_refused(option):
    with pytest.raises(ConfigError):
        settings(parse(f"redis://localhost/0/orders?{option}"))


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.text(), st.dictionaries(words, words, min_size=1))
def test_a_frame_gives_back_what_was_put_in(text, headers):
    body = text.encode("utf-8", "surrogatepass")
    framed = frame(body, headers)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        assert framed == body
        return
    assert json.loads(framed)["__bq_frame"] == 1
    assert unframe(framed) == (body, headers)


def test_without_headers_the_element_is_the_body():
    assert frame(b'{"a":1}', {}) == b'{"a":1}'
    assert frame(b'{"a":1}', {"": "x", "y": ""}) == b'{"a":1}'


def test_a_body_that_is_not_text_goes_bare_rather_than_not_at_all():
    assert frame(b"\xff\x00", {"a": "b"}) == b"\xff\x00"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"not json",
        b'{"job":"urn:a:b","data":{"x":"\\"__bq_frame\\""}}',
        b'{"__bq_frame":0,"body":"x"}',
        b'{"__bq_frame":1,"body":{}}',
        b'{"__bq_frame":1}',
        b'{"__bq_frame":1,"body":"\\ud800"}',
        b'{"data":{"__bq_frame":1,"body":"x"}}',
    ],
)
def test_what_is_no_frame_is_a_body(value):
    body, headers = unframe(value)
    assert (body, dict(headers)) == (value, {})


@pytest.mark.parametrize("headers", [{"a": "\ud800"}, {"\udfff": "a"}])
def test_a_header_that_is_no_text_is_told_as_one(headers):
    with pytest.raises(ContractError, match="lone surrogate"):
        frame(b"{}", headers)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("rediss://127.0.0.1:1/orders?tls_ca=no-such-file.pem", "cannot be read"),
        ("redis://127.0.0.1:1/3/orders?cluster=1", "database 0"),
    ],
)
def test_what_no_server_could_mend_is_a_wrong_setting(url, said):
    with pytest.raises(ConfigError, match=said):
        connect(url)
