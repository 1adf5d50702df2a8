"""RabbitMQ against a real server: what the contract suite cannot ask of every broker."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pika
import pytest
from babelqueue import BabelQueue

import servers
from servers.process import clean_env
from servers.recipes.rabbitmq import find_script
from shinar.brokers import Outgoing, connect
from shinar.brokers.projection import facts_of
from shinar.envelope import build, encode
from shinar.errors import (
    AccessDenied,
    BrokerFull,
    BrokerUnavailable,
    PublishFailed,
    QueueMissing,
    ShinarError,
    Unsupported,
)
from shinar.settlement import Action, Event, Policy, decide, reconcile

URN = "urn:babel:orders:created"
pytestmark = pytest.mark.live("rabbitmq")


@pytest.fixture
def queue() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def channel(server: servers.Server) -> Iterator[object]:
    connection = pika.BlockingConnection(pika.URLParameters(f"{server.url}/%2F"))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def outgoing(n: int = 0) -> Outgoing:
    return Outgoing(encode(build(URN, {"n": n, "text": "größe/✓"})))


def number(delivery: object) -> int:
    return json.loads(delivery.body)["data"]["n"]


# -- other people's code on the same queue


def test_attempts_that_an_sdk_counts_in_the_header_only_are_counted(server, channel, queue):
    """As the Laravel adapter does: the body says 0 for ever. Alternating workers must not start anew."""
    channel.queue_declare(queue, durable=True)
    body = outgoing().body
    channel.basic_publish("", queue, body, pika.BasicProperties(headers={"x-attempts": 2}))
    with closing(connect(server.url)) as ours:
        (got,) = ours.reserve(queue, 1, 5.0)
        assert reconcile(ours.traits, 0, got.native_count, got.properties) == 2
        assert decide(Event.FAILED, 2, Policy(max_attempts=3), ours.traits).action is Action.DEAD_LETTER
        ours.ack([got])


def test_the_public_sdk_sends_and_we_consume(server, queue):
    theirs = BabelQueue(f"{server.url}/%2F", queue=queue)
    sent = [theirs.publish(URN, {"n": n, "text": "größe/✓"}) for n in range(5)]
    with closing(connect(server.url)) as ours:
        got = [d for _ in range(5) for d in ours.reserve(queue, 1, 5.0)]
        assert [number(d) for d in got] == [0, 1, 2, 3, 4]
        facts = facts_of(got[0].body)
        assert got[0].properties == {
            "type": URN,
            "correlation_id": facts.trace_id,
            "message_id": facts.id,
            "app_id": "babelqueue",
            "content_type": "application/json",
            "x-schema-version": 1,
            "x-source-lang": "python",
            "x-attempts": 0,
        }
        assert len(sent) == 5
        assert dict(got[0].headers) == {}
        assert ours.ack(got) == ()
    theirs.transport.close()


def test_we_send_and_the_public_sdk_consumes(server, queue):
    with closing(connect(server.url)) as ours:
        ours.publish(queue, [outgoing(n) for n in range(5)])
        theirs = BabelQueue(f"{server.url}/%2F", queue=queue)
        seen: list[int] = []
        theirs.handler(URN)(lambda data, meta: seen.append(data["n"]))
        theirs.consume(max_messages=5, timeout=0.1)
        assert seen == [0, 1, 2, 3, 4]
        assert ours.depth(queue).ready == 0
        theirs.transport.close()


def test_both_write_the_same_properties(server, channel, queue):
    theirs = BabelQueue(f"{server.url}/%2F", queue=queue)
    theirs.publish_with_headers(URN, {"n": 1}, {"traceparent": "00-x"})
    properties, body = get(channel, queue)
    with closing(connect(server.url)) as ours:
        ours.publish(queue, [Outgoing(body, headers={"traceparent": "00-x"})])
        mine, same = get(channel, queue)
    assert same == body
    assert vars(mine) == vars(properties)
    theirs.transport.close()


def get(channel, queue: str) -> tuple[pika.BasicProperties, bytes]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
        if properties is not None:
            return properties, body
        time.sleep(0.05)
    raise AssertionError(f"nothing in {queue}")


# -- publishing


def test_a_queue_that_is_not_there(server, channel, queue):
    with closing(connect(f"{server.url}?declare=false")) as broker:
        for call in (
            lambda: broker.publish(queue, [outgoing()]),
            lambda: broker.reserve(queue, 1, 0.0),
            lambda: broker.depth(queue),
        ):
            with pytest.raises(QueueMissing):
                call()
        channel.queue_declare(queue, durable=True)
        broker.publish(queue, [outgoing()])
        assert len(broker.reserve(queue, 1, 5.0)) == 1


def test_a_queue_deleted_under_a_publisher_is_told_and_made_again(server, channel, queue):
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing()])
        channel.queue_delete(queue)
        with pytest.raises(QueueMissing):
            broker.publish(queue, [outgoing(), outgoing()])
        broker.publish(queue, [outgoing()])
        assert broker.depth(queue).ready == 1


def test_a_queue_deleted_under_a_consumer_is_told_and_made_again(server, channel, queue):
    with closing(connect(server.url)) as broker:
        broker.reserve(queue, 1, 0.1)
        timer = threading.Timer(0.3, channel.queue_delete, (queue,))
        timer.start()
        with pytest.raises(BrokerUnavailable):
            broker.reserve(queue, 1, 30.0)
        timer.join()
        broker.publish(queue, [outgoing()])
        assert len(broker.reserve(queue, 1, 5.0)) == 1


def test_a_full_queue_names_the_messages_it_refused(server, channel, queue):
    limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
    channel.queue_declare(queue, durable=True, arguments=limits)
    with closing(connect(server.url)) as broker:
        with pytest.raises(PublishFailed) as caught:
            broker.publish(queue, [outgoing(n) for n in range(5)])
        assert caught.value.unconfirmed == (3, 4)
        with pytest.raises(BrokerFull):
            broker.publish(queue, [outgoing()])
        assert broker.depth(queue).ready == 3


def test_a_move_that_was_taken_in_part_settles_that_part(server, channel, queue):
    limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare(f"{queue}.dlq", durable=True, arguments=limits)
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(4)])
        held = [d for _ in range(4) for d in broker.reserve(queue, 1, 5.0)]
        with pytest.raises(PublishFailed) as caught:
            broker.move(f"{queue}.dlq", [(d, Outgoing(d.body)) for d in held])
        assert caught.value.unconfirmed == (2, 3)
        assert broker.release(held) == tuple(held[:2]), "their copies are in the dead letters"
        again = [d for _ in range(2) for d in broker.reserve(queue, 1, 5.0)]
        assert [number(d) for d in again] == [2, 3]
        assert broker.reserve(queue, 1, 0.0) == []


def test_a_stream_is_refused_when_it_shows(server, channel, queue):
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
    with closing(connect(server.url)) as broker:
        timer = threading.Timer(0.5, channel.basic_publish, ("", queue, b"x"))
        timer.start()
        with pytest.raises(Unsupported, match="stream"):
            broker.reserve(queue, 1, 10.0)
        timer.join()
    channel.queue_delete(queue)


def test_foreign_headers_of_any_kind_are_read_and_kept(server, channel, queue):
    when = b"\x04whenT" + struct.pack(">Q", 1_760_000_000_000)
    table = when + b"\x04rated" + struct.pack(">d", 0.5) + b"\x01\xffS" + struct.pack(">I", 1) + b"x"

    class Foreign(pika.BasicProperties):
        def encode(self):
            return [struct.pack(">HI", 1 << 13, len(table)) + table]

    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, outgoing().body, Foreign())
    with closing(connect(server.url)) as broker:
        for _ in range(2):
            (got,) = broker.reserve(queue, 1, 5.0)
            assert dict(got.headers) == {"when": "1760000000000", "rate": "0.5", "\ufffd": "x"}
            assert broker.release([got], 0.1) == ()


def test_existing_queues_are_taken_as_they_are(server, channel, queue):
    """The public SDK's declaration of the same queue would be refused by the server."""
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing()])
        (got,) = broker.reserve(queue, 1, 5.0)
        broker.release([got])
        (again,) = broker.reserve(queue, 1, 5.0)
        assert again.native_count == 1
        assert dict(again.headers) == {}
        broker.ack([again])


