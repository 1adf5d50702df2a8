"""Pulsar beyond the common contract: subscriptions, counts, the admin's view, restarts, the public SDK."""

from __future__ import annotations

import re
import time
import urllib.request
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pulsar
import pytest
from babelqueue.pulsar_transport import PulsarTransport

from live import CREATED_MS, envelope, take, until
from shinar.brokers.contract import Outgoing
from shinar.brokers.registry import connect
from shinar.errors import (
    BodyTooLarge,
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    QueueMissing,
    Unsupported,
)

pytestmark = pytest.mark.live("pulsar")


@pytest.fixture
def place(server) -> Iterator[SimpleNamespace]:
    opened = []
    if "stands in" in (server.note or ""):
        pytest.skip("needs the real Pulsar")

    def open_(**options: object):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        opened.append(connect(f"{server.url}/?{query}"))
        return opened[-1]

    conf = (server.home / "standalone.conf").read_text()
    admin = "http://127.0.0.1:" + re.search(r"^webServicePort=(\d+)", conf, re.MULTILINE)[1]
    yield SimpleNamespace(queue=f"q-{uuid.uuid4().hex[:10]}", open=open_, server=server, admin=admin)
    for broker in opened:
        broker.close()


def test_what_is_published_before_anybody_consumes_is_kept(place):
    """Pulsar keeps nothing for a topic without a subscription, so publishing makes it."""
    producer = place.open()
    producer.publish(place.queue, [Outgoing(envelope(n)) for n in range(3)])
    producer.close()
    consumer = place.open()
    got = take(consumer, place.queue, 3)
    assert {d.native_count for d in got} == {0}, "making the subscription took no message in hand"
    consumer.ack(got)


def test_making_the_subscription_again_does_not_age_the_backlog(place):
    place.open().publish(place.queue, [Outgoing(envelope(1))])
    place.open().publish(place.queue, [Outgoing(envelope(2))])
    broker = place.open()
    got = take(broker, place.queue, 2)
    assert [d.native_count for d in got] == [0, 0]
    broker.ack(got)


def test_a_negative_ack_brings_back_only_its_own_and_counts(place):
    broker = place.open()
    broker.publish(place.queue, [Outgoing(envelope(n)) for n in range(10)])
    got = take(broker, place.queue, 10)
    broker.ack(got[:4] + got[5:])
    broker.release([got[4]])
    (again,) = take(broker, place.queue, 1)
    assert (again.body, again.native_count) == (got[4].body, 1)
    broker.ack([again])
    assert broker.reserve(place.queue, 10, 1.0) == []


def test_the_properties_are_the_contracts(place):
    broker = place.open()
    broker.publish(
        place.queue, [Outgoing(envelope(), headers={"traceparent": "00-ab", "bq-job": "urn:forged"})]
    )
    (got,) = take(broker, place.queue, 1)
    assert got.properties == {
        "bq-job": "urn:babel:orders:created",
        "bq-trace-id": "8c0d9f6e-0000-4000-8000-000000000001",
        "bq-message-id": "m-0",
        "bq-schema-version": "1",
        "bq-source-lang": "php",
        "bq-attempts": "0",
    }
    assert got.headers == {"traceparent": "00-ab"}
    broker.release([got], delay_s=0.7)
    released = time.monotonic()
    (again,) = take(broker, place.queue, 1)
    assert time.monotonic() - released >= 0.6
    assert again.properties["bq-delay"] == "700"
    assert (again.body, again.headers, again.native_count) == (got.body, got.headers, 0)
    broker.ack([again])


