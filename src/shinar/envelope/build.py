"""New messages: from a URN and a payload, from a typed object, or following another message."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from shinar.clock import SYSTEM, Clock
from shinar.envelope.data import check_json
from shinar.envelope.model import (
    ASCII_WS,
    CORE_META,
    FORBIDDEN_META,
    FORBIDDEN_TOP,
    SCHEMA_VERSION,
    SOURCE_LANG,
    TOP_LEVEL,
    DeadLetter,
    Message,
    Meta,
)
from shinar.errors import ContractError

#: Random bytes fetched at once: a system call an id would cost more than the rest of `build`.
_POOL_BYTES: Final = 4096

MetaEntries = Mapping[str, Any] | Iterable[tuple[str, Any]]


def build(
    urn: str,
    data: Mapping[str, Any],
    *,
    queue: str = "default",
    trace_id: str | None = None,
    meta: MetaEntries = (),
    clock: Clock = SYSTEM,
) -> Message:
    """A new message. `meta` entries come after the core ones, as a mapping or as pairs."""
    urn = _stripped(urn)
    if not urn:
        raise ContractError("a message needs a URN, such as urn:babel:orders:created", pointer="/job")
    _require_object(data)
    trace = trace_id.strip(ASCII_WS) if trace_id else ""
    extra = _entries(meta) if meta else None
    born = Meta(fresh_id(), queue, SOURCE_LANG, SCHEMA_VERSION, clock.epoch_ms(), extra)
    return Message(urn, trace or fresh_id(), dict(data), born, 0)


def follow_up(
    parent: Message,
    urn: str,
    data: Mapping[str, Any],
    *,
    queue: str = "default",
    meta: MetaEntries = (),
    clock: Clock = SYSTEM,
) -> Message:
    """What handling `parent` leads to: the same trace, an identity of its own."""
    return build(urn, data, queue=queue, trace_id=parent.trace_id, meta=meta, clock=clock)


def build_from(message: object, *, queue: str = "default", clock: Clock = SYSTEM) -> Message:
    """A new message from any object with a URN and a payload.

    The URN is its `urn` attribute. The payload is its `payload` (attribute or method), or else its
    own fields: a dataclass, a msgspec Struct or a pydantic model. `trace_id` is used where present.
    """
    if isinstance(message, Message):
        return message
    urn = getattr(message, "urn", None)
    if not isinstance(urn, str):
        raise ContractError(
            f"{type(message).__name__} has no URN: give the class a `urn` attribute", pointer="/job"
        )
    trace_id = getattr(message, "trace_id", None)
    return build(urn, _payload(message), queue=queue, trace_id=trace_id, clock=clock)


def encode(message: Message) -> bytes:
    """The message's bytes: compact UTF-8, nothing but what the contract allows to leave."""
    check_json(message.data, "/data")
    meta = message.meta
    if message.extra is None and meta.extra is None:
        return _encoded(message)
    _refuse_forbidden(message)
    document: dict[str, Any] = {
        "job": message.urn,
        "trace_id": message.trace_id,
        "data": message.data,
        "meta": {name: getattr(meta, name) for name in _META_ORDER} | (meta.extra or {}),
        "attempts": message.attempts,
    }
    if message.dead_letter is not None:
        document["dead_letter"] = message.dead_letter
    return _encoded(document | (message.extra or {}))


_META_ORDER: Final = ("id", "queue", "lang", "schema_version", "created_at")