def test_more_than_the_window_in_one_publish(server, queue):
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(5_000)])
        seen: list[int] = []
        while got := broker.reserve(queue, 700, 0.0):
            seen += [number(d) for d in got]
            assert broker.ack(got) == ()
        assert seen == list(range(5_000))


# -- consuming


def test_acks_in_blocks_never_settle_what_is_still_held(server, queue):
    """Random batches and random subsets of acks; in the end exactly the unacked ones come back."""
    import random

    draw = random.Random(7)
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(400)])
        acked: set[int] = set()
        held: list[object] = []
        for _ in range(60):
            held += broker.reserve(queue, draw.randint(1, 30), 0.0)
            draw.shuffle(held)
            part, held = held[: len(held) // 2], held[len(held) // 2 :]
            assert broker.ack(part) == ()
            acked |= {number(d) for d in part}
    with closing(connect(server.url)) as heir:
        rest: list[int] = []
        while got := heir.reserve(queue, 500, 1.0):
            rest += [number(d) for d in got]
            heir.ack(got)
    assert sorted(rest) == sorted(set(range(400)) - acked)


def test_an_idle_consumer_keeps_nothing_from_the_others(server, queue):
    with closing(connect(server.url)) as slow, closing(connect(server.url)) as quick:
        slow.publish(queue, [outgoing(n) for n in range(50)])
        held = slow.reserve(queue, 10, 5.0)
        slow.ack(held[:9])  # frees prefetch, which the server fills at once
        seen: list[int] = []
        while got := quick.reserve(queue, 100, 2.0):
            seen += [number(d) for d in got]
            quick.ack(got)
        assert sorted([*seen, *(number(d) for d in held)]) == list(range(50))
        assert slow.ack(held[9:]) == ()


def test_more_can_be_reserved_while_much_is_held(server, queue):
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(30)])
        held = [d for _ in range(30) for d in broker.reserve(queue, 1, 5.0)]
        assert [number(d) for d in held] == list(range(30))
        assert broker.ack(held) == ()


