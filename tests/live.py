"""What the live tests of single brokers share: an envelope as another language writes it, and patience."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

from shinar.brokers import Broker, Delivery

#: Recent, because Kafka's retention goes by it.
CREATED_MS = int(time.time() * 1000) - 3_600_000


def envelope(n: int = 0, **fields: object) -> bytes:
    message = {
        "job": "urn:babel:orders:created",
        "trace_id": "8c0d9f6e-0000-4000-8000-000000000001",
        "data": {"n": n, "text": "größe"},
        "meta": {
            "id": f"m-{n}",
            "queue": "orders",
            "lang": "php",
            "schema_version": 1,
            "created_at": CREATED_MS,
        },
        "attempts": 0,
    }
    return json.dumps({**message, **fields}, ensure_ascii=False).encode()


def unique_envelope(n: int = 0, **fields: object) -> bytes:
    """As `envelope`, with an id that no broker has seen: some drop what they take for a repetition."""
    meta = {
        "id": str(uuid.uuid4()),
        "queue": "orders",
        "lang": "python",
        "schema_version": 1,
        "created_at": CREATED_MS,
    }
    return envelope(n, **{"meta": meta, "data": {"n": n}, **fields})


def number_of(delivery: Delivery) -> int:
    number: int = json.loads(delivery.body)["data"]["n"]
    return number


def take(broker: Broker, queue: str, count: int, timeout_s: float = 60.0) -> list[Delivery]:
    """Exactly so many, or the test has failed."""
    found: list[Delivery] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and (left := deadline - time.monotonic()) > 0:
        found += broker.reserve(queue, count - len(found), min(left, 1.0))
    assert len(found) == count
    return found


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False
