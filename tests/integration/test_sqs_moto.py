"""What ElasticMQ does not check, on moto's server: credentials, and AWS's own wording of errors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator

import boto3
import pytest

from servers.process import free_port
from shinar.brokers.contract import Outgoing
from shinar.brokers.registry import connect
from shinar.errors import AccessDenied, BodyTooLarge

BODY = b'{"job":"urn:babel:a:b","trace_id":"t","data":{},"meta":{"id":"m"},"attempts":0}'


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "NO_PROXY": "*"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            opener.open(f"{address}/moto-api/", timeout=2).close()
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    yield address
    process.terminate()
    process.wait()


@pytest.fixture
def locked(moto: str) -> Iterator[str]:
    """From here on every request must carry known credentials."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def allow(actions: str) -> None:
        kind = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{moto}/moto-api/reset-auth", actions.encode(), kind, method="POST")
        opener.open(request, timeout=5).close()

    allow("0")
    yield moto
    allow("inf")


def test_wrong_credentials(locked):
    broker = connect(f"sqs://us-east-1/q?endpoint={locked}&access_key=AKIAWRONG&secret_key=very-hush")
    with pytest.raises(AccessDenied) as caught:
        broker.publish("q", [Outgoing(BODY)])
    shown = f"{caught.value!s} {caught.value!r}"
    assert "hush" not in shown
    assert "AKIAWRONG" not in shown
    with pytest.raises(AccessDenied):
        broker.reserve("q", 1, 0)
    broker.close()


def test_a_queue_with_a_limit_of_its_own(moto):
    queue = f"q-{uuid.uuid4().hex[:8]}"
    client = boto3.client(
        "sqs", region_name="us-east-1", endpoint_url=moto, aws_access_key_id="x", aws_secret_access_key="y"
    )
    client.create_queue(QueueName=queue, Attributes={"MaximumMessageSize": "2048"})
    client.close()
    broker = connect(f"sqs://us-east-1/{queue}?endpoint={moto}&access_key=x&secret_key=y")
    with pytest.raises(BodyTooLarge) as caught:
        broker.publish(queue, [Outgoing(BODY + b" " * 4_000)])
    assert caught.value.limit_bytes == 2048
    broker.publish(queue, [Outgoing(BODY)])
    (got,) = broker.reserve(queue, 1, 5)
    assert (got.body, got.native_count) == (BODY, 1)
    assert broker.ack([got]) == ()
    broker.close()
