"""Dead letters of the public Python SDK redriven by us, and ours by it, on every broker both speak.

Producing and consuming side by side is tested with each broker (tests/integration/test_<broker>.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pulsar
import pytest
from babelqueue import BabelQueue
from babelqueue.artemis_transport import ArtemisTransport
from babelqueue.kafka_transport import KafkaTransport
from babelqueue.pika_transport import PikaTransport
from babelqueue.pulsar_transport import PulsarTransport
from babelqueue.redis_transport import RedisTransport
from babelqueue.redrive import redrive
from babelqueue.sqs_transport import SqsTransport

from cases import take, with_options
from redrive_letters import with_queue
from servers import Server
from shinar.brokers import Broker, Outgoing, connect, parse, traits
from shinar.envelope import build, encode
from shinar.redrive import Ledger, Redrive, Spec
from shinar.settlement import Policy, dead_letter_queue
from shinar.worker import Limits, Worker

URN = "urn:babel:orders:created"
#: Values that both sides write alike, so that a hop through either keeps the bytes.
DATA = {"z": 1.5, "a": [{}, [], None, True], "text": "größe ✓ 😀 /", "n": 2**53 - 1}

pytestmark = pytest.mark.timeout(120)


def _pulsar(server: Server) -> PulsarTransport:
    quiet = pulsar.Client(server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    return PulsarTransport(server.url, client=quiet)


def _kafka(server: Server) -> KafkaTransport:
    """In a group of its own: it polls only when asked, and would keep our group from its rebalance."""
    return KafkaTransport(server.url, group_id=f"sdk-{uuid.uuid4().hex[:8]}", retry_tiers_ms=[200])


#: row -> (server, our options, the SDK's transport on it)
ROWS: dict[str, tuple[str, str, Callable[[Server], Any]]] = {
    "redis": ("redis", "", lambda server: RedisTransport(server.url)),
    "redis-laravel": (
        "redis",
        "layout=laravel",
        lambda server: RedisTransport(server.url, laravel_compat=True),
    ),
    "rabbitmq": ("rabbitmq", "", lambda server: PikaTransport(f"{server.url}/%2F")),
    "sqs": ("elasticmq", "", lambda server: SqsTransport(client=_sqs(server))),
    "kafka": ("kafka", "", _kafka),
    "pulsar": ("pulsar", "", _pulsar),
    "artemis": ("artemis", "", lambda server: ArtemisTransport(server.url)),
}


def _sqs(server: Server) -> Any:
    place = parse(server.url)
    return boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=place.option("endpoint"),
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )


@dataclass
class Shared:
    """One queue of one broker, and both sides on it."""

    name: str
    url: str
    queue: str
    ours: Broker
    theirs: Any

    @property
    def dlq(self) -> str:
        return dead_letter_queue(self.queue, self.ours.traits)


@pytest.fixture(params=list(ROWS))
def shared(request: pytest.FixtureRequest, live_server: Callable[..., Server]) -> Iterator[Shared]:
    needs, options, transport = ROWS[request.param]
    server = live_server(needs)
    url = with_options(server.url, options)
    theirs = transport(server)
    with closing(connect(url)) as ours:
        yield Shared(request.param, url, f"i-{uuid.uuid4().hex[:10]}", ours, theirs)
    with suppress(AttributeError):  # not every transport of the SDK can be closed
        theirs.close()


def fail(*_: object) -> None:
    raise ValueError("asked to fail")


def test_a_dead_letter_of_the_sdk_is_redriven_by_us(shared: Shared, tmp_path: Path) -> None:
    # The SDK creates no queue on SQS and Kafka, and what it sends to one that is not there yet is lost on
    # Pulsar and Artemis; ours are created on first use, so we come first.
    with closing(connect(shared.url)) as first:
        first.reserve(shared.dlq, 1, 0.0)
    body = encode(build(URN, DATA, queue=shared.queue))
    shared.ours.publish(shared.queue, [Outgoing(body)])
    app = BabelQueue(
        transport=shared.theirs,
        queue=shared.queue,
        max_attempts=1,
        dead_letter=True,
        dead_letter_queue=shared.dlq,
    )
    app.handler(URN)(fail)
    assert app.consume(max_messages=1, timeout=15.0) == 1

    ledger = Ledger(tmp_path / "ledger.db")
    job = Redrive(with_queue(shared.url, shared.dlq), Spec(), ledger=ledger)
    receipt = job.run(reserve=not traits(shared.url).browse)
    ledger.close()
    assert (receipt.selected, receipt.published) == (1, 1), receipt
    back = shared.theirs.pop(shared.queue, 15.0)
    assert back is not None
    assert back.body.encode() == body, "as it was before it died"
    shared.theirs.ack(back)


def test_a_dead_letter_of_ours_is_redriven_by_the_sdk(shared: Shared) -> None:
    body = encode(build(URN, DATA, queue=shared.queue))
    shared.ours.publish(shared.queue, [Outgoing(body)])
    worker = Worker(
        shared.url,
        {URN: fail},
        queue=shared.queue,
        policy=Policy(max_attempts=1),
        limits=Limits(max_messages=1),
    )
    assert worker.run().count("dead_letter") == 1
    result = redrive(shared.theirs, shared.dlq, max=1, timeout=15.0)
    assert result.redriven == 1, result
    assert (result.items[0].reason, result.items[0].to) == ("failed", shared.queue)
    (back,) = take(shared.ours, shared.queue, 1)
    assert back.body == body, "as it was before it died"
    assert shared.ours.ack([back]) == ()
