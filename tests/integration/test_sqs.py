"""SQS beyond the common contract: limits, FIFO, leases, partial failures and the public SDK."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import boto3
import pytest
from babelqueue import BabelQueue
from babelqueue.sqs_transport import SqsTransport

from live import number_of
from live import unique_envelope as envelope
from servers import start_private, with_queue
from shinar.brokers.contract import Outgoing
from shinar.brokers.registry import connect, parse
from shinar.errors import (
    BodyTooLarge,
    BrokerUnavailable,
    ConfigError,
    PublishFailed,
    QueueMissing,
    Unsupported,
)

pytestmark = pytest.mark.live("elasticmq")


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def opened(server) -> Iterator[SimpleNamespace]:
    """`opened.broker(queue, option=...)`, closed at the end; `opened.client` is a bare boto3."""
    brokers = []

    def broker(queue: str, url: str = server.url, **options: object):
        text = with_queue(url, queue) + "".join(f"&{key}={value}" for key, value in options.items())
        brokers.append(connect(text))
        return brokers[-1]

    endpoint = parse(server.url).option("endpoint")
    client = boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=endpoint,
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )
    yield SimpleNamespace(broker=broker, client=client, endpoint=endpoint)
    for made in brokers:
        made.close()
    client.close()


def drain(broker, queue: str, count: int) -> list:
    found: list = []
    until = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += broker.reserve(queue, count - len(found), 1)
    return found


def consume(broker, queue: str, count: int) -> list:
    """As `drain`, settling as it goes: a FIFO group stands still while one of its messages is in flight."""
    found: list = []
    until = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        got = broker.reserve(queue, count - len(found), 1)
        assert broker.ack(got) == ()
        found += got
    return found


def test_hundreds_in_one_call_each_way(opened, name):
    broker = opened.broker(name)
    bodies = [envelope(number) for number in range(237)]
    broker.publish(name, [Outgoing(body, {"tenant": "acme"}) for body in bodies])
    got = drain(broker, name, 237)
    assert sorted(delivery.body for delivery in got) == sorted(bodies)
    assert {delivery.headers["tenant"] for delivery in got} == {"acme"}
    assert broker.depth(name).reserved == 237
    assert broker.extend(got, 60) == ()
    assert broker.ack(got) == ()
    depth = broker.depth(name)
    assert (depth.ready, depth.reserved, depth.delayed) == (0, 0, 0)
    assert broker.ack(got) == ()


def test_a_release_counts_and_keeps_the_bytes(opened, name):
    broker = opened.broker(name)
    body = envelope()
    broker.publish(name, [Outgoing(body)])
    for count in (1, 2, 3):
        (got,) = drain(broker, name, 1)
        assert (got.native_count, got.body) == (count, body)
        assert broker.release([got]) == ()


def test_a_delayed_release_hides_the_message(opened, name):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope())])
    (got,) = drain(broker, name, 1)
    broker.release([got], 30)
    assert broker.reserve(name, 1, 0) == []
    assert broker.depth(name).reserved == 1


def test_a_release_longer_than_sqs_holds_is_cut_and_said_so(opened, name, caplog):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope())])
    (got,) = drain(broker, name, 1)
    assert broker.release([got], 50_000) == ()
    assert "43200" in caplog.text


def test_a_delayed_publish(opened, name):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope(), delay_s=600)])
    assert broker.reserve(name, 1, 0) == []
    assert broker.depth(name).delayed == 1
    with pytest.raises(Unsupported):
        broker.publish(name, [Outgoing(envelope()), Outgoing(envelope(), delay_s=901)])
    assert broker.depth(name).ready == 0


def test_a_lapsed_lease_is_told_and_touches_nothing(opened, name):
    broker = opened.broker(name, lease_s=1)
    broker.publish(name, [Outgoing(envelope())])
    (first,) = drain(broker, name, 1)
    (second,) = drain(broker, name, 1)
    assert second.native_count == 2
    assert broker.ack([first]) == (first,)
    assert broker.release([first]) == (first,)
    assert broker.extend([first], 60) == (first,)
    assert broker.move(f"{name}-dlq", [(first, Outgoing(first.body))]) == (first,)
    with pytest.raises(QueueMissing):
        broker.depth(f"{name}-dlq")
    assert broker.extend([second], 60) == ()
    assert broker.ack([second]) == ()


def test_receipts_work_in_another_process(opened, name):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope(n)) for n in range(3)])
    got = pickle.loads(pickle.dumps(drain(broker, name, 3)))
    other = opened.broker(name)
    assert other.extend(got, 120) == ()
    assert other.ack(got[:2]) == ()
    assert other.release(got[2:]) == ()
    assert [number_of(d) for d in drain(other, name, 1)] == [number_of(got[2])]


def test_one_bad_entry_does_not_spoil_the_batch_and_is_named(opened, name, monkeypatch):
    broker = opened.broker(name)
    real = broker._client.send_message_batch

    def spoil(**request):
        for entry in request["Entries"]:
            if entry["Id"] in ("3", "14"):
                entry["DelaySeconds"] = 901  # the server refuses it, ours would never have sent it
        return real(**request)

    monkeypatch.setattr(broker._client, "send_message_batch", spoil)
    with pytest.raises(PublishFailed) as caught:
        broker.publish(name, [Outgoing(envelope(number)) for number in range(25)])
    assert caught.value.unconfirmed == (3, 14)
    assert sorted(number_of(d) for d in drain(broker, name, 23)) == sorted({*range(25)} - {3, 14})


def test_a_move_that_fails_in_part_settles_only_what_was_confirmed(opened, name, monkeypatch):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope(number)) for number in range(3)])
    got = sorted(drain(broker, name, 3), key=number_of)
    real = broker._client.send_message_batch

    def spoil(**request):
        request["Entries"][1]["DelaySeconds"] = 901
        return real(**request)

    monkeypatch.setattr(broker._client, "send_message_batch", spoil)
    with pytest.raises(PublishFailed) as caught:
        broker.move(f"{name}-dlq", [(d, Outgoing(d.body)) for d in got])
    assert caught.value.unconfirmed == (1,)
    assert broker.depth(name).reserved == 1
    assert sorted(number_of(d) for d in drain(broker, f"{name}-dlq", 2)) == [0, 2]


def test_a_message_too_large_is_refused_before_it_is_sent(opened, name):
    broker = opened.broker(name)
    with pytest.raises(BodyTooLarge) as caught:
        broker.publish(name, [Outgoing(envelope()), Outgoing(envelope(data={"x": "y" * 1_048_576}))])
    assert caught.value.limit_bytes == 1_048_576
    assert broker.reserve(name, 10, 0) == []


def test_what_the_server_finds_too_large(opened, name):
    broker = opened.broker(name, max_body=2_000_000)
    with pytest.raises(BodyTooLarge) as caught:
        broker.publish(name, [Outgoing(envelope(data={"x": "y" * 1_500_000}))])
    assert caught.value.size_bytes > 1_500_000


def test_big_messages_are_split_over_batches(opened, name):
    broker = opened.broker(name)
    bodies = [envelope(number, data={"n": number, "x": "y" * 120_000}) for number in range(7)]
    broker.publish(name, [Outgoing(body) for body in bodies])
    assert sorted(d.body for d in drain(broker, name, 7)) == sorted(bodies)


def test_without_declaring_a_missing_queue_is_an_error(opened, name):
    broker = opened.broker(name, declare="false")
    for call in (lambda: broker.publish(name, [Outgoing(envelope())]), lambda: broker.reserve(name, 1, 0)):
        with pytest.raises(QueueMissing, match="declare"):
            call()
    with pytest.raises(QueueMissing):
        opened.broker(name).depth(name)


def test_a_queue_deleted_behind_our_back_is_made_again(opened, name):
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope())])
    opened.client.delete_queue(QueueUrl=opened.client.get_queue_url(QueueName=name)["QueueUrl"])
    broker.publish(name, [Outgoing(envelope(7))])
    assert [number_of(d) for d in drain(broker, name, 1)] == [7]


def test_browse_says_what_to_do_instead(opened, name):
    with pytest.raises(Unsupported, match="release"):
        opened.broker(name).browse(name)


def test_an_endpoint_that_is_away(opened, name):
    broker = opened.broker(
        name, url="sqs://eu-west-1?endpoint=http://127.0.0.1:9&access_key=x&secret_key=hush"
    )
    with pytest.raises(BrokerUnavailable) as caught:
        broker.publish(name, [Outgoing(envelope())])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "bad", ["access_key=x", "lease_s=0", "lease_s=99999", "endpoint=nonsense&access_key=x&secret_key=y"]
)
def test_settings_that_cannot_be(bad):
    with pytest.raises(ConfigError):
        connect(f"sqs://eu-west-1/q?{bad}")


def test_a_long_poll_returns_when_a_message_comes(opened, name):
    broker = opened.broker(name)
    assert broker.reserve(name, 1, 0) == []
    sender = threading.Timer(1.5, lambda: opened.broker(name).publish(name, [Outgoing(envelope(5))]))
    sender.start()
    got = broker.reserve(name, 1, 60)
    sender.join()
    assert [number_of(d) for d in got] == [5]


def test_an_empty_wait_of_less_than_a_second_ends(opened, name):
    assert opened.broker(name).reserve(name, 10, 0.3) == []


# -- FIFO


def test_fifo_keeps_order_per_key_and_swallows_a_second_send(opened, name):
    queue = f"{name}.fifo"
    broker = opened.broker(queue)
    assert broker.traits.ordered
    messages = [Outgoing(envelope(number), key=b"k%d" % (number % 3)) for number in range(24)]
    broker.publish(queue, messages)
    broker.publish(queue, messages)
    got = consume(broker, queue, 24)
    assert broker.reserve(queue, 10, 1) == []
    for key in (b"k0", b"k1", b"k2"):
        numbers = [number_of(d) for d in got if d.key == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 8


def test_copies_of_a_message_are_never_swallowed(opened, name):
    """Retry, dead letter and redrive within five minutes, all under the same meta.id."""
    queue, dead = f"{name}.fifo", f"{name}-dlq.fifo"
    broker = opened.broker(queue)
    body = envelope()
    broker.publish(queue, [Outgoing(body, key=b"k")])
    for source, target in [(queue, queue), (queue, dead), (dead, queue), (queue, dead), (dead, queue)]:
        (got,) = drain(broker, source, 1)
        assert broker.move(target, [(got, Outgoing(got.body, key=got.key))]) == ()
    (last,) = drain(broker, queue, 1)
    assert (last.body, last.key, last.native_count) == (body, b"k", 1)


def test_wrapper_records_without_an_id_reach_a_fifo_dead_letter_queue(opened, name):
    queue, dead = f"{name}.fifo", f"{name}-dlq.fifo"
    broker = opened.broker(queue)
    broker.publish(queue, [Outgoing(b"not json 1", key=b"a"), Outgoing(b"not json 2", key=b"b")])
    record = b'{"raw":"same"}'
    got = drain(broker, queue, 2)
    assert broker.move(dead, [(d, Outgoing(record)) for d in got]) == ()
    assert [d.body for d in consume(broker, dead, 2)] == [record, record]


def test_content_based_deduplication(opened, name):
    queue = f"{name}.fifo"
    broker = opened.broker(queue, content_dedup=1)
    broker.publish(queue, [Outgoing(b'{"raw":1}')])
    broker.publish(queue, [Outgoing(b'{"raw":1}')])
    assert len(broker.reserve(queue, 10, 1)) == 1


# -- the public SDK


@pytest.fixture
def sdk(opened, name):
    opened.client.create_queue(QueueName=name)
    app = BabelQueue(transport=SqsTransport(client=opened.client), queue=name)
    return app


def test_the_public_sdk_produces_and_we_consume(opened, name, sdk):
    sdk.publish("urn:babel:orders:created", {"n": 1, "text": "żółć"})
    url = opened.client.get_queue_url(QueueName=name)["QueueUrl"]
    raw = opened.client.receive_message(QueueUrl=url, VisibilityTimeout=0, MessageAttributeNames=["All"])[
        "Messages"
    ][0]
    (got,) = drain(opened.broker(name), name, 1)
    assert got.body == raw["Body"].encode()
    assert dict(got.properties) == {
        key: spec["StringValue"] for key, spec in raw["MessageAttributes"].items()
    }
    assert len(got.properties) == 6


def test_we_produce_and_the_public_sdk_consumes(opened, name, sdk):
    body = envelope(3)
    opened.broker(name).publish(name, [Outgoing(body, {"traceparent": "00-a"})])
    received = sdk.transport.pop(name, 5)
    assert received.body.encode() == body
    assert received.headers["traceparent"] == "00-a"
    assert {key for key in received.headers if key.startswith("bq-")} == {
        "bq-job",
        "bq-trace-id",
        "bq-message-id",
        "bq-schema-version",
        "bq-source-lang",
        "bq-created-at",
    }
    # and by attribute, exactly what the SDK would have sent itself
    ours = opened.broker(name)
    made = SqsTransport._attributes(body.decode())
    ours.publish(name, [Outgoing(body)])
    url = opened.client.get_queue_url(QueueName=name)["QueueUrl"]
    raw = opened.client.receive_message(QueueUrl=url, MessageAttributeNames=["All"], WaitTimeSeconds=5)[
        "Messages"
    ][0]
    sent = {key: (spec["DataType"], spec["StringValue"]) for key, spec in raw["MessageAttributes"].items()}
    assert sent == {key: (spec["DataType"], spec["StringValue"]) for key, spec in made.items()}


# -- a server that goes away


def test_a_restart_of_the_server_loses_nothing(opened, name):
    private = start_private("elasticmq")
    try:
        broker = opened.broker(name, url=private.url)
        broker.publish(name, [Outgoing(envelope(number)) for number in range(30)])
        private.stop()
        with pytest.raises(BrokerUnavailable):
            broker.publish(name, [Outgoing(envelope())])
        with pytest.raises(BrokerUnavailable):
            broker.reserve(name, 10, 0)
        private.start()
        broker.publish(name, [Outgoing(envelope(number)) for number in range(30, 40)])
        assert sorted(number_of(d) for d in consume(broker, name, 40)) == list(range(40))
    finally:
        private.stop()


def test_a_worker_killed_while_it_holds_messages_loses_none(opened, server, name):
    program = (
        "import sys, time\n"
        "from shinar.brokers import connect\n"
        "held = connect(sys.argv[1]).reserve(sys.argv[2], 20, 10)\n"
        "print(len(held), flush=True)\n"
        "time.sleep(60)\n"
    )
    broker = opened.broker(name)
    broker.publish(name, [Outgoing(envelope(number)) for number in range(20)])
    url = with_queue(server.url, name) + "&lease_s=2"
    with subprocess.Popen([sys.executable, "-c", program, url, name], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        held = int(worker.stdout.readline())
        worker.kill()
    assert held > 0
    got = consume(broker, name, 20)
    assert sorted(number_of(d) for d in got) == list(range(20))
    assert sum(d.native_count == 2 for d in got) == held


def test_what_another_client_sent_arrives_as_boto3_itself_would_give_it(opened, name):
    """Our shortcut around boto3's parser leaves binary values to it, and changes no text."""
    broker = opened.broker(name)
    address = opened.client.create_queue(QueueName=name)["QueueUrl"]
    texts = ['{"n":"größer \\ud83d\\ude00"}', '{"n":"\\\\ud800"}', "\U0001f600", '"BinaryValue"']
    for text in texts:
        blob = {"DataType": "Binary", "BinaryValue": b"\x00bytes\xff"}
        opened.client.send_message(
            QueueUrl=address,
            MessageBody=text,
            MessageAttributes={"blob": blob, "note": {"DataType": "String", "StringValue": text}},
        )
    opened.client.send_message(QueueUrl=address, MessageBody="no attributes")
    found = []
    while len(found) < len(texts) + 1:
        found += broker.reserve(name, 10, 5)
    by_body = {delivery.body.decode(): delivery.headers for delivery in found}
    assert by_body.pop("no attributes") == {}
    assert by_body == {text: {"blob": "\x00bytes\ufffd", "note": text} for text in texts}
    assert broker.ack(found) == ()


