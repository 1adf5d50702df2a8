"""Traffic of PHP, Go, Java, Node and Laravel, byte for byte, through our workers on the layouts they use."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest
import redis

from interop.recorded import (
    INITPHP_DELAYED,
    INITPHP_FAILED,
    JAVA_PROCESSING,
    LARAVEL_COUNTED,
    PUBLISHED,
    Record,
)
from servers import Server, with_queue
from shinar import Limits, Policy, Worker
from shinar.brokers import connect, parse, traits
from shinar.redrive import Ledger, Redrive, Spec
from shinar.settlement import reconcile

URN = "urn:babel:orders:created"
live_redis = pytest.mark.live("redis")


@pytest.fixture
def queue() -> str:
    return f"recorded-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    url = parse(server.url)
    opened = redis.Redis(host=url.host, port=url.port or 6379)
    yield opened
    opened.close()


def work(url: str, queue: str) -> list[object]:
    handled: list[object] = []
    Worker(
        url,
        {URN: lambda message: handled.append(message.data)},
        queue=queue,
        policy=Policy(max_attempts=1),
        limits=Limits(until_empty=True, empty_wait_s=2.0),
    ).run()
    return handled


@live_redis
@pytest.mark.parametrize("record", PUBLISHED, ids=lambda record: record.peer)
@pytest.mark.parametrize("layout", ["processing", "laravel"])
def test_what_others_publish(
    record: Record, layout: str, server: Server, client: redis.Redis, queue: str
) -> None:
    url = f"{server.url}?layout={layout}"
    client.rpush(queue if layout == "processing" else f"queues:{queue}", record.body)
    handled = work(url, queue)
    broker = connect(url)
    dead = [delivery.body for delivery in broker.browse(f"{queue}.dlq")]
    broker.close()
    if record.becomes == "handled":
        assert (handled, dead) == ([record.data], [])
    else:
        assert handled == []
        assert json.loads(dead[0])["dead_letter"]["reason"] == record.becomes


@live_redis
def test_a_delayed_message_of_initphp_arrives_whole_and_on_time(
    server: Server, client: redis.Redis, queue: str
) -> None:
    due_s = int(time.time()) + 1
    client.zadd(f"{queue}:delayed", {INITPHP_DELAYED: due_s})
    broker = connect(server.url)
    (delivery,) = broker.reserve(queue, 1, 10.0)
    assert delivery.body == INITPHP_DELAYED
    assert time.time() >= due_s
    broker.ack([delivery])
    broker.close()
    assert client.keys(f"{queue}*") == []


@live_redis
def test_a_failed_message_of_initphp_goes_back(
    server: Server, client: redis.Redis, queue: str, tmp_path
) -> None:
    client.rpush(f"{queue}:failed", INITPHP_FAILED)
    ledger = Ledger(tmp_path / "ledger.db")
    spec = Spec(to_queue=queue)
    receipt = Redrive(with_queue(server.url, f"{queue}:failed"), spec, ledger=ledger).run()
    ledger.close()
    assert (receipt.published, receipt.skipped) == (1, 0)
    assert work(server.url, queue) == [{"sku": "broken"}]


@live_redis
def test_what_a_java_consumer_left_behind_is_adopted(server: Server, client: redis.Redis, queue: str) -> None:
    client.rpush(f"{queue}:processing", JAVA_PROCESSING)
    broker = connect(f"{server.url}?adopt_s=1")
    assert broker.reserve(queue, 1, 0.0) == []  # its consumer may still be at work
    broker.close()
    assert work(f"{server.url}?adopt_s=1", queue) == [{"sku": "stuck"}]


@live_redis
def test_the_empty_payload_of_php_is_repaired_on_the_way_back(
    server: Server, client: redis.Redis, queue: str, tmp_path
) -> None:
    (empty,) = [record for record in PUBLISHED if record.peer == "php-sdk, empty payload"]
    client.rpush(queue, empty.body)
    assert work(server.url, queue) == []
    ledger = Ledger(tmp_path / "ledger.db")
    spec = Spec(repair="php-empty-data", include_poison=True)
    receipt = Redrive(with_queue(server.url, f"{queue}.dlq"), spec, ledger=ledger).run()
    ledger.close()
    assert receipt.published == 1
    assert work(server.url, queue) == [{}]


def test_a_count_in_the_header_alone_is_taken() -> None:
    known = traits("amqp://localhost/orders")
    assert reconcile(known, 0, None, LARAVEL_COUNTED.headers) == 2
    assert reconcile(known, 3, None, LARAVEL_COUNTED.headers) == 3
