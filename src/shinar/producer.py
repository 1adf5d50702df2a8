"""Send messages: build, encode, publish, confirmed. Knows the envelope and the broker contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec

from shinar.brokers import BrokerUrl, Facts, Outgoing, connect, parse
from shinar.brokers.projection import check_header
from shinar.clock import SYSTEM, Clock
from shinar.delivery.capacity import check_body, check_delay, check_key
from shinar.delivery.gather import Gathering
from shinar.envelope import Message, MetaEntries, build, build_from, check_strict, encode
from shinar.envelope.model import ASCII_WS
from shinar.errors import ConfigError, ContractError
from shinar.observe import Metrics
from shinar.settlement import Traits

#: Messages handed to the broker at once by send_many: large enough to amortise a round trip.
BATCH: Final = 500

Validate = Callable[[str, dict[str, Any]], None]


class Tracing(Protocol):
    """What a producer needs of shinar.telemetry.Telemetry."""

    def active_trace_id(self) -> str | None: ...

    def sending(
        self, queue: str, messages: Sequence[Message]
    ) -> AbstractContextManager[Sequence[Mapping[str, str]]]: ...


class Producer:
    """One connection to one broker; `send` returns when the broker has confirmed.

    Safe to share: threads that send at the same time have their messages published in one batch, and each
    gets its own result. A process forked from this one opens a connection of its own on its first send.
    `validate(urn, data)` is called before anything is sent and refuses by raising; a schema
    registry's `validate` fits. `strict` adds the payload rules that keep every language happy.
    """

    def __init__(
        self,
        url: str | BrokerUrl,
        *,
        queue: str = "",
        strict: bool = False,
        validate: Validate | None = None,
        telemetry: Tracing | None = None,
        metrics: Metrics | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        parsed = parse(url) if isinstance(url, str) else url
        self._queue = queue or parsed.queue
        self._strict = strict
        self._validate = validate
        self._telemetry = telemetry
        self._clock = clock
        self.metrics = metrics or Metrics()
        self._gathering = Gathering(lambda: connect(parsed, clock), "producer")

    def send(
        self,
        message: object,
        data: Mapping[str, Any] | None = None,
        *,
        queue: str = "",
        trace_id: str | None = None,
        meta: MetaEntries = (),
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
        delay_s: float = 0.0,
    ) -> Message:
        """Send one message, given as a URN and its data, or as an object that has both. A `trace_id`
        given here wins over the object's own."""
        target = self._target(queue)
        _check_trace_id(trace_id)
        if isinstance(message, str):
            built = build(
                message,
                {} if data is None else data,
                queue=target,
                trace_id=trace_id or self._active_trace_id(),
                meta=meta,
                clock=self._clock,
            )
        elif data is not None or meta:
            raise ContractError("data and meta belong to a URN; a message object brings its own")
        else:
            built = self._from_object(message, target, trace_id)
        self._publish(target, [self.outgoing(built, headers=headers, key=key, delay_s=delay_s)], [built])
        return built

    def send_many(
        self,
        messages: Iterable[object],
        *,
        queue: str = "",
        headers: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
    ) -> list[Message]:
        """Send message objects or (urn, data) pairs in batches. Nothing of a batch is sent if one
        of its messages is refused; what the broker did not confirm is in the error."""
        target = self._target(queue)
        sent: list[Message] = []
        batch: list[Outgoing] = []
        trace_id = self._active_trace_id()
        for item in messages:
            if isinstance(item, tuple):
                if len(item) != 2:
                    raise ContractError(f"a pair is (urn, data), not a tuple of {len(item)}")
                built = build(item[0], item[1], queue=target, trace_id=trace_id, clock=self._clock)
            else:
                built = self._from_object(item, target)
            batch.append(self.outgoing(built, headers=headers, delay_s=delay_s))
            sent.append(built)
            if len(batch) == BATCH:
                self._publish(target, batch, sent[-BATCH:])
                batch = []
        if batch:
            self._publish(target, batch, sent[-len(batch) :])
        return sent

    def send_bodies(
        self,
        bodies: Iterable[bytes],
        *,
        queue: str = "",
        headers: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
    ) -> int:
        """Send finished envelopes byte for byte; how many."""
        target = self._target(queue)
        kept = _checked_headers(headers)
        check_delay(self._traits, delay_s)
        batch: list[Outgoing] = []
        for body in bodies:
            if not isinstance(body, bytes):
                raise ContractError(
                    f"a body is bytes, not {type(body).__name__}; give a list of encoded messages"
                )
            check_body(self._traits, body)
            batch.append(Outgoing(body, headers=kept, delay_s=delay_s))
        if batch:
            self._publish(target, batch, ())
        return len(batch)

    def outgoing(
        self,
        message: Message,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | str | None = None,
        delay_s: float = 0.0,
    ) -> Outgoing:
        """The message as it goes to the broker: checked, encoded, with its projection's facts."""
        if self._validate is not None:
            self._validate(message.urn, message.data)
        if self._strict:
            check_strict(message.data)
        body = encode(message)
        check_body(self._traits, body)
        check_delay(self._traits, delay_s)
        if key is not None:
            check_key(self._traits)
        return Outgoing(
            body,
            headers=_checked_headers(headers),
            key=None if key is None else _key(key),
            delay_s=delay_s,
            facts=facts(message),
        )

    def _from_object(self, message: object, queue: str, trace_id: str | None = None) -> Message:
        own = getattr(message, "trace_id", None)
        _check_trace_id(own)
        try:
            built = build_from(message, queue=queue, clock=self._clock)
        except (TypeError, RecursionError) as exc:
            text = f"the payload of {type(message).__name__} cannot be made: {exc}; give plain values"
            raise ContractError(text, pointer="/data") from exc
        given = (trace_id or ("" if own else self._active_trace_id()) or "").strip(ASCII_WS)
        return msgspec.structs.replace(built, trace_id=given) if given else built

    @property
    def _traits(self) -> Traits:
        return self._gathering.broker.traits

    def _publish(self, queue: str, batch: list[Outgoing], messages: Sequence[Message]) -> None:
        if self._telemetry is None or not messages:
            self._gathering.publish(queue, batch)
        else:
            with self._telemetry.sending(queue, messages) as headers:
                pairs = zip(batch, headers, strict=True)
                traced = [msgspec.structs.replace(m, headers={**m.headers, **h}) for m, h in pairs]
                self._gathering.publish(queue, traced)
        self.metrics.add("shinar_sent_total", len(batch), queue=queue)

    def _active_trace_id(self) -> str | None:
        return None if self._telemetry is None else self._telemetry.active_trace_id()

    def _target(self, queue: str) -> str:
        target = queue or self._queue
        if not target:
            raise ConfigError("name one in the URL (scheme://host/queue) or in the call", setting="queue")
        return target

    def close(self) -> None:
        self._gathering.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def facts(message: Message) -> Facts:
    """What projections need, taken from a decoded message."""
    meta = message.meta
    return Facts(
        message.urn,
        message.trace_id,
        meta.id,
        meta.lang,
        meta.schema_version,
        meta.created_at,
        message.attempts,
    )


def _check_trace_id(trace_id: object) -> None:
    if trace_id is not None and not isinstance(trace_id, str):
        raise ContractError(f"is text, not {type(trace_id).__name__}", pointer="/trace_id")


def _checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """A copy."""
    if not headers:
        return {}
    if not isinstance(headers, Mapping):
        raise ContractError(f"headers are a mapping of text to text, not {type(headers).__name__}")
    for name, text in headers.items():
        check_header(name, text)
    return dict(headers)


def _key(key: bytes | str) -> bytes:
    if isinstance(key, str):
        return _utf8(key, "the key")
    if not isinstance(key, bytes):
        raise ContractError(f"a key is bytes or text, not {type(key).__name__}")
    return key


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ContractError(
            f"{what} contains a lone surrogate, which UTF-8 cannot encode; send valid Unicode text"
        ) from None
