"""Artemis beyond the common contract: exact settling, counts, JMS's view, restarts, TLS, the public SDK."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from babelqueue.artemis_transport import ArtemisTransport
from proton import Message, int32
from proton.utils import BlockingConnection

from live import CREATED_MS, envelope, take
from shinar import Limits, Policy, Worker
from shinar.brokers.contract import Facts, Outgoing
from shinar.brokers.registry import connect, parse
from shinar.errors import AccessDenied, BrokerError, BrokerUnavailable, Unsupported

pytestmark = pytest.mark.live("artemis")


@pytest.fixture
def artemis(server) -> Iterator[SimpleNamespace]:
    opened = []

    def open_(options: str = ""):
        opened.append(connect(f"{server.url}/?{options}"))
        return opened[-1]

    amqp = server.url.replace("artemis://", "amqp://")
    yield SimpleNamespace(queue=f"q-{uuid.uuid4().hex[:10]}", open=open_, server=server, amqp=amqp)
    for broker in opened:
        broker.close()


def test_each_settlement_meets_its_own_delivery(artemis):
    """The public SDK settles the oldest open one instead: leave one open and the next ack hits it."""
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope(n)) for n in range(4)])
    left_open, *others = take(broker, artemis.queue, 4)
    assert broker.ack(others) == ()
    broker.close()
    heir = artemis.open()
    (again,) = take(heir, artemis.queue, 1)
    assert again.body == left_open.body
    heir.ack([again])
    assert heir.reserve(artemis.queue, 5, 0.5) == []


def test_a_release_does_not_count_and_a_lost_connection_does_not_lose(artemis):
    broker, heir = artemis.open(), artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope())])
    (first,) = take(broker, artemis.queue, 1)
    broker.release([first])
    (second,) = take(broker, artemis.queue, 1)
    assert (first.native_count, second.native_count) == (0, 0)
    broker._open._sock.shutdown(2)  # the cable is pulled
    (third,) = take(heir, artemis.queue, 1)
    assert third.body == first.body
    assert broker.ack([second]) == (second,), "what was in hand has lapsed"
    heir.ack([third])


def test_bytes_without_a_count_are_counted_by_the_server(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(b"no json")])
    for count in range(3):
        (got,) = take(broker, artemis.queue, 1)
        assert (got.body, got.native_count) == (b"no json", count)
        copy = Outgoing(got.body, facts=Facts(attempts=count + 1))
        assert broker.move(artemis.queue, [(got, copy)]) == ()
    broker.ack(take(broker, artemis.queue, 1))


def test_jms_sees_a_text_message_with_the_contract_beside_it(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope(), headers={"traceparent": "00-ab"})])
    broker.publish(artemis.queue, [Outgoing(b"\xff\x00 no text")])
    bare = BlockingConnection(artemis.amqp)
    receiver = bare.create_receiver(artemis.queue, credit=2)
    text, binary = receiver.receive(5), receiver.receive(5)
    assert text.body == envelope().decode()
    assert text.durable
    assert text.annotations == {"x-opt-jms-type": "urn:babel:orders:created"}
    assert text.correlation_id == "8c0d9f6e-0000-4000-8000-000000000001"
    assert round(text.creation_time * 1000) == CREATED_MS
    assert text.properties == {
        "bq_schema_version": "1",
        "bq_source_lang": "php",
        "bq_attempts": "0",
        "bq_app_id": "babelqueue",
        "traceparent": "00-ab",
    }
    assert bytes(binary.body) == b"\xff\x00 no text"
    receiver.accept()
    receiver.accept()
    bare.close()


def test_a_delayed_release_keeps_properties_and_type(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope(), headers={"x": "y"})])
    (first,) = take(broker, artemis.queue, 1)
    assert broker.release([first], delay_s=0.5) == ()
    assert broker.depth(artemis.queue).delayed == 1
    (again,) = take(broker, artemis.queue, 1)
    assert again.body == first.body
    assert again.headers == first.headers
    assert again.properties == first.properties
    broker.ack([again])


def test_unused_credit_is_given_back(artemis):
    """A worker that asked for ten and got two must not sit on the next eight."""
    slow, quick = artemis.open(), artemis.open()
    slow.publish(artemis.queue, [Outgoing(envelope(n)) for n in range(2)])
    held = slow.reserve(artemis.queue, 10, 5.0)
    slow.publish(artemis.queue, [Outgoing(envelope(n)) for n in range(2, 8)])
    assert len(take(quick, artemis.queue, 8 - len(held))) == 8 - len(held)
    slow.ack(held)


def test_the_connection_outlives_a_long_handler(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope())])
    held = take(broker, artemis.queue, 1)
    before = broker._open._transport.frames_output
    deadline = time.monotonic() + 30
    while broker._open._transport.frames_output == before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert broker._open._transport.frames_output > before, "a heartbeat went out by itself"
    assert broker.ack(held) == ()


def test_more_than_the_servers_credit_goes_through(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope(n)) for n in range(3000)])
    seen = set()
    while got := broker.reserve(artemis.queue, 250, 2.0):
        seen |= {json.loads(d.body)["data"]["n"] for d in got}
        broker.ack(got)
    assert seen == set(range(3000))


def test_errors_say_what_to_do(artemis):
    address = parse(artemis.server.url)
    with pytest.raises(AccessDenied) as refused:
        connect(f"artemis://{address.user}:wrong-pw@{address.netloc}/").publish("q", [Outgoing(b"{}")])
    assert "wrong-pw" not in str(refused.value)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9"):
        connect("artemis://127.0.0.1:9/?timeout_s=1").publish("q", [Outgoing(b"{}")])


def test_a_restarted_server_is_found_again_and_loses_nothing(artemis):
    broker = artemis.open("timeout_s=5")
    broker.publish(artemis.queue, [Outgoing(envelope(n)) for n in range(3)])
    held = take(broker, artemis.queue, 1)
    artemis.server.stop()
    with pytest.raises(BrokerUnavailable):
        broker.publish(artemis.queue, [Outgoing(envelope(9))])
    artemis.server.start()
    broker.publish(artemis.queue, [Outgoing(envelope(3))])
    assert broker.ack(held) == tuple(held)
    got = take(broker, artemis.queue, 4)
    assert sorted(d.body for d in got) == sorted(envelope(n) for n in range(4))
    broker.ack(got)


def test_a_waiting_reserve_learns_that_the_server_went(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [])
    outcome: list = []

    def wait() -> None:
        try:
            outcome.append(broker.reserve(artemis.queue, 1, 20.0))
        except BrokerError as exc:
            outcome.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(1.0)
    artemis.server.kill()
    thread.join(15)
    assert not thread.is_alive()
    assert isinstance(outcome[0], BrokerUnavailable)
    artemis.server.start()


@pytest.mark.live("artemis", tls=True)
def test_tls_with_a_checked_certificate(server):
    broker = connect(f"{server.url}/?tls_ca={server.tls.ca}")
    queue = f"q-{uuid.uuid4().hex[:8]}"
    broker.publish(queue, [Outgoing(envelope(n)) for n in range(200)])
    got = take(broker, queue, 200)
    assert broker.ack(got) == ()
    broker.close()
    stranger = connect(f"{server.url}/?timeout_s=5")
    with pytest.raises(BrokerError):
        stranger.publish(queue, [Outgoing(envelope())])


def test_the_public_sdk_reads_what_we_write_and_we_what_it_writes(artemis):
    broker = artemis.open()
    body = envelope(5)
    broker.publish(artemis.queue, [Outgoing(body)])
    (ours,) = list(broker.browse(artemis.queue))
    peer = ArtemisTransport(artemis.server.url)
    received = peer.pop(artemis.queue, 10.0)
    assert received.body.encode() == body
    peer.ack(received)
    peer.close()  # its receiver has asked for the next one already, and would get it
    peer = ArtemisTransport(artemis.server.url)
    peer.publish(artemis.queue, body.decode())
    (theirs,) = take(broker, artemis.queue, 1)
    assert theirs.body == body
    theirs_stamp, ours_stamp = (dict(d.properties) for d in (theirs, ours))
    # Seconds as a float cost the public SDK a millisecond now and then; we keep all of them.
    assert abs(theirs_stamp.pop("creation_time") - ours_stamp.pop("creation_time")) <= 1
    assert theirs_stamp == ours_stamp
    broker.ack([theirs])
    peer.close()


def send_foreign(artemis, *messages: Message) -> None:
    """As another AMQP client would, to a queue that exists."""
    broker = artemis.open()
    assert broker.reserve(artemis.queue, 1, 0) == []
    connection = BlockingConnection(artemis.amqp)
    sender = connection.create_sender(artemis.queue)
    for message in messages:
        sender.send(message)
    connection.close()


def test_a_message_without_a_body_is_poison_and_stops_nobody(artemis):
    send_foreign(artemis, Message(), Message(body=envelope(1).decode()))
    handled: list[int] = []
    url = f"{artemis.server.url}/{artemis.queue}"
    handlers = {"urn:babel:orders:created": lambda message: handled.append(message.data["n"])}
    report = Worker(url, handlers, limits=Limits(until_empty=True)).run()
    assert (handled, report.received) == ([1], 2)
    (dead,) = artemis.open().browse(f"{artemis.queue}.dlq")
    assert dead.body, "the dead letter says what it was"


def test_a_creation_time_past_every_clock_does_not_stop_a_dead_letter(artemis):
    late = json.loads(envelope(1))
    late["meta"]["created_at"] = 2**63 - 1
    send_foreign(artemis, Message(body=json.dumps(late)))

    def fail(message):
        raise ValueError("no")

    url = f"{artemis.server.url}/{artemis.queue}"
    handlers = {"urn:babel:orders:created": fail}
    Worker(url, handlers, policy=Policy(max_attempts=1), limits=Limits(until_empty=True)).run()
    (dead,) = artemis.open().browse(f"{artemis.queue}.dlq")
    assert json.loads(dead.body)["meta"]["created_at"] == 2**63 - 1


def test_properties_of_other_types_reach_the_handler_as_what_they_say(artemis):
    properties = {"n": int32(5), "big": 2**40, "flag": True, "half": 0.5, "bin": b"\x01a"}
    send_foreign(artemis, Message(body=envelope(1).decode(), properties=properties))
    broker = artemis.open()
    (got,) = take(broker, artemis.queue, 1)
    assert dict(got.headers) == {"n": "5", "big": str(2**40), "flag": "True", "half": "0.5", "bin": "\x01a"}
    broker.ack([got])


def test_a_delay_past_every_clock_is_refused_and_nothing_is_settled(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope())])
    (got,) = take(broker, artemis.queue, 1)
    for delay_s in (1e12, 1e16, float("inf"), float("nan")):
        with pytest.raises(Unsupported):
            broker.publish(artemis.queue, [Outgoing(envelope(), delay_s=delay_s)])
        with pytest.raises(Unsupported):
            broker.release([got], delay_s)
    assert broker.ack([got]) == ()


def test_tail_follows_a_queue_that_tells_no_positions(artemis):
    broker = artemis.open()
    broker.publish(artemis.queue, [Outgoing(envelope(1))])
    command = [sys.executable, "-m", "shinar.cli.main", "tail", "--follow", "--json", "--interval-s", "0.1"]
    tail = subprocess.Popen(
        [*command, f"{artemis.server.url}/{artemis.queue}"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        time.sleep(2)  # its first browser is gone: that one would see them without any memory
        # One of them is the first one's twin.
        broker.publish(artemis.queue, [Outgoing(envelope(n)) for n in (1, 2)])
        time.sleep(4)  # several rounds: each message is shown once
    finally:
        tail.terminate()
        rest, _ = tail.communicate()
    assert len(rest.splitlines()) == 2
