"""A dead letter as a value: what is in a dead-letter queue's delivery, read once. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import msgspec

from shinar.brokers import Delivery
from shinar.envelope import DeadReason, Kind, Message, Verdict, judge, parse_strict, with_attempts
from shinar.envelope.fingerprint import fingerprint
from shinar.settlement.gate import gated
from shinar.settlement.names import original_queue
from shinar.settlement.traits import Traits

#: Hex digits that name a body in the ledger: 128 bits.
DIGEST_CHARS: Final = 32


class Nature(StrEnum):
    """What kind of record it is; only the first is sent back without being asked for."""

    DEAD = "dead letter"
    POISON = "poison"
    VERSION = "unsupported version"


class Letter(msgspec.Struct, frozen=True):
    delivery: Delivery
    verdict: Verdict
    nature: Nature
    reason: str | None = None
    error: str | None = None
    exception: str | None = None
    failed_ms: int | None = None
    #: What the block says; None when there is no block or it does not say.
    said_queue: str | None = None
    attempts: int | None = None
    #: Language of the consumer that gave up, else of the producer.
    lang: str | None = None
    urn: str | None = None
    id: str | None = None
    trace_id: str | None = None
    created_ms: int | None = None

    @property
    def target_name(self) -> str:
        """The queue it died on, as far as it says."""
        return self.said_queue or self.delivery.queue

    @property
    def message(self) -> Message | None:
        return self.verdict.message

    @property
    def at_ms(self) -> int | None:
        """When it died. What has no block (the broker itself moved it) died after it was made, and before
        it was read: the first of these does not change with every look."""
        if self.failed_ms is not None:
            return self.failed_ms
        return self.created_ms or self.delivery.received_ms or None

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.exception, self.error, self.urn, self.lang, self.target_name, self.reason)

    def target(self, traits: Traits) -> str:
        """The queue it belongs to: as its block says, as its envelope says, or by the name of this one."""
        if self.said_queue:
            return self.said_queue
        native = traits.native_dlq_suffix
        derived = original_queue(self.delivery.queue, traits)
        if native and derived.endswith(native):
            derived = derived.removesuffix(native)
        if derived != self.delivery.queue:
            return derived
        queue = self.message.meta.queue if self.message else ""
        return queue if queue != self.delivery.queue else ""


def whole(text: str) -> str:
    """Half a surrogate pair (JavaScript cuts texts in the middle of an emoji) is no character: neither
    SQLite nor UTF-8 takes it."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read(delivery: Delivery, traits: Traits) -> Letter:
    verdict = judge(delivery.body)
    message = verdict.message
    block = _block(delivery.body, message)
    lang = _text(block, "lang")
    return Letter(
        delivery,
        verdict,
        _nature(delivery, verdict, block, traits),
        reason=_text(block, "reason"),
        error=_text(block, "error"),
        exception=_text(block, "exception"),
        failed_ms=_number(block, "failed_at"),
        said_queue=_text(block, "original_queue") or None,
        attempts=_number(block, "attempts") if block else (message.attempts if message else None),
        lang=lang or (message.meta.lang if message else None) or None,
        urn=message.urn if message else None,
        id=whole(message.meta.id if message else "") or None,
        trace_id=whole(message.trace_id if message else "") or None,
        created_ms=message.meta.created_at if message else None,
    )


def digest(delivery: Delivery, traits: Traits) -> str:
    """The name of a body, the same whether it was browsed, reserved or came back after a lapse."""
    body = delivery.body
    if traits.lapse_counts and judge(body).message is not None:
        body = with_attempts(body, 0)
    return sha256(body).hexdigest()[:DIGEST_CHARS]


def _nature(delivery: Delivery, verdict: Verdict, block: Mapping[str, Any], traits: Traits) -> Nature:
    if gated(traits, delivery.properties) or verdict.kind is Kind.UNSUPPORTED_VERSION:
        return Nature.VERSION
    if verdict.message is None or block.get("reason") == DeadReason.POISON:
        return Nature.POISON
    return Nature.DEAD


def _block(body: bytes, message: Message | None) -> Mapping[str, Any]:
    """The dead_letter block, also of a record that is no envelope."""
    if message is not None:
        return msgspec.structs.asdict(message.dead_letter) if message.dead_letter else {}
    document = parse_strict(body)
    found = document.get("dead_letter") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _text(block: Mapping[str, Any], name: str) -> str | None:
    value = block.get(name)
    return value if isinstance(value, str) else None


def _number(block: Mapping[str, Any], name: str) -> int | None:
    value = block.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