def test_a_handler_longer_than_the_heartbeat(server, queue):
    with closing(connect(f"{server.url}?heartbeat_s=1")) as broker:
        broker.publish(queue, [outgoing()])
        got = broker.reserve(queue, 1, 5.0)
        time.sleep(4)
        assert broker.extend(got, 60) == ()
        assert broker.ack(got) == ()
        broker.publish(queue, [outgoing()])


WORKER = """
import os, signal, sys
from shinar.brokers import connect
broker = connect(sys.argv[1])
got = broker.reserve(sys.argv[2], 7, 5.0)
broker.ack(got[:2])
print(len(got), flush=True)
broker.depth(sys.argv[2])  # an answer: the acks were read
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_worker_held_goes_to_the_next(server, queue):
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(10)])
        argv = [sys.executable, "-c", WORKER, server.url, queue]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
        assert done.returncode == -signal.SIGKILL
        assert done.stdout.strip() == b"7"
        seen: list[int] = []
        while got := broker.reserve(queue, 10, 1.0):
            seen += [number(d) for d in got]
            broker.ack(got)
        assert sorted(seen) == list(range(2, 10))


# -- delays


def test_delays_do_not_wait_for_each_other(server, queue):
    with closing(connect(server.url)) as broker:
        late = [Outgoing(outgoing(n).body, delay_s=delay_s) for n, delay_s in enumerate((3.0, 0.3, 1.2))]
        broker.publish(queue, late)
        seen = [number(d) for _ in range(3) for d in broker.reserve(queue, 1, 10.0)]
        assert seen == [1, 2, 0]


def test_a_delayed_copy_shows_no_trace_of_its_way(server, channel, queue):
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [Outgoing(outgoing().body, headers={"x-mine": "1"})])
        (first,) = broker.reserve(queue, 1, 5.0)
        for _ in range(2):
            assert broker.release([first], 0.2) == ()
            (first,) = broker.reserve(queue, 1, 5.0)
        assert dict(first.headers) == {"x-mine": "1"}
        assert first.properties["type"] == URN
        broker.ack([first])


@pytest.mark.parametrize("headers", [{"CC": ["%s-other"]}, {"CC": ["%s-other"], "x-mine": "1"}])
def test_a_copy_of_ours_goes_to_no_other_queue(server, channel, queue, headers):
    """CC tells the server to deliver elsewhere too; a retry must neither repeat that nor fail on it."""
    headers = {k: [v[0] % queue] if k == "CC" else v for k, v in headers.items()}
    for name in (queue, f"{queue}-other"):
        channel.queue_declare(name, durable=True)
    channel.basic_publish("", queue, outgoing().body, pika.BasicProperties(headers=headers))
    with closing(connect(server.url)) as broker:
        got = broker.reserve(queue, 1, 5.0)
        assert "CC" not in got[0].headers
        assert broker.release(got, 0.1) == ()
        got = broker.reserve(queue, 1, 5.0)
        assert broker.move(queue, [(got[0], Outgoing(got[0].body, headers=got[0].headers))]) == ()
        assert broker.ack(broker.reserve(queue, 1, 5.0)) == ()
        assert broker.depth(f"{queue}-other").ready == 1


def test_what_a_full_queue_refuses_when_its_delay_ends_is_not_lost(queue):
    with private() as own, closing(connect(own.url)) as broker:
        # How long the server waits before it tries again; three minutes are too long for a test.
        control(
            own, "eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 500)."
        )
        with closing(pika.BlockingConnection(pika.URLParameters(f"{own.url}/%2F"))) as connection:
            limits = {"x-max-length": 3, "x-overflow": "reject-publish"}
            connection.channel().queue_declare(queue, durable=True, arguments=limits)
        broker.publish(queue, [outgoing(n) for n in range(3)])
        held = [d for _ in range(3) for d in broker.reserve(queue, 1, 5.0)]
        assert broker.release(held, 0.2) == ()
        broker.publish(queue, [outgoing(n) for n in range(3, 6)])
        time.sleep(0.6)
        assert broker.depth(queue).ready == 3
        seen: list[int] = []
        while len(seen) < 6 and (got := broker.reserve(queue, 3, 10.0)):
            seen += [number(d) for d in got]
            broker.ack(got)
        assert sorted(seen) == list(range(6))


@pytest.mark.parametrize("option", ["", "?delay_type=classic"])
def test_delays_on_a_server_that_has_no_such_quorum_queues(server, channel, queue, option):
    """One before 3.10 answers as this one does to a queue of that name with other arguments."""
    channel.queue_declare(f"{queue}.delay.200.quorum", durable=True)
    with closing(connect(f"{server.url}{option}")) as broker:
        broker.publish(queue, [Outgoing(outgoing().body, delay_s=0.2)])
        assert channel.queue_declare(f"{queue}.delay.200", passive=True).method.message_count == 1
        assert len(broker.reserve(queue, 1, 5.0)) == 1


def test_a_delay_the_server_cannot_count_is_refused(server, queue):
    with closing(connect(server.url)) as broker, pytest.raises(Unsupported):
        broker.publish(queue, [Outgoing(b"x", delay_s=60 * 60 * 24 * 60)])


# -- trouble


def test_wrong_password_and_missing_host_and_vhost(server):
    with pytest.raises(AccessDenied) as caught:
        connect(server.url.replace("guest:guest", "guest:wr0ng-secret"))
    assert "wr0ng-secret" not in f"{caught.value!r} {caught.value.__cause__!r}"
    with pytest.raises(AccessDenied):
        connect(f"{server.url}/no-such-vhost/orders")
    with pytest.raises(BrokerUnavailable):
        connect("amqp://127.0.0.1:1/orders")
    assert not [t for t in threading.enumerate() if t.name == "shinar-rabbitmq"], "no thread is left behind"


def test_after_a_restart_deliveries_have_lapsed_and_the_next_call_works(queue):
    with private() as own, closing(connect(own.url)) as broker:
        broker.publish(queue, [outgoing(n) for n in range(4)])
        held = broker.reserve(queue, 2, 5.0)
        own.stop()
        with pytest.raises(BrokerUnavailable):
            broker.publish(queue, [outgoing()])
        with pytest.raises(BrokerUnavailable):
            broker.reserve(queue, 1, 1.0)
        assert broker.ack(held) == tuple(held)
        own.start()
        again = [d for _ in range(4) for d in broker.reserve(queue, 1, 5.0)]
        assert sorted(number(d) for d in again) == [0, 1, 2, 3]
        assert broker.ack(held) == tuple(held), "an old receipt settles nothing of the new connection"
        assert broker.move(f"{queue}.dlq", [(held[0], outgoing())]) == (held[0],)
        assert broker.ack(again) == ()
        broker.publish(queue, [outgoing(9)])
        assert broker.depth(queue).ready == 1
        assert broker.depth(f"{queue}.dlq").ready == 0 if _exists(broker, f"{queue}.dlq") else True


def _exists(broker, queue: str) -> bool:
    try:
        broker.depth(queue)
    except QueueMissing:
        return False
    return True


def test_an_error_on_the_io_thread_reaches_the_caller(server, queue):
    def boom() -> None:
        raise RuntimeError("a bug of ours")

    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(1)])
        held = broker.reserve(queue, 1, 5.0)
        broker._io.submit(boom)
        with pytest.raises(BrokerUnavailable):
            broker.reserve(queue, 1, 30.0)
        assert broker.ack(held) == tuple(held)
        broker.publish(queue, [outgoing(2)])
        assert len(broker.reserve(queue, 1, 5.0)) == 1


def test_a_silent_server_is_given_up(queue):
    with private() as own, closing(connect(f"{own.url}?timeout_s=1")) as broker:
        broker.publish(queue, [outgoing()])
        own.pause()
        try:
            with pytest.raises(BrokerUnavailable):
                broker.publish(queue, [outgoing()])
        finally:
            own.resume()
        for _ in range(30):
            with suppress(BrokerUnavailable):
                broker.publish(queue, [outgoing()])
                break
        assert broker.depth(queue).ready >= 2


def test_an_alarm_is_told_and_consuming_goes_on(queue):
    with private() as own, closing(connect(f"{own.url}?timeout_s=3")) as broker:
        broker.publish(queue, [outgoing(n) for n in range(3)])
        control(own, "set_vm_memory_high_watermark", "0")
        try:
            with pytest.raises(BrokerFull):
                broker.publish(queue, [outgoing()])
            got = [d for _ in range(3) for d in broker.reserve(queue, 1, 5.0)]
            assert broker.ack(got) == (), "acks have a connection of their own"
        finally:
            control(own, "set_vm_memory_high_watermark", "0.4")
        broker.publish(queue, [outgoing(7)])


def control(server: servers.Server, *words: str) -> None:
    program = find_script().with_name("rabbitmqctl")
    environment = {**clean_env(server.home), **server._plan.env}
    environment.pop("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS")
    subprocess.run([str(program), *words], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)


@contextmanager
def private() -> Iterator[servers.Server]:
    try:
        own = servers.start_private("rabbitmq")
    except servers.ServerMissing as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(exc.reason)
    try:
        yield own
    finally:
        own.stop()


@pytest.mark.live("rabbitmq", tls=True)
def test_tls(server, queue):
    with closing(connect(f"{server.url}?tls_ca={server.tls.ca}")) as broker:
        broker.publish(queue, [outgoing(n) for n in range(300)])
        got: list[object] = []
        while len(got) < 300 and (more := broker.reserve(queue, 300, 10.0)):
            got += more
        assert [number(d) for d in got] == list(range(300))
        assert broker.ack(got) == ()
    with pytest.raises(ShinarError):
        connect(server.url)
