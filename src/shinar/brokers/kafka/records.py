"""An Outgoing as a Kafka record and a consumed record as a Delivery. No connection, no group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from shinar.brokers.contract import NOTHING, Delivery, Facts, Outgoing
from shinar.brokers.kafka.client import Record
from shinar.brokers.kafka.projection import PROJECTION
from shinar.brokers.kafka.retry_tiers import DELAY_HEADER, ORIGINAL_TOPIC_HEADER
from shinar.brokers.projection import RESERVED, facts_of

#: Names that only mean something while a record is parked on a tier.
PARKING: Final = frozenset({DELAY_HEADER, ORIGINAL_TOPIC_HEADER})
_OURS: Final = RESERVED | PARKING
_NAMES: Final = tuple(PROJECTION)
_values: Final = attrgetter(*(fact for _, fact, _ in PROJECTION.values()))
#: A cluster refuses a timestamp an hour ahead; one that far off is a damaged `created_at` anyway.
_FUTURE_MS: Final = 60_000

RawHeaders = list[tuple[str, bytes | None]]


def new_record(topic: str, message: Outgoing, now_ms: int, oldest_ms: int = 0) -> Record:
    """A message as published: its record carries the time the envelope was made, unless that lies so
    far back that the topic's retention would take it from under its readers (`oldest_ms`)."""
    facts = message.facts or facts_of(message.body)
    created_ms = facts.created_at or 0
    stamp_ms = created_ms if oldest_ms < created_ms <= now_ms + _FUTURE_MS else 0
    return topic, message.body, message.key, headers_of(facts, message.headers), stamp_ms


def headers_of(facts: Facts, users: Mapping[str, str]) -> RawHeaders:
    """What `project` gives for this broker, written straight into the client's form: this runs
    once per published message."""
    headers: RawHeaders = []
    add = headers.append
    for name, value in zip(_NAMES, _values(facts), strict=True):
        if value is not None and value != "":
            add((name, str(value).encode()))
    for name, text in users.items():
        if name and text and name not in _OURS:
            add((name, text.encode("utf-8", "surrogatepass")))
    return headers


def may_outgrow(message: Outgoing, limit: int) -> bool:
    """Whether its record has to be weighed. What the contract's headers repeat is in the body, and a
    character is at most three bytes: so this is never too little, and cheap."""
    size = 2 * len(message.body) + len(message.key or b"")
    if message.headers:
        size += sum(3 * (len(name) + len(text)) + 10 for name, text in message.headers.items())
    return size + 1000 > limit


def parked(headers: RawHeaders, tier: Mapping[str, str]) -> RawHeaders:
    """Headers of a record on a tier: those of the tier win."""
    kept = [pair for pair in headers if pair[0] not in tier]
    return kept + [(name, text.encode()) for name, text in tier.items()]


def unparked(headers: RawHeaders | None) -> RawHeaders:
    return [pair for pair in headers or () if pair[0] not in PARKING]


def delivery_of(message: Any, queue: str, receipt: Any, received_ms: int, position: str) -> Delivery:
    """A record without a value (a tombstone) has an empty body: poison, as it must be."""
    user, ours = _received(message.headers() or ())
    key = message.key()
    return Delivery(
        message.value() or b"", queue, receipt, user, ours, key, None, received_ms, None, position
    )


def _received(headers: Sequence[tuple[str, bytes | None]]) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """The user's headers and the contract's. Mostly there are the contract's only, each once."""
    try:
        # A header without a value has no decode: the AttributeError below is for it.
        ours: dict[str, Any] = {name: value.decode() for name, value in headers}  # type: ignore[union-attr]  # see above
        if len(ours) == len(headers) and ours.keys() <= _OURS:
            return NOTHING, ours or NOTHING
    except (AttributeError, UnicodeDecodeError):
        pass
    user: dict[str, str] = {}
    ours = {}
    for name, value in headers:
        # The first header of a name counts, as in the other SDKs.
        if name in _OURS:
            if name not in ours:
                ours[name] = value if value is None else str(value, "utf-8", "replace")
        elif value is not None and name not in user:
            user[name] = str(value, "utf-8", "replace")
    return user or NOTHING, ours or NOTHING
