"""What a target broker can carry: size, text, delay, key. The one check for producer, bridge and redrive; it
reads traits and must not know a broker."""

from __future__ import annotations

from shinar.brokers.projection import checked_delay_s
from shinar.errors import BodyTooLarge, ContractError, ShinarError, Unsupported
from shinar.settlement.traits import Traits


def body_refusal(traits: Traits, body: bytes) -> ShinarError | None:
    """Why no message of this body fits the broker; None when it looks as if it did."""
    if traits.max_body_bytes is not None and len(body) > traits.max_body_bytes:
        return BodyTooLarge(len(body), traits.max_body_bytes, broker=traits.name)
    if not traits.binary and not _is_text(body):
        return Unsupported(traits.name, "carry a body that is not UTF-8 text", "use another broker for it")
    return None


def check_body(traits: Traits, body: bytes) -> None:
    refusal = body_refusal(traits, body)
    if refusal is not None:
        raise refusal


def check_delay(traits: Traits, delay_s: float) -> None:
    if not isinstance(delay_s, int | float):
        raise ContractError(f"a delay is a number of seconds, not {type(delay_s).__name__}")
    if delay_s < 0:
        raise ContractError(f"a delay of {delay_s} s lies in the past")
    checked_delay_s(traits.name, delay_s)
    if delay_s and not traits.delay:
        raise Unsupported(
            traits.name, "delay a message", "schedule it in your program, or use another broker"
        )


def check_key(traits: Traits) -> None:
    if not traits.key:
        raise Unsupported(traits.name, "order by key", "leave the key out, or use another broker")


def _is_text(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
