"""What a handler can know about the delivery it is handling, and the two answers it may give
besides returning None (done) or raising (failed)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import msgspec

from shinar.brokers import Delivery
from shinar.envelope import Message, follow_up

#: Out-of-band marker of a redriven message whose outside effects shall not happen again.
REPLAY_HEADER: Final = "bq-replay-bypass"

T = TypeVar("T")


class Retry(msgspec.Struct, frozen=True):
    """Returned by a handler: not now. Counts as an attempt; `delay_s` overrides the backoff."""

    delay_s: float | None = None
    error: str = "the handler asked for a retry"


class GiveUp(msgspec.Struct, frozen=True):
    """Returned by a handler: this will never work. Goes to the dead letters at once."""

    error: str


class Context(msgspec.Struct, frozen=True, gc=False):
    message: Message
    delivery: Delivery

    @property
    def headers(self) -> Mapping[str, str]:
        return self.delivery.headers

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def attempt(self) -> int:
        """1 on the first delivery."""
        return self.message.attempts + 1

    @property
    def is_replay(self) -> bool:
        return self.delivery.headers.get(REPLAY_HEADER) == "1"

    def follow_up(self, urn: str, data: Mapping[str, Any], *, queue: str = "default") -> Message:
        """Build (not send) a message this one leads to: the same trace, an id of its own. Send it with
        `producer.send(context.follow_up(...))`."""
        return follow_up(self.message, urn, data, queue=queue)


#: The parts, not a Context: most handlers never ask for one.
_current: ContextVar[tuple[Message, Delivery] | None] = ContextVar("shinar_context", default=None)
enter_context: Final = _current.set


def leave_context() -> None:
    _current.set(None)


def current() -> Context | None:
    """The delivery being handled in this thread or task; None outside a handler."""
    parts = _current.get()
    return None if parts is None else Context(*parts)


def log_fields() -> Mapping[str, object]:
    """What a log line written inside a handler should say about its message; {} outside."""
    parts = _current.get()
    if parts is None:
        return {}
    message, delivery = parts
    return {
        "trace_id": message.trace_id,
        "id": message.id,
        "urn": message.urn,
        "queue": delivery.queue,
        "attempt": message.attempts + 1,
    }


def is_replay() -> bool:
    context = current()
    return context is not None and context.is_replay


def bypass_external_effects(effect: Callable[[], T]) -> T | None:
    """Run `effect` unless the message being handled is a replay that asked to leave it out."""
    return None if is_replay() else effect()