def _encoded(value: Message | dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as exc:
        raise ContractError(
            f"the text {exc.object!r:.60} contains a lone surrogate and is not Unicode; remove it"
        ) from None
    except TypeError as exc:
        raise ContractError(
            f"{exc}; convert it to plain text, numbers, lists or dicts", pointer="/data"
        ) from None


def _refuse_forbidden(message: Message) -> None:
    for name in message.extra or {}:
        if name in FORBIDDEN_TOP or name in TOP_LEVEL:
            raise ContractError("must not be written; leave it out", pointer=f"/{name}")
    for name in message.meta.extra or {}:
        if name in FORBIDDEN_META or name in CORE_META:
            raise ContractError("must not be written; leave it out", pointer=f"/meta/{name}")
    check_json(message.extra or {}, "")
    check_json(message.meta.extra or {}, "/meta")


def _entries(meta: MetaEntries) -> dict[str, Any] | None:
    """Vendor entries, refused where they collide with the contract or with each other."""
    found: dict[str, Any] = {}
    for name, value in meta.items() if isinstance(meta, Mapping) else meta:
        if name in CORE_META:
            raise ContractError("is written by Shinar itself; choose another name", pointer=f"/meta/{name}")
        if name in FORBIDDEN_META:
            raise ContractError("is forbidden by the contract; choose another name", pointer=f"/meta/{name}")
        if name in found:
            raise ContractError("is given twice", pointer=f"/meta/{name}")
        found[name] = value
    check_json(found, "/meta")
    return found or None


def _payload(message: object) -> Mapping[str, Any]:
    payload = getattr(message, "payload", None)
    if payload is not None:
        value = payload() if callable(payload) else payload
    elif dataclasses.is_dataclass(message) and not isinstance(message, type):
        value = msgspec.to_builtins(dataclasses.asdict(message), builtin_types=(bytes,))
    elif isinstance(message, msgspec.Struct):
        value = msgspec.to_builtins(message, builtin_types=(bytes,))
    elif callable(dump := getattr(message, "model_dump", None)):
        value = dump(mode="json")
    else:
        raise ContractError(
            f"{type(message).__name__} has no payload: give it a `payload`, or make it a dataclass, "
            "a msgspec Struct or a pydantic model",
            pointer="/data",
        )
    _require_object(value)
    # The URN and the trace travel in the envelope; as fields they would be said twice.
    return {k: v for k, v in value.items() if payload is not None or k not in ("urn", "trace_id")}


def _require_object(data: object) -> None:
    if type(data) is not dict and not isinstance(data, Mapping):
        advice = "give a dict; a list or a value goes inside one"
        text = f"the payload is a JSON object, not {type(data).__name__}: {advice}"
        raise ContractError(text, pointer="/data")


def _stripped(urn: object) -> str:
    if not isinstance(urn, str):
        raise ContractError(f"a URN is a string, not {type(urn).__name__}", pointer="/job")
    return urn.strip(ASCII_WS)


class _Ids:
    """A stock of version 4 UUIDs; a fork starts with an empty one, so no id is used twice."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._ready: Iterator[str] = iter(())

    def take(self) -> str:
        found = next(self._ready, None)
        if found is None:
            # One list iterator: `next` on it is atomic, so threads never get the same id.
            self._ready = iter(_fresh_ids())
            found = next(self._ready)
        return found


def _fresh_ids() -> list[str]:
    raw = bytearray(os.urandom(_POOL_BYTES))
    raw[6::16] = raw[6::16].translate(_VERSION_4)
    raw[8::16] = raw[8::16].translate(_VARIANT_1)
    digits = raw.hex().encode()
    text = bytearray(b"-" * (len(raw) // 16 * 36))
    for source, target in _PLACES:  # column by column: all ids at once
        text[target::36] = digits[source::32]
    ids = text.decode()
    return [ids[i : i + 36] for i in range(0, len(ids), 36)]


_VERSION_4: Final = bytes(0x40 | byte & 0x0F for byte in range(256))
_VARIANT_1: Final = bytes(0x80 | byte & 0x3F for byte in range(256))
#: Which of the 32 hex digits goes to which of a UUID's 36 characters; the rest are hyphens.
_PLACES: Final = tuple((i, i + (i >= 8) + (i >= 12) + (i >= 16) + (i >= 20)) for i in range(32))
fresh_id: Final = _Ids().take


__all__ = ["DeadLetter", "MetaEntries", "build", "build_from", "encode", "follow_up", "fresh_id"]
