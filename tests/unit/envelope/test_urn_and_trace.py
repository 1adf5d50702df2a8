from __future__ import annotations

import pytest

from shinar.envelope import advise, extract_trace, matches, parse_urn
from shinar.envelope.trace import otel_trace_id, synthetic_span_id


def test_the_recommended_shape_is_parsed_and_others_are_advised() -> None:
    assert parse_urn("urn:babel:orders:created") == ("babel", "orders", "created")
    assert advise("urn:babel:orders:created") is None
    assert parse_urn("App\\Jobs\\Order") is None
    assert "urn:babel" in (advise("App\\Jobs\\Order") or "")
    assert "lower case" in (advise("urn:babel:Orders:created") or "")


@pytest.mark.parametrize(
    ("pattern", "urn", "yes"),
    [
        ("urn:babel:orders:*", "urn:babel:orders:created", True),
        ("urn:babel:orders:*", "urn:babel:order", False),
        ("urn:x", "urn:x", True),
        ("urn:x", "urn:xy", False),
        ("*", "anything", True),
    ],
)
def test_route_patterns(pattern: str, urn: str, yes: bool) -> None:
    assert matches(pattern, urn) is yes


GOOD = "00-" + "a1" * 16 + "-" + "b2" * 8 + "-01"


def test_a_valid_traceparent_wins() -> None:
    found = extract_trace(GOOD, "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b")
    assert found == ("traceparent", "a1" * 16, "b2" * 8, "01")


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "nonsense", GOOD[:-1], GOOD + "0", GOOD.replace("00-", "01-"), GOOD.upper()),
        *(f" {GOOD}", GOOD + "\n"),
        *("00-" + "0" * 32 + "-" + "b2" * 8 + "-01", "00-" + "a1" * 16 + "-" + "0" * 16 + "-01"),
    ],
)
def test_anything_else_falls_back_to_the_trace_id(header: str | None) -> None:
    found = extract_trace(header, "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b")
    assert found == ("trace_id", "7b3f9c2ae41d4f889b2a1c0d5e6f7a8b", None, None)


def test_any_trace_id_has_an_otel_one() -> None:
    assert otel_trace_id("7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b") == 0x7B3F9C2AE41D4F889B2A1C0D5E6F7A8B
    for odd in ("order-7", "", "0" * 32, "\ud800"):
        assert 0 < otel_trace_id(odd) < 2**128
        assert 0 < synthetic_span_id(odd) < 2**64
