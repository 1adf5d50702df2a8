"""Service Bus beyond the common contract: duplicates, counts, native dead letters, locks, failures.

All against the stand-in with the unmodified SDK; docs/brokers/servicebus.md says what that cannot show.
"""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from babelqueue.asb_transport import AsbTransport

from live import CREATED_MS, number_of
from live import unique_envelope as envelope
from servers.process import free_port
from shinar.brokers.contract import Outgoing
from shinar.brokers.registry import connect
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    PublishFailed,
    QueueMissing,
    Unsupported,
)

#: The SDK leaves the socket of a broken connection to the garbage collector.
pytestmark = [pytest.mark.live("servicebus"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

PROGRAM = Path(__file__).resolve().parent.parent / "servers" / "servicebus_standin.py"


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a test left behind is collected under its own filters, not in the middle of the next one."""
    yield
    gc.collect()


@pytest.fixture
def broker(server) -> Iterator[object]:
    opened = connect(server.url)
    yield opened
    opened.close()


@contextlib.contextmanager
def standin(*options: str, port: int = 0) -> Iterator[int]:
    """A stand-in of one's own, with options."""
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "--port", str(port), *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def opened(port: int, *options: str) -> Iterator[object]:
    made = connect("&".join([f"servicebus://127.0.0.1:{port}?emulator=1", *options]))
    try:
        yield made
    finally:
        made.close()


def take(broker, queue: str, count: int) -> list:
    found: list = []
    until = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += broker.reserve(queue, count - len(found), 2)
    return found


def raw_client(port: int) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
    )


def test_the_projection_as_another_client_reads_it(server, broker, name):
    body = envelope(1)
    sent = json.loads(body)
    broker.publish(name, [Outgoing(body, {"tenant": "acme"}, key=b"customer-7")])
    with raw_client(server.port) as client, client.get_queue_receiver(name) as receiver:
        (got,) = receiver.receive_messages(1, max_wait_time=10)
        assert b"".join(got.body) == body
        assert (got.subject, got.correlation_id, got.message_id, got.content_type, got.session_id) == (
            sent["job"],
            sent["trace_id"],
            sent["meta"]["id"],
            "application/json",
            "customer-7",
        )
        assert got.application_properties == {
            b"bq-schema-version": 1,
            b"bq-source-lang": b"python",
            b"bq-created-at": CREATED_MS,
            b"tenant": b"acme",
        }
        receiver.complete_message(got)


def test_a_release_counts_and_a_delayed_one_counts_too(broker, name):
    body = envelope()
    broker.publish(name, [Outgoing(body, {"h": "v"})])
    for count, delay_s in enumerate((0, 0.5, 0, 0.5)):
        (got,) = take(broker, name, 1)
        assert (got.body, dict(got.headers), got.native_count) == (body, {"h": "v"}, count)
        assert broker.release([got], delay_s) == ()
    (last,) = take(broker, name, 1)
    assert last.native_count == 4
    assert broker.ack([last]) == ()


def test_a_delayed_release_keeps_the_property_that_gates_a_message(server, broker, name):
    with raw_client(server.port) as client, client.get_queue_sender(name) as sender:
        odd = ServiceBusMessage(b"{}", application_properties={"bq-schema-version": 2})
        sender.send_messages(odd)
    (got,) = take(broker, name, 1)
    assert got.properties["bq-schema-version"] == 2
    broker.release([got], 0.3)
    (again,) = take(broker, name, 1)
    assert again.properties["bq-schema-version"] == 2
    broker.ack([again])


def test_duplicate_detection_swallows_a_second_publish_but_never_a_copy(name):
    """Retry, dead letter and redrive in the window, all of the same meta.id."""
    dead = f"{name}.dlq"
    body = envelope()
    with standin("--dedup-window", "600") as port, opened(port) as broker:
        broker.publish(name, [Outgoing(body)])
        broker.publish(name, [Outgoing(body)])
        (got,) = take(broker, name, 1)
        assert broker.reserve(name, 1, 0) == [], "the second publish is a duplicate"
        broker.release([got], 0.3)
        for source, target in [(name, name), (name, dead), (dead, name), (name, dead), (dead, name)]:
            (got,) = take(broker, source, 1)
            assert broker.move(target, [(got, Outgoing(got.body))]) == ()
        (last,) = take(broker, name, 1)
        assert last.body == body
        assert broker.ack([last]) == ()


def test_the_native_dead_letter_queue(broker, name):
    broker.publish(name, [Outgoing(envelope(n), {"h": "v"}) for n in range(3)])
    got = take(broker, name, 3)
    graveyard = f"{name}/$DeadLetterQueue"
    why = {"DeadLetterReason": "unsupported schema version", "DeadLetterErrorDescription": "it said 2"}
    assert broker.move(graveyard, [(d, Outgoing(d.body, why)) for d in got]) == ()
    buried = take(broker, graveyard, 3)
    assert sorted(d.body for d in buried) == sorted(d.body for d in got)
    assert {(d.headers["DeadLetterReason"], d.headers["h"]) for d in buried} == {
        ("unsupported schema version", "v")
    }
    # and out of it again, without the notes of its death
    assert broker.move(name, [(d, Outgoing(d.body, d.headers)) for d in buried]) == ()
    alive = take(broker, name, 3)
    assert all(dict(d.headers) == {"h": "v"} for d in alive)
    assert broker.ack(alive) == ()


def test_the_native_dead_letter_queue_takes_no_changed_bodies(broker, name):
    broker.publish(name, [Outgoing(envelope())])
    (got,) = take(broker, name, 1)
    for target, body in [(f"{name}/$DeadLetterQueue", b"{}"), ("other/$DeadLetterQueue", got.body)]:
        with pytest.raises(Unsupported):
            broker.move(target, [(got, Outgoing(body))])
    assert broker.ack([got]) == ()


def test_too_many_deliveries_end_in_the_native_dead_letter_queue(name):
    with standin("--max-deliveries", "2") as port, opened(port) as broker:
        broker.publish(name, [Outgoing(envelope())])
        for _ in range(2):
            broker.release(take(broker, name, 1))
        (buried,) = take(broker, f"{name}/$DeadLetterQueue", 1)
        assert buried.headers["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_lost_locks_are_told_apart_from_those_still_held(name):
    with standin("--lock", "2") as port, opened(port) as broker:
        broker.publish(name, [Outgoing(envelope(n)) for n in range(4)])
        first = sorted(take(broker, name, 4), key=number_of)
        assert broker.extend(first[2:], 2) == ()
        lost = take(broker, name, 2)
        assert sorted(map(number_of, lost)) == [0, 1]
        assert {d.native_count for d in lost} == {1}
        assert broker.extend(first, 2) in ((first[0], first[1]), tuple(first))
        assert broker.move("elsewhere", [(first[0], Outgoing(first[0].body))]) == (first[0],)
        assert list(broker.browse("elsewhere")) == []
        assert broker.ack(lost) == ()
        assert broker.ack(lost) == ()


def test_receipts_work_in_another_process(server, broker, name):
    broker.publish(name, [Outgoing(envelope(n)) for n in range(3)])
    got = pickle.loads(pickle.dumps(take(broker, name, 3)))
    with opened(server.port) as other:
        assert other.extend(got, 5) == ()
        assert other.ack(got[:2]) == ()
        assert other.release(got[2:]) == ()
        assert [number_of(d) for d in take(other, name, 1)] == [number_of(got[2])]


def test_a_body_too_large_is_refused_before_anything_is_sent(broker, name):
    small, big = Outgoing(envelope()), Outgoing(envelope(data={"x": "y" * 300_000}))
    with pytest.raises(BodyTooLarge) as caught:
        broker.publish(name, [small, big])
    assert caught.value.size_bytes > 300_000
    assert broker.reserve(name, 1, 0) == []


def test_what_the_server_finds_too_large(server, name):
    small, big = Outgoing(envelope()), Outgoing(envelope(data={"x": "y" * 300_000}))
    with opened(server.port, "max_body=1000000") as broker:
        with pytest.raises(BodyTooLarge) as caught:
            broker.publish(name, [big])
        assert caught.value.size_bytes > 300_000
        with pytest.raises(PublishFailed) as part:
            broker.publish(name, [small, big, small])
        assert part.value.unconfirmed == (1, 2)
        assert len(take(broker, name, 1)) == 1


def test_a_message_larger_than_a_batch_may_still_go_alone(name):
    # As in premium namespaces: the batch limit is lower than that of a message.
    with standin("--max-bytes", "2000000", "--max-batch-bytes", "100000") as port:
        with opened(port, "max_body=2000000") as broker:
            bodies = [envelope(n, data={"n": n, "x": "y" * (150_000 * (n % 2))}) for n in range(4)]
            broker.publish(name, [Outgoing(body) for body in bodies])
            assert sorted(d.body for d in take(broker, name, 4)) == sorted(bodies)


def test_many_large_messages_go_in_several_batches(broker, name):
    bodies = [envelope(n, data={"n": n, "x": "y" * 60_000}) for n in range(12)]
    broker.publish(name, [Outgoing(body) for body in bodies])
    got = take(broker, name, 12)
    assert sorted(d.body for d in got) == sorted(bodies)
    broker.ack(got)


def test_bodies_of_other_clients(server, broker, name):
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    with raw_client(server.port) as client, client.get_queue_sender(name) as sender:
        sender.send_messages(AmqpAnnotatedMessage(value_body="täxt"))
        sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two ", b"parts"]))
    assert sorted(d.body for d in take(broker, name, 2)) == [b"two parts", "täxt".encode()]


def test_a_key_that_is_no_session_id(broker, name):
    for key in (b"\xff", b"x" * 129):
        with pytest.raises(ContractError):
            broker.publish(name, [Outgoing(envelope(), key=key)])


def test_browse_pages_through_everything_and_skips_what_is_scheduled(broker, name):
    broker.publish(name, [Outgoing(envelope(n)) for n in range(230)])
    broker.publish(name, [Outgoing(envelope(999), delay_s=600)])
    assert [number_of(d) for d in broker.browse(name)] == list(range(230))
    assert [number_of(d) for d in broker.browse(name, 120)] == list(range(120))
    assert next(iter(broker.browse(name))).receipt is None


def test_sessions_keep_the_order_of_a_key_and_belong_to_one_consumer(name):
    with standin() as port, opened(port, "sessions=1") as one, opened(port, "sessions=1") as two:
        assert one.traits.ordered
        one.publish(name, [Outgoing(envelope(n), key=b"k%d" % (n % 2)) for n in range(10)])
        first, second = one.reserve(name, 10, 5), two.reserve(name, 10, 5)
        for got in (first, second):
            numbers = [number_of(d) for d in got]
            assert numbers == sorted(numbers)
            assert len({d.key for d in got}) == 1
        assert {d.key for d in first}.isdisjoint({d.key for d in second})
        assert one.extend(first, 5) == ()
        assert one.ack(first[1:]) == ()
        assert one.release(first[:1]) == ()
        assert two.ack(first[:1]) == (first[0],), "another's session"
        (again,) = one.reserve(name, 10, 5)
        assert (again.body, again.native_count) == (first[0].body, 1)
        assert one.ack([again]) == ()
        assert two.ack(second) == ()
        # nothing left: the sessions are let go, and a new one is taken when it comes
        assert one.reserve(name, 10, 1) == []
        one.publish(name, [Outgoing(envelope(77), key=b"new")])
        assert [number_of(d) for d in two.reserve(name, 10, 10)] == [77]


def test_a_lost_session_is_told_and_comes_again(name):
    with standin("--lock", "2") as port, opened(port, "sessions=1") as broker:
        broker.publish(name, [Outgoing(envelope(n), key=b"k") for n in range(2)])
        lost = broker.reserve(name, 10, 5)
        assert len(lost) == 2
        time.sleep(2.5)
        again = take(broker, name, 2)
        assert [number_of(d) for d in again] == [0, 1]
        assert broker.ack(lost) == tuple(lost)
        assert broker.ack(again) == ()


def test_wrong_key_and_missing_queue(name):
    with standin("--key", "the right one", "--only", "orders") as port:
        bad = connect(f"servicebus://me:very-hush@127.0.0.1:{port}?emulator=1")
        for call in (
            lambda: bad.publish("orders", [Outgoing(envelope())]),
            lambda: bad.reserve("orders", 1, 0),
        ):
            with pytest.raises(AccessDenied) as caught:
                call()
            assert "hush" not in f"{caught.value!s} {caught.value!r}"
        bad.close()
        good = connect(f"servicebus://me:the%20right%20one@127.0.0.1:{port}?emulator=1")
        good.publish("orders", [Outgoing(envelope())])
        for call in (lambda: good.publish(name, [Outgoing(envelope())]), lambda: good.reserve(name, 1, 0)):
            with pytest.raises(QueueMissing, match="create it"):
                call()
        good.close()


def test_a_server_that_is_away_and_comes_back(name):
    with standin() as port, opened(port) as broker:
        broker.publish(name, [Outgoing(envelope())])
        assert len(take(broker, name, 1)) == 1
    lonely = connect(f"servicebus://127.0.0.1:{port}?emulator=1")
    with pytest.raises(BrokerUnavailable):
        lonely.publish(name, [Outgoing(envelope())])
    with pytest.raises(BrokerUnavailable):
        lonely.reserve(name, 1, 0)
    with standin(port=port):
        lonely.publish(name, [Outgoing(envelope(7))])
        assert [number_of(d) for d in take(lonely, name, 1)] == [7]
    with pytest.raises(BrokerUnavailable):
        lonely.publish(name, [Outgoing(envelope())])
    with standin(port=port):
        lonely.publish(name, [Outgoing(envelope(8))])
        assert [number_of(d) for d in take(lonely, name, 1)] == [8]
        lonely.close()


@pytest.mark.parametrize(
    "url",
    [
        "servicebus://namespace/q",
        "servicebus://name@namespace/q",
        "servicebus://namespace/q?connection_string_env=SHINAR_NO_SUCH_THING",
        "servicebus://namespace/q?lease_s=0",
    ],
)
def test_settings_that_cannot_be(url):
    with pytest.raises(ConfigError):
        connect(url)


def test_a_connection_string_from_the_environment(server, name, monkeypatch):
    monkeypatch.setenv(
        "SHINAR_TEST_SB",
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true",
    )
    broker = connect(f"servicebus://any/{name}?connection_string_env=SHINAR_TEST_SB")
    broker.publish(name, [Outgoing(envelope(3))])
    assert [number_of(d) for d in take(broker, name, 1)] == [3]
    broker.close()
    monkeypatch.setenv("SHINAR_TEST_SB", "Endpoint=nonsense;SharedAccessKey=very-hush")
    with pytest.raises(ConfigError) as caught:
        connect(f"servicebus://any/{name}?connection_string_env=SHINAR_TEST_SB")
    assert "hush" not in str(caught.value)


def test_the_public_sdk_and_we_read_each_other(server, broker, name):
    with raw_client(server.port) as client:
        sdk = AsbTransport(client=client)
        body = envelope(4)
        sdk.publish(name, body.decode())
        (got,) = take(broker, name, 1)
        assert got.body == body
        assert dict(got.properties) == {
            "bq-schema-version": 1,
            "bq-source-lang": "python",
            "bq-created-at": CREATED_MS,
        }
        assert broker.ack([got]) == ()
        broker.publish(name, [Outgoing(body)])
        received = sdk.pop(name, 10)
        assert received.body.encode() == body
        sdk.ack(received)
        sdk.close()


@pytest.mark.timeout(60)
def test_a_long_life_of_one_receiver(server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK allows 10,000 answers of the management node and never more; here 1,100, to be quicker."""
    monkeypatch.setattr("azure.servicebus._pyamqp.link.DEFAULT_LINK_CREDIT", 1_100)
    broker = connect(server.url)
    try:
        broker.publish(name, [Outgoing(envelope(n)) for n in range(3)])
        held = broker.reserve(name, 1, 5.0)
        for _ in range(700):
            assert broker.extend(held, 5.0) == ()
            assert len(list(broker.browse(name, 1))) == 1
        assert broker.ack(held) == ()
    finally:
        broker.close()


def test_a_published_copy_is_not_swallowed_but_its_repetition_is(name):
    """What a bridge does: a dead letter published back while the queue still knows its id."""
    body = envelope()
    copy = Outgoing(body, origin=f"{name}.dlq\x007")
    with standin("--dedup-window", "600") as port, opened(port) as broker:
        broker.publish(name, [Outgoing(body)])
        broker.ack(take(broker, name, 1))
        broker.publish(name, [copy])
        (got,) = take(broker, name, 1)
        assert (got.body, broker.ack([got])) == (body, ())
        broker.publish(name, [copy])
        assert broker.reserve(name, 1, 0.5) == [], "the same copy again"


def test_an_entity_path_in_the_connection_string_does_not_shut_out_other_queues(server, name, monkeypatch):
    text = (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;EntityPath={name}"
    )
    monkeypatch.setenv("SHINAR_TEST_SB", text)
    broker = connect(f"servicebus://127.0.0.1:{server.port}/{name}?connection_string_env=SHINAR_TEST_SB")
    try:
        broker.publish(name, [Outgoing(envelope())])
        (got,) = take(broker, name, 1)
        assert broker.move(f"{name}.dlq", [(got, Outgoing(got.body))]) == ()
        assert len(list(broker.browse(f"{name}.dlq"))) == 1
    finally:
        broker.close()


def test_a_delayed_release_keeps_the_types_of_headers(server, broker, name):
    sent = {"priority": 5, "vip": True, "weight": 1.5, "big": 2**40, "tenant": "acme"}
    long = {"TYPE": "LONG", "VALUE": 2**40}
    with raw_client(server.port) as client, client.get_queue_sender(name) as sender:
        sender.send_messages(ServiceBusMessage(b"{}", application_properties={**sent, "big": long}))
    (got,) = take(broker, name, 1)
    assert dict(got.headers) == {key: str(value) for key, value in sent.items()}
    assert pickle.loads(pickle.dumps(got)) == got
    broker.release([got], 0.2)
    (again,) = take(broker, name, 1)
    assert again.headers == got.headers
    broker.release([again])
    with raw_client(server.port) as client, client.get_queue_receiver(name) as receiver:
        (raw,) = receiver.receive_messages(1, max_wait_time=10)
        found = {key.decode(): value for key, value in raw.application_properties.items()}
        assert {key: found[key] for key in sent} == {**sent, "tenant": b"acme"}
        assert type(found["vip"]) is bool
        receiver.complete_message(raw)


def test_bodies_that_are_no_data_are_read(server, broker, name):
    bodies = (
        {"sequence_body": [b'{"a":', "1}"]},
        {"sequence_body": [1, 2]},
        {"value_body": "text"},
        {"value_body": None},
    )
    with raw_client(server.port) as client, client.get_queue_sender(name) as sender:
        for body in bodies:
            sender.send_messages(AmqpAnnotatedMessage(**body))
    got = take(broker, name, len(bodies))
    assert sorted(d.body for d in got) == [b"", b"[1, 2]", b"text", b'{"a":1}']
    assert broker.ack(got) == ()


def test_a_reserve_with_a_session_in_hand_is_quick_and_an_empty_one_tries_once(name):
    with standin() as port, opened(port, "sessions=1") as broker:
        began_s = time.monotonic()
        assert broker.reserve(name, 1, 0) == []
        assert time.monotonic() - began_s < 3.5, "the wait for a session was not repeated"
        broker.publish(name, [Outgoing(envelope(), key=b"k")])
        (got,) = take(broker, name, 1)
        began_s = time.monotonic()
        assert broker.reserve(name, 1, 0) == []
        assert time.monotonic() - began_s < 1.0, "nobody renews the lock meanwhile"
        assert broker.ack([got]) == ()


def test_a_delay_past_every_clock_and_text_that_is_none_are_refused(broker, name):
    for delay_s in (1e12, float("inf"), float("nan")):
        with pytest.raises(Unsupported):
            broker.publish(name, [Outgoing(envelope(), delay_s=delay_s)])
        with pytest.raises(Unsupported):
            broker.release([], delay_s)
    with pytest.raises(ContractError, match="surrogate"):
        broker.publish(name, [Outgoing(envelope(), {"a": "\ud800"})])
