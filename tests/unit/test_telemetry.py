"""Spans as the messaging conventions want them, in one trace from producer to the last retry."""

from __future__ import annotations

import json
import uuid
from contextlib import nullcontext

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from shinar import Limits, Policy, Producer, Worker
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode
from shinar.envelope.trace import otel_trace_id
from shinar.telemetry import Telemetry

URN = "urn:babel:orders:created"
EMPTY = Limits(until_empty=True, empty_wait_s=0.05)


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/orders"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(spans: InMemorySpanExporter) -> Telemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Telemetry(provider)


def test_one_trace_from_producer_through_retries_to_the_dead_letter(url, telemetry, spans) -> None:
    with telemetry._tracer.start_as_current_span("checkout") as root:
        message = Producer(url, telemetry=telemetry).send(URN, {})
    trace = root.get_span_context().trace_id
    assert uuid.UUID(message.trace_id).int == trace

    Worker(
        url, {URN: lambda m: 1 / 0}, policy=Policy(max_attempts=2), limits=EMPTY, steps=[telemetry.step()]
    ).run()
    by_name = {}
    for span in spans.get_finished_spans():
        by_name.setdefault(span.name, []).append(span)
    (send,) = by_name["send orders"]
    assert send.kind is SpanKind.PRODUCER
    assert send.attributes["messaging.operation.type"] == "send"
    assert send.attributes["messaging.message.conversation_id"] == message.trace_id
    processed = by_name["process orders"]
    assert [span.attributes["messaging.babelqueue.attempts"] for span in processed] == [0, 1]
    for span in processed:
        assert span.context.trace_id == trace
        assert span.parent.span_id == send.context.span_id
        assert span.kind is SpanKind.CONSUMER
        assert span.events[0].name == "exception"
    (dead,) = connect(url).browse("orders.dlq")
    assert dead.headers["traceparent"].split("-")[1] == f"{trace:032x}"


def test_a_batch_is_one_send_linked_to_its_messages(url, telemetry, spans) -> None:
    Producer(url, telemetry=telemetry).send_many([(URN, {}), (URN, {})])
    created = [span for span in spans.get_finished_spans() if span.name == "create orders"]
    (send,) = [span for span in spans.get_finished_spans() if span.name == "send orders"]
    assert [link.context.span_id for link in send.links] == [span.context.span_id for span in created]
    assert send.attributes["messaging.batch.message_count"] == 2
    headers = [d.headers["traceparent"].split("-")[2] for d in connect(url).browse("orders")]
    assert headers == [f"{span.context.span_id:016x}" for span in created]


def test_without_headers_the_trace_id_itself_is_the_trace(url, telemetry, spans) -> None:
    body = encode(build(URN, {}, trace_id="7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"))
    connect(url).publish("orders", [Outgoing(body)])
    Worker(url, {URN: lambda m: None}, limits=EMPTY, steps=[telemetry.step()]).run()
    (span,) = spans.get_finished_spans()
    assert span.context.trace_id == 0x7B3F9C2AE41D4F889B2A1C0D5E6F7A8B


def one_trace(url: str) -> set[bool]:
    """Whether header and envelope of each message name the same trace."""
    return {
        otel_trace_id(json.loads(d.body)["trace_id"]) == int(d.headers["traceparent"].split("-")[1], 16)
        for d in connect(url).browse("orders")
    }


@pytest.mark.parametrize("trace_id", [None, "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b", "order-17"])
@pytest.mark.parametrize("within", [False, True])
def test_envelope_and_header_name_one_trace(url, telemetry, spans, within: bool, trace_id) -> None:
    producer = Producer(url, telemetry=telemetry)
    with telemetry._tracer.start_as_current_span("checkout") if within else nullcontext():
        producer.send(URN, {}, trace_id=trace_id)
        producer.send_many([(URN, {}), (URN, {})])
    assert one_trace(url) == {True}
