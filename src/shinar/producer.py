"""Send messages: build, encode, publish, confirmed. Knows the envelope and the broker contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec

from shinar.brokers import Broker, BrokerUrl, Facts, Outgoing, connect, parse
from shinar.clock import SYSTEM, Clock
from shinar.envelope import Message, MetaEntries, build, build_from, check_strict, encode
from shinar.errors import BodyTooLarge, ConfigError, ContractError, Unsupported
from shinar.observe import Metrics

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
        self._broker: Broker = connect(parsed, clock)

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
        """Send one message, given as a URN and its data, or as an object that has both."""
        target = self._target(queue)
        trace_id = trace_id or self._active_trace_id()
        if isinstance(message, str):
            built = build(
                message,
                {} if data is None else data,
                queue=target,
                trace_id=trace_id,
                meta=meta,
                clock=self._clock,
            )
        elif data is not None or meta:
            raise ContractError("data and meta belong to a URN; a message object brings its own")
        else:
            built = build_from(message, queue=target, clock=self._clock)
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
                built = build(item[0], item[1], queue=target, trace_id=trace_id, clock=self._clock)
            else:
                built = build_from(item, queue=target, clock=self._clock)
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
        batch = [Outgoing(body, headers=dict(headers or {}), delay_s=delay_s) for body in bodies]
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
        traits = self._broker.traits
        if traits.max_body_bytes is not None and len(body) > traits.max_body_bytes:
            raise BodyTooLarge(len(body), traits.max_body_bytes, broker=traits.name)
        if delay_s < 0:
            raise ContractError(f"a delay of {delay_s} s lies in the past")
        if delay_s and not traits.delay:
            raise Unsupported(
                traits.name, "delay a message", "schedule it in your program, or use another broker"
            )
        if key is not None and not traits.key:
            raise Unsupported(traits.name, "order by key", "leave the key out, or use another broker")
        return Outgoing(
            body,
            headers=dict(headers) if headers else {},
            key=key.encode() if isinstance(key, str) else key,
            delay_s=delay_s,
            facts=facts(message),
        )

    def _publish(self, queue: str, batch: list[Outgoing], messages: Sequence[Message]) -> None:
        if self._telemetry is None or not messages:
            self._broker.publish(queue, batch)
        else:
            with self._telemetry.sending(queue, messages) as headers:
                pairs = zip(batch, headers, strict=True)
                traced = [msgspec.structs.replace(m, headers={**m.headers, **h}) for m, h in pairs]
                self._broker.publish(queue, traced)
        self.metrics.add("shinar_sent_total", len(batch), queue=queue)

    def _active_trace_id(self) -> str | None:
        return None if self._telemetry is None else self._telemetry.active_trace_id()

    def _target(self, queue: str) -> str:
        target = queue or self._queue
        if not target:
            raise ConfigError("name one in the URL (scheme://host/queue) or in the call", setting="queue")
        return target

    def close(self) -> None:
        self._broker.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def facts(message: Message) -> Facts:
    """What projections need, taken from a message we already hold."""
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
