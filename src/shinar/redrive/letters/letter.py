"""A dead letter as a value: what is in a dead-letter queue's delivery, read once. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from shinar.brokers import Delivery
from shinar.envelope import (
    DeadReason,
    Kind,
    Message,
    Verdict,
    judge,
    parse_strict,
    redrive_copy,
    unwrap_poison,
    with_attempts,
)
from shinar.envelope.fingerprint import fingerprint
from shinar.settlement.gate import gated
from shinar.settlement.names import family_queue
from shinar.settlement.traits import Traits

#: Hex digits that name a body in the ledger: 128 bits.
DIGEST_CHARS: Final = 32


class Nature(StrEnum):
    """What kind of record it is; only the first is sent back without being asked for."""

    DEAD = "dead letter"
    POISON = "poison"
    VERSION = "unsupported version"


class Name(NamedTuple):
    """What a ledger line knows a dead letter by. Where the broker gives no stable position, byte-identical
    letters share a name: they are counted, never told apart."""

    digest: str
    position: str = ""


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
        if family := family_queue(self.delivery.queue, traits):
            return family
        queue = self.message.meta.queue if self.message else ""
        return queue if queue != self.delivery.queue else ""

    @property
    def names_its_death(self) -> bool:
        """Whether the body says which message died when: then no later death has the same bytes."""
        return self.id is not None and self.failed_ms is not None


def whole(text: str) -> str:
    """Replace half a surrogate pair (JavaScript cuts texts in the middle of an emoji), which neither SQLite
    nor UTF-8 accepts."""
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


def name_of(delivery: Delivery, traits: Traits) -> Name:
    """The same whether the letter was browsed, reserved or redelivered after its lease lapsed."""
    body = delivery.body
    if traits.lapse_counts and judge(body).message is not None:
        body = with_attempts(body, 0)
    return Name(digest_of(body), delivery.position if traits.stable_position else "")


def digest_of(body: bytes) -> str:
    """The only digest of a body: of a dead letter, and of the copy that is sent back."""
    return sha256(body).hexdigest()[:DIGEST_CHARS]


def copy_of(letter: Letter) -> bytes:
    """The body as it is sent back: a message without its block, a record as the bytes it was made from."""
    body = letter.delivery.body
    if letter.nature is Nature.POISON:
        return unwrap_poison(body) if letter.reason is not None else body
    return redrive_copy(body) if letter.message is not None else body


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
