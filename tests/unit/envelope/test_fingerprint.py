from __future__ import annotations

import pytest

from shinar.envelope.fingerprint import LENGTH, error_template, exception_name, fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 1001 not found", "order 7 not found"),
        ("timeout after 30.5s at 2026-11-15T02:10:00Z", "timeout after 2s at 2025-01-01 00:00:00"),
        ("no user 'anna'", "no user 'bo'"),
        ("GET https://a.example/x?y=1 failed", "GET http://b.example/z failed"),
        ("key 7b3f9c2a-1111-4222-8333-abcdefabcdef", "key 00000000-0000-4000-8000-000000000000"),
        ("mail to a@b.co bounced", "mail to some.one@else.example.org bounced"),
        ("connect 10.0.0.1:5432 refused", "connect 192.168.1.20:6432 refused"),
        ("bad file /var/tmp/a1/x.csv", "bad file /srv/u/y.csv"),
        ("object at 0x7f00aa", "object at 0x1b"),
        ("ids 1, 2, 3 rejected", "ids 4, 5, 6, 7, 8 rejected"),
        ("SKU42 missing", "SKU9001 missing"),
        ("a\n   b", "a b"),
    ],
)
def test_variable_parts_do_not_matter(one: str, other: str) -> None:
    assert error_template(one) == error_template(other)


def test_words_do_matter() -> None:
    assert error_template("payment declined") != error_template("payment expired")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("App\\Exceptions\\GatewayTimeout", "GatewayTimeout"),
        ("java.net.SocketTimeoutException", "SocketTimeoutException"),
        ("requests.exceptions.ReadTimeout", "ReadTimeout"),
        ("*errors.errorString", "errorString"),
        ("class@anonymous\x00/srv/app.php:12$0", "class"),
        ("com.acme.Job$1", "Job"),
        ("ValueError", "ValueError"),
        ("", ""),
        (None, ""),
    ],
)
def test_exception_name(text: str | None, name: str) -> None:
    assert exception_name(text) == name


def test_every_part_counts() -> None:
    base = ("E", "boom 1", "urn:babel:orders:created", "php", "orders")
    prints = {fingerprint(*base)}
    for place, value in enumerate(("F", "bang", "urn:x", "go", "mails")):
        changed = list(base)
        changed[place] = value
        prints.add(fingerprint(*changed))
    assert len(prints) == 6
    assert all(len(text) == LENGTH for text in prints)
    assert fingerprint("x.E", "boom 22", "urn:babel:orders:created", "PHP", "orders") == fingerprint(*base)


def test_the_reason_counts_and_older_fingerprints_stay() -> None:
    base = ("E", "boom 1", "urn:babel:orders:created", "php", "orders")
    reasons = ("failed", "unsupported_schema_version", "missing_trace_id", "poison")
    assert len({fingerprint(*base, reason) for reason in reasons}) == 4
    # Written down before reasons counted: what people noted in tickets must still be found.
    assert fingerprint(*base, "failed") == fingerprint(*base) == "dcf0a14980a2"


def test_long_and_odd_texts() -> None:
    long = "x " * 100_000
    assert len(error_template(long)) <= 240
    assert fingerprint(None, "\ud800", None, None, None)
