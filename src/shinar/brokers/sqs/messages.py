"""Between Shinar's values and SQS's request entries. Pure: no client, no clock, no network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shinar.brokers.contract import Delivery, Outgoing
from shinar.brokers.projection import contract_properties, project, user_headers
from shinar.brokers.sqs.limits import is_fifo, publish_delay_s
from shinar.brokers.sqs.projection import PROJECTION
from shinar.errors import BodyTooLarge, ContractError

#: Entries of one batch request, whatever the operation.
BATCH: Final = 10
#: A batch never carries more than this: it is the limit of queues made before August 2025.
BATCH_BYTES: Final = 262_144
#: Largest message SQS takes today, attributes included.
MAX_BODY_BYTES: Final = 1_048_576
#: Message attributes a message may have, the contract's six among them.
MAX_ATTRIBUTES: Final = 10

_NUMBERS: Final = frozenset({"bq-schema-version", "bq-created-at"})
#: Sacrificed in this order when a *copy* would have too many attributes: the body says it all again.
_REDUNDANT: Final = ("bq-created-at", "bq-source-lang", "bq-message-id", "bq-trace-id", "bq-job")
#: What neither a body nor an attribute may contain (SQS takes the characters of XML 1.0).
_ILLEGAL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NAME: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
#: A group or deduplication id SQS takes as it is.
_TOKEN: Final = re.compile(r"[!-~]{1,128}")

#: One entry of a SendMessageBatch request, still without its Id.
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Writing:
    """How one queue wants its messages written."""

    queue: str
    #: MessageGroupId of messages without a key (FIFO only).
    group: str = ""
    #: The queue deduplicates by content: a first send gives no id of its own.
    content_dedup: bool = False
    max_body_bytes: int = MAX_BODY_BYTES

    @property
    def fifo(self) -> bool:
        return is_fifo(self.queue)


def entry(writing: Writing, message: Outgoing, origin: Delivery | None = None) -> tuple[Entry, int]:
    """The entry and the bytes it counts for. `origin` is given for a copy of a delivery."""
    headers = project(PROJECTION, message).headers
    attributes = attributes_of(headers, copy=origin is not None)
    text = _text(message.body, copy=origin is not None)
    made: Entry = {"MessageBody": text, "MessageAttributes": attributes}
    delay_s = publish_delay_s(writing.fifo, message.delay_s)
    if delay_s:
        made["DelaySeconds"] = delay_s
    if writing.fifo:
        made["MessageGroupId"] = _group(message.key, writing)
        dedup = _deduplication(message, headers.get("bq-message-id"), writing, origin)
        if dedup:
            made["MessageDeduplicationId"] = dedup
    size = len(message.body) + sum(
        len(name) + len(spec["DataType"]) + len(spec["StringValue"].encode())
        for name, spec in attributes.items()
    )
    if size > writing.max_body_bytes:
        raise BodyTooLarge(size, writing.max_body_bytes, broker="sqs", queue=writing.queue)
    return made, size


def batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Indices per request: at most ten, and no more bytes than a batch may have."""
    chosen: list[int] = []
    held = 0
    for index, size in enumerate(sizes):
        if chosen and (len(chosen) == BATCH or held + size > BATCH_BYTES):
            yield chosen
            chosen, held = [], 0
        chosen.append(index)
        held += size
    if chosen:
        yield chosen


def delivery(queue: str, group: str, raw: Mapping[str, Any], now_ms: int, lease_ms: int) -> Delivery:
    system = raw.get("Attributes") or {}
    found = {
        name: spec.get("StringValue", spec.get("BinaryValue"))
        for name, spec in (raw.get("MessageAttributes") or {}).items()
    }
    count = system.get("ApproximateReceiveCount", "")
    named = system.get("MessageGroupId")
    return Delivery(
        # A lone surrogate cannot be UTF-8; the bytes it becomes are judged as what they are: poison.
        body=raw["Body"].encode("utf-8", "surrogatepass"),
        queue=queue,
        receipt=raw["ReceiptHandle"],
        headers=user_headers(found),
        properties=contract_properties(found),
        key=named.encode() if named and named != group else None,
        native_count=int(count) if count.isascii() and count.isdecimal() else None,
        received_ms=now_ms,
        lease_until_ms=now_ms + lease_ms,
        position=raw.get("MessageId", ""),
    )


def _text(body: bytes, *, copy: bool) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise ContractError(f"SQS carries text only, and the body is not UTF-8 at byte {exc.start}") from None
    odd = _ILLEGAL.search(text)
    if odd and copy:
        # An error's text can bring such characters into a dead letter; escaped it says the same.
        return _ILLEGAL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    if odd:
        raise ContractError(
            f"SQS takes no U+{ord(odd[0]):04X} (character {odd.start()} of the body); write a JSON escape"
        )
    if not text:
        raise ContractError("SQS refuses an empty body")
    return text


def attributes_of(headers: Mapping[str, Any], *, copy: bool) -> Entry:
    made: Entry = {}
    for name, value in headers.items():
        ours = name in PROJECTION
        if _ILLEGAL.search(value) or not (ours or (_NAME.fullmatch(name) and len(name) <= 256)):
            if ours:  # a redundant view of the body: a dead letter must be written all the same
                continue
            raise ContractError(
                f"header {name!r} cannot be an SQS attribute; use letters, digits, - _ . and plain text"
            )
        made[name] = {"DataType": "Number" if name in _NUMBERS else "String", "StringValue": value}
    for name in _REDUNDANT if copy else ():
        if len(made) > MAX_ATTRIBUTES:
            made.pop(name, None)
    if len(made) > MAX_ATTRIBUTES:
        raise ContractError(
            f"{len(made)} message attributes; SQS takes {MAX_ATTRIBUTES}, the contract's six among them: "
            "send fewer headers or put them into the data"
        )
    return made


def _group(key: bytes | None, writing: Writing) -> str:
    if not key:
        return writing.group or writing.queue
    text = key.decode("ascii", "replace")
    # A key SQS would refuse still has to keep its messages in order.
    return text if _TOKEN.fullmatch(text) else hashlib.sha256(key).hexdigest()


def _deduplication(message: Outgoing, own_id: str | None, writing: Writing, origin: Delivery | None) -> str:
    """The id under which SQS swallows a second message for five minutes.

    A first send goes under meta.id. A copy keeps meta.id, so it needs another one or a retry or a
    redrive would vanish (and be confirmed!). It is made of the message it replaces, which `move` is
    given and a publisher of copies names in Outgoing.origin: only the very same copy, repeated
    because the delete of its original was lost, is swallowed.
    """
    place = message.origin if origin is None else f"{origin.queue}\0{origin.position or origin.receipt}"
    if place:
        return hashlib.sha256(f"{place}\0".encode() + message.body).hexdigest()
    if writing.content_dedup:
        return ""
    if own_id and _TOKEN.fullmatch(own_id):
        return own_id
    return hashlib.sha256(message.body).hexdigest()