def test_a_published_copy_is_not_swallowed_but_its_repetition_is(opened, name):
    """What a bridge does: a dead letter published back while SQS still knows its id."""
    queue = f"{name}.fifo"
    broker = opened.broker(queue)
    body = envelope(1)
    broker.publish(queue, [Outgoing(body)])
    assert [d.body for d in consume(broker, queue, 1)] == [body]
    copy = Outgoing(body, origin=f"{name}-dlq.fifo\x00m-7")
    broker.publish(queue, [copy])
    assert [d.body for d in consume(broker, queue, 1)] == [body]
    broker.publish(queue, [copy])
    assert broker.reserve(queue, 1, 1) == [], "the same copy again"


@pytest.mark.parametrize("wait_s", [1.0, 0.5, 0.8])
def test_a_short_wait_is_one_long_poll(opened, name, wait_s):
    broker = opened.broker(name)
    broker.reserve(name, 1, 0)
    asked = []
    broker._client.meta.events.register(
        "provide-client-params.sqs.ReceiveMessage",
        lambda params, **_: asked.append(params["WaitTimeSeconds"]),
    )
    began_s = time.monotonic()
    assert broker.reserve(name, 10, wait_s) == []
    assert time.monotonic() - began_s > wait_s - 0.1
    assert asked == [1]
