"""The six PHPMQ messages as frozen values. The extension's are in `extension`."""

from __future__ import annotations

import msgspec

from shinar.phpmq.protocol.wire import Type


class Send(msgspec.Struct, frozen=True, gc=False):
    queue: str
    content: bytes
    #: None when the frame had no TTL packet: that client speaks the legacy form.
    ttl_s: int | None = None


class Consume(msgspec.Struct, frozen=True, gc=False):
    queue: str
    count: int


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    queue: str
    content: bytes
    id: str
    ttl_s: int | None = None


class Acknowledge(msgspec.Struct, frozen=True, gc=False):
    queue: str
    id: str


class Requeue(msgspec.Struct, frozen=True, gc=False):
    queue: str
    id: str
    ttl_s: int | None = None


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    queue: str
    id: str


class Extended(msgspec.Struct, frozen=True, gc=False):
    """A message of the extension, its payload still packed."""

    type: Type
    payload: bytes


Message = Send | Consume | Dispatch | Acknowledge | Requeue | DeadLetter | Extended
