"""OpenTelemetry for producers and workers, by the messaging conventions. The API is imported late.

`trace_id` of the envelope and the OpenTelemetry trace are one and the same: a producer stamps the
active trace into the message, a worker continues it from the traceparent header or, where headers
cannot travel, from `trace_id` itself. A batch is one `send` span linked to a span per message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from shinar.envelope import Message, extract_trace
from shinar.envelope.trace import otel_trace_id, synthetic_span_id
from shinar.errors import MissingExtra
from shinar.worker.context import Context
from shinar.worker.handlers import Call, Step

SYSTEM: Final = "babelqueue"


class Telemetry:
    """Give one to a Producer (`telemetry=`) and its `step()` to a Worker."""

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ModuleNotFoundError:
            raise MissingExtra("telemetry", "opentelemetry-api", "otel") from None
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer("shinar", tracer_provider=tracer_provider)

    def active_trace_id(self) -> str | None:
        """The active trace as a `trace_id`, so that a new message joins it; None outside a span."""
        context = self._trace.get_current_span().get_span_context()
        return str(uuid.UUID(int=context.trace_id)) if context.is_valid else None

    @contextmanager
    def sending(self, queue: str, messages: Sequence[Message]) -> Iterator[Sequence[Mapping[str, str]]]:
        """Yields the trace headers of each message; a failed publish is recorded and passes through."""
        kinds = self._trace.SpanKind
        if len(messages) == 1:
            fields = _fields(messages[0], queue, "send")
            with self._tracer.start_as_current_span(
                f"send {queue}", self._sender(messages[0]), kind=kinds.PRODUCER, attributes=fields
            ):
                yield [self._headers()]
            return
        headers, links = [], []
        for message in messages:
            fields = _fields(message, queue, "create")
            with self._tracer.start_as_current_span(
                f"create {queue}", self._sender(message), kind=kinds.PRODUCER, attributes=fields
            ) as span:
                headers.append(self._headers())
                links.append(self._trace.Link(span.get_span_context()))
        batch: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": queue,
            "messaging.batch.message_count": len(messages),
        }
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=kinds.CLIENT, attributes=batch, links=links
        ):
            yield headers

    def step(self) -> Step:
        """A `process` span around each handler, in the trace the message came with."""

        def step(call: Call) -> Call:
            def traced(message: Message, context: Context) -> object:
                with self._tracer.start_as_current_span(
                    f"process {context.queue}",
                    context=self._parent(message, context.headers),
                    kind=self._trace.SpanKind.CONSUMER,
                    attributes=_fields(message, context.queue, "process"),
                ):
                    return call(message, context)

            return traced

        return step

    def _parent(self, message: Message, headers: Mapping[str, str]) -> Any:
        found = extract_trace(headers.get("traceparent"), message.trace_id)
        if found.source == "traceparent":
            return self._propagate.extract(dict(headers))
        return self._remote(message)

    def _sender(self, message: Message) -> Any:
        """The context of a sending span: the active one if the message is of its trace (None says that), else
        the trace its `trace_id` names, so that the header and the envelope agree."""
        active = self._trace.get_current_span().get_span_context()
        if active.is_valid and active.trace_id == otel_trace_id(message.trace_id):
            return None
        return self._remote(message)

    def _remote(self, message: Message) -> Any:
        """The trace that `trace_id` names, with the parent span every SDK derives from it."""
        span = self._trace.NonRecordingSpan(
            self._trace.SpanContext(
                trace_id=otel_trace_id(message.trace_id),
                span_id=synthetic_span_id(message.trace_id),
                is_remote=True,
                trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
            )
        )
        return self._trace.set_span_in_context(span)

    def _headers(self) -> dict[str, str]:
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier)
        return carrier


def _fields(message: Message, queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": message.id,
        "messaging.message.conversation_id": message.trace_id,
        "messaging.babelqueue.urn": message.urn,
        "messaging.babelqueue.attempts": message.attempts,
    }