def test_the_admin_address_shows_what_is_not_consumed_and_nothing_else(place):
    broker = place.open(admin=place.admin)
    broker.publish(place.queue, [Outgoing(envelope(n)) for n in range(6)])
    got = take(broker, place.queue, 6)
    broker.ack([got[0], got[1], got[3], got[5]])  # a mark and two islands behind it
    wanted = [envelope(2), envelope(4)]
    assert until(lambda: [d.body for d in broker.browse(place.queue)] == wanted)
    assert [d.body for d in broker.browse(place.queue, 1)] == wanted[:1]
    assert until(lambda: broker.depth(place.queue).reserved == 2)
    assert broker.depth(place.queue).ready == 0
    broker.ack([got[2], got[4]])
    assert until(lambda: list(broker.browse(place.queue)) == [])
    broker.publish(place.queue, [Outgoing(envelope(7), delay_s=30.0)])
    assert until(lambda: broker.depth(place.queue).delayed == 1)


def test_without_the_admin_address_nothing_is_pretended(place):
    broker = place.open()
    broker.publish(place.queue, [Outgoing(envelope())])
    assert broker.depth(place.queue).ready is None
    with pytest.raises(Unsupported, match="admin"):
        next(broker.browse(place.queue))


def test_the_servers_own_limit_counts_whatever_the_url_says(place):
    broker = place.open(max_body_bytes=50_000_000)
    # Larger than the server takes, though not than its limit without the framing: it would jam the producer.
    with pytest.raises(BodyTooLarge, match="5177344"):
        broker.publish(place.queue, [Outgoing(envelope()), Outgoing(b"x" * 5_242_800)])
    with pytest.raises(BrokerError, match="maxMessageSize"):
        broker.publish(place.queue, [Outgoing(b"x" * 5_177_344, {"h": "x" * 1_000_000})])
    broker.publish(place.queue, [Outgoing(b"x" * 5_177_344)])
    assert len(take(broker, place.queue, 1)[0].body) == 5_177_344


def test_what_an_earlier_connection_received_has_lapsed(place):
    first = place.open()
    first.publish(place.queue, [Outgoing(envelope(n)) for n in range(3)])
    held = take(first, place.queue, 3)
    first.close()
    second = place.open()
    again = take(second, place.queue, 3)
    assert second.ack(held) == second.release(held) == tuple(held)
    assert second.release(held, 5.0) == second.extend(held, 5.0) == tuple(held)
    assert second.move(place.queue, [(held[0], Outgoing(b"{}"))]) == (held[0],)
    assert second.ack(again) == ()
    assert second.reserve(place.queue, 10, 0.5) == []


def test_refusals(place):
    broker = place.open(max_body_bytes=1000)
    with pytest.raises(BodyTooLarge, match="1000"):
        broker.publish(place.queue, [Outgoing(b"x" * 1001)])
    with pytest.raises(ContractError, match="base64"):
        broker.publish(place.queue, [Outgoing(envelope(), key=b"\xff")])
    with pytest.raises(ConfigError, match="tenant/namespace"):
        connect(f"{place.server.url}/lonely/{place.queue}")
    missing = connect(f"{place.server.url}/no-such-tenant/nowhere/{place.queue}?timeout_s=3")
    with pytest.raises(BrokerError):
        missing.publish(place.queue, [Outgoing(envelope())])
    missing.close()
    with pytest.raises(QueueMissing):
        place.open(admin=place.admin).depth("never-made-" + place.queue)


def test_nobody_at_the_address():
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9"):
        connect("pulsar://127.0.0.1:9")


def test_a_restarted_server_is_found_again_and_loses_nothing(place):
    broker = place.open(timeout_s=4)
    broker.publish(place.queue, [Outgoing(envelope(n)) for n in range(3)])
    held = take(broker, place.queue, 1)
    place.server.stop()
    with pytest.raises(BrokerUnavailable):
        broker.publish(place.queue, [Outgoing(envelope(77))])
    place.server.start()

    def published() -> bool:
        try:
            broker.publish(place.queue, [Outgoing(envelope(3))])
        except BrokerUnavailable:
            return False
        return True

    assert until(published, 60)
    seen = {d.body for d in held}
    deadline = time.monotonic() + 60
    while len(seen) < 4 and time.monotonic() < deadline:
        try:
            got = broker.reserve(place.queue, 10, 1.0)
        except BrokerUnavailable:
            continue
        seen |= {d.body for d in got}
        broker.ack(got)
    wanted = {envelope(n) for n in range(4)}
    assert wanted <= seen <= wanted | {envelope(77)}


