"""Dead letters of twelve kinds for tests: some from our own code, some from the public SDK."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from babelqueue import dead_letter as sdk

from servers.process import Server, new_home
from shinar.brokers import Broker, Outgoing, connect, traits
from shinar.envelope import DeadReason, build, dead_letter, dead_letter_copy, encode, poison_record
from shinar.redrive import JobState, Ledger
from shinar.redrive.letters.read import read_letters
from shinar.settlement.names import dead_letter_queue

#: Ten kinds of handled failures; poison and a version nobody speaks make twelve.
KINDS = [
    ("php", "App\\Jobs\\GatewayTimeout", "gateway said 504 after {n} ms", "urn:babel:orders:created"),
    ("php", "App\\Jobs\\GatewayTimeout", "gateway said 504 after {n} ms", "urn:babel:orders:paid"),
    ("go", "*net.OpError", "dial tcp 10.0.0.{n}: refused", "urn:babel:orders:created"),
    ("java", "java.lang.NullPointerException", "order {n} has no customer", "urn:babel:orders:created"),
    ("node", "TypeError", "Cannot read properties of undefined", "urn:babel:users:registered"),
    ("python", "KeyError", "'sku-{n}'", "urn:babel:stock:moved"),
    ("dotnet", "System.TimeoutException", "no answer in {n} s", "urn:babel:stock:moved"),
    ("python", "ValueError", "invalid literal for int(): 'x{n}'", "urn:babel:stock:moved"),
    ("python", "ValueError", "amount {n} is negative", "urn:babel:orders:paid"),
    ("php", None, "unknown urn", "urn:babel:unknown:thing"),
]
POISON, VERSION = 10, 11
#: Epoch ms of the first death.
BEGAN_MS = 1_763_172_600_000


def body(n: int, queue: str) -> bytes:
    """The n-th dead letter; its kind is n modulo 12."""
    kind = n % 12
    if kind == POISON:
        block = dead_letter(
            DeadReason.POISON, queue=queue, attempts=1, failed_ms=BEGAN_MS + n * 100, error="no envelope"
        )
        return poison_record(b'{"broken":%d' % n, block)
    if kind == VERSION:
        return (
            b'{"job":"urn:babel:orders:created","trace_id":"t-%d","data":{"n":%d},"meta":{"id":"v-%d","queue":"%s",'
            b'"lang":"go","schema_version":9,"created_at":%d},"attempts":0}'
            % (n, n, n, queue.encode(), BEGAN_MS)
        )
    lang, exception, error, urn = KINDS[kind]
    message = build(urn, {"n": n, "amount": n * 10, "kind": kind}, queue=queue)
    plain = encode(message).replace(b'"lang":"python"', b'"lang":"%s"' % lang.encode())
    if kind % 3 == 0:
        made = sdk.annotate(
            json.loads(plain),
            "failed",
            queue,
            3,
            error=error.format(n=n % 250),
            exception=exception,
            lang=lang,
        )
        made["dead_letter"]["failed_at"] = BEGAN_MS + n * 100
        return json.dumps(made, separators=(",", ":"), ensure_ascii=False).encode()
    reason = DeadReason.UNKNOWN_URN if exception is None else DeadReason.FAILED
    block = dead_letter(
        reason, queue=queue, attempts=3, failed_ms=BEGAN_MS + n * 100, error=error.format(n=n % 250)
    )
    return dead_letter_copy(plain, msgspec.structs.replace(block, exception=exception, lang=lang))


def plant(broker: Broker, dlq: str, queue: str, count: int) -> list[bytes]:
    """Publish `count` of them; their bodies in order."""
    bodies = [body(n, queue) for n in range(count)]
    for start in range(0, count, 200):
        part = bodies[start : start + 200]
        broker.publish(
            dlq,
            [
                Outgoing(text, {"x-n": str(start + at)}, b"key" if broker.traits.key else None)
                for at, text in enumerate(part)
            ],
        )
    return bodies


def change_job(ledger: Ledger, job_id: str, **values: Any) -> None:
    """As if another process had written so: its state, its runner, when it was last seen."""
    sets = ", ".join(f"{name} = %s" for name in values)
    plain = [str(value) if isinstance(value, str) else value for value in values.values()]
    ledger._tables.update(f"UPDATE shinar_redrive_jobs SET {sets} WHERE id = %s", (*plain, job_id))


#: No process has such a number.
NOBODY = f"{socket.gethostname()}:{2**22 + 1}"


def kill(ledger: Ledger, job_id: str) -> None:
    """As if its runner had been killed just now."""
    change_job(ledger, job_id, state=JobState.RUNNING, runner=NOBODY)


def drained(broker: Broker, queue: str) -> Iterator[bytes]:
    """Everything a queue holds, consumed."""
    empty = 0
    while empty < 3:
        batch = broker.reserve(queue, 500, 0.5)
        broker.ack(batch)
        yield from (delivery.body for delivery in batch)
        empty = 0 if batch else empty + 1


HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
#: Thousands of held ones cannot be renewed every two seconds. Service Bus gives one to five minutes.
LEASE_S = 30 if HEAVY else 5
LOCK_S = 120 if HEAVY else 5
#: Brokers of the redrive tests: row -> (server it needs, options)
ROWS: dict[str, tuple[str | None, str]] = {
    "sqlite": (None, "lease_s=3"),
    "phpmq": (None, "lease_s=3"),
    "redis": ("redis", "lease_s=3"),
    "redis-laravel": ("redis", "layout=laravel&lease_s=3"),
    "rabbitmq": ("rabbitmq", ""),
    "rabbitmq-quorum": ("rabbitmq", "queue_type=quorum"),
    "sqs": ("elasticmq", f"lease_s={LEASE_S}"),
    "servicebus": ("servicebus", f"lease_s={LOCK_S}"),
    "kafka": ("kafka", "partitions=1"),
    "postgresql": ("postgresql", "lease_s=3"),
    "pulsar": ("pulsar", ""),
    "artemis": ("artemis", ""),
}


@dataclass
class Place:
    """A dead-letter queue of a real broker that nobody else uses."""

    name: str
    url: str
    queue: str
    dlq: str

    def __post_init__(self) -> None:
        self.traits = traits(self.url)

    @contextlib.contextmanager
    def broker(self) -> Iterator[Broker]:
        opened = connect(self.url)
        try:
            yield opened
        finally:
            opened.close()

    def redrive_url(self) -> str:
        return with_queue(self.url, self.dlq)


def with_queue(url: str, queue: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}queue={queue}"


def open_place(
    name: str, tmp_path: Path, live_server: Callable[..., Any], request: pytest.FixtureRequest
) -> Place:
    needs, options = ROWS[name]
    if needs == "servicebus" and HEAVY:
        url = _patient_servicebus(request)
    elif needs is not None:
        url = live_server(needs).url
    elif name == "sqlite":
        url = f"sqlite://{tmp_path}/queue.db"
    else:
        url = request.getfixturevalue("embedded")
    url = f"{url}{'&' if '?' in url else '?'}{options}" if options else url
    queue = f"orders-{uuid.uuid4().hex[:8]}"
    return Place(name, url, queue, dead_letter_queue(queue, traits(url)))


def _patient_servicebus(request: pytest.FixtureRequest) -> str:
    """A stand-in of one's own: how long a lock lasts is a setting of the queue, not of the reader."""
    home = new_home("servicebus-heavy")
    plan = importlib.import_module("servers.recipes.servicebus").plan(home, None, "--lock", str(LOCK_S))
    server = Server(name="servicebus", home=home, plan=plan, tls=None)
    server.start()
    request.addfinalizer(server.stop)
    return server.url


def everything(place: Place) -> list[bytes]:
    """What the dead-letter queue holds, in order, without consuming it where that is possible."""
    with place.broker() as broker:
        if broker.traits.browse:
            return [delivery.body for delivery in broker.browse(place.dlq)]
        return [letter.delivery.body for letter in read_letters(broker, place.dlq, reserve=True)]
