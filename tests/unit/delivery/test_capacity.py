"""What a target can carry, asked of its traits: the same answer for producer, bridge and redrive."""

from __future__ import annotations

import math

import pytest

from shinar.delivery.capacity import body_refusal, check_body, check_delay, check_key
from shinar.errors import BodyTooLarge, ContractError, Unsupported
from shinar.settlement import Traits

POOR = Traits(name="poor", max_body_bytes=10, binary=False, delay=False, key=False)
RICH = Traits(name="rich", key=True)


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"x" * 10, None), (b"x" * 11, BodyTooLarge), ("größe".encode(), None), (b"\xff", Unsupported)],
)
def test_bodies(body: bytes, kind: type[Exception] | None) -> None:
    refusal = body_refusal(POOR, body)
    assert (refusal if refusal is None else type(refusal)) == kind
    assert body_refusal(RICH, body) is None
    if kind is not None:
        with pytest.raises(kind, match="poor"):
            check_body(POOR, body)


@pytest.mark.parametrize(
    ("delay_s", "kind"), [(0, None), (5.0, Unsupported), (-1, ContractError), (math.inf, Unsupported)]
)
def test_delays(delay_s: float, kind: type[Exception] | None) -> None:
    if kind is None:
        check_delay(POOR, delay_s)
        return
    with pytest.raises(kind):
        check_delay(POOR, delay_s)


def test_a_delay_is_a_number() -> None:
    with pytest.raises(ContractError, match="a number of seconds, not str"):
        check_delay(RICH, "5")  # type: ignore[arg-type]  # the point


def test_keys() -> None:
    check_key(RICH)
    with pytest.raises(Unsupported, match="order by key"):
        check_key(POOR)