@pytest.mark.live("pulsar", tls=True)
def test_tls_with_a_checked_certificate(server):
    broker = connect(f"{server.url}/?tls_ca={server.tls.ca}&timeout_s=10")
    queue = f"q-{uuid.uuid4().hex[:8]}"
    broker.publish(queue, [Outgoing(envelope())])
    broker.ack(take(broker, queue, 1))
    broker.close()
    with pytest.raises(BrokerUnavailable, match="certificate"):
        connect(server.url)


def test_the_public_sdk_reads_what_we_write_and_we_what_it_writes(place):
    broker = place.open()
    body = envelope(5)
    broker.publish(place.queue, [Outgoing(body)])
    quiet = pulsar.Client(place.server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    peer = PulsarTransport(place.server.url, client=quiet)
    received = peer.pop(place.queue, 10.0)
    assert received.body.encode() == body
    ours = received.handle.properties()
    peer.ack(received)
    for consumer in peer._consumers.values():
        consumer.close()  # it is exclusive, or shared, by its own choice; leave the queue to us
    peer._consumers.clear()
    peer.publish(place.queue, body.decode())
    (theirs,) = take(broker, place.queue, 1)
    assert theirs.body == body
    assert dict(theirs.properties) == ours
    broker.ack([theirs])
    peer.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_partitioned_topic_is_a_queue_too(place, count):
    path = f"{place.admin}/admin/v2/persistent/public/default/{place.queue}/partitions"
    kind = {"Content-Type": "application/json"}
    made = urllib.request.Request(path, data=str(count).encode(), method="PUT", headers=kind)
    with urllib.request.urlopen(made):
        pass
    producer = place.open()
    producer.publish(place.queue, [Outgoing(envelope(0))])
    looker = place.open(admin=place.admin)
    first = looker.depth(place.queue)
    assert (first.ready, first.reserved) == (1, 0)
    assert first.oldest_age_s is not None
    assert first.oldest_age_s < 60, "an empty partition is not the oldest message"
    producer.publish(place.queue, [Outgoing(envelope(n)) for n in range(1, 9)])
    got = take(looker, place.queue, 9)
    assert {d.native_count for d in got} == {0}, "making the subscriptions took no message in hand"
    assert sorted(d.body for d in got) == sorted(envelope(n) for n in range(9))
    assert looker.depth(place.queue).reserved == 9
    with pytest.raises(Unsupported, match="partition-0"):
        list(looker.browse(place.queue))
    parts = [f"{place.queue}-partition-{n}" for n in range(count)]
    assert sum(len(list(looker.browse(part))) for part in parts) == 9
    assert looker.release(got[:1]) == ()
    assert looker.ack(got[1:]) == ()
    (again,) = take(looker, place.queue, 1)
    assert (again.body, again.native_count) == (got[0].body, 1)
    assert looker.ack([again]) == ()


def test_a_delay_past_every_clock_is_refused_and_nothing_is_settled(place):
    broker = place.open()
    broker.publish(place.queue, [Outgoing(envelope())])
    (got,) = take(broker, place.queue, 1)
    for delay_s in (1e12, 1e15, float("inf"), float("nan")):
        with pytest.raises(Unsupported):
            broker.publish(place.queue, [Outgoing(envelope(), delay_s=delay_s)])
        with pytest.raises(Unsupported):
            broker.release([got], delay_s)
    with pytest.raises(ContractError, match="surrogate"):
        broker.publish(place.queue, [Outgoing(envelope(), {"a": "\ud800"})])
    assert broker.ack([got]) == ()


def test_a_creation_time_at_the_end_of_the_numbers_is_published(place):
    broker = place.open()
    body = envelope().replace(str(CREATED_MS).encode(), str(2**63 - 1).encode())
    broker.publish(place.queue, [Outgoing(body)])
    (got,) = take(broker, place.queue, 1)
    assert got.body == body
    broker.ack([got])
