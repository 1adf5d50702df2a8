"""One Producer, many threads, every broker: no message lost, none sent twice, and each caller gets its own
result."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from cases import Case, case, embedded, take
from live import number_of
from shinar import Producer
from shinar.errors import Closed

THREADS, SENDS = 8, 200
URN = "urn:babel:orders:created"

__all__ = ["case", "embedded"]


@pytest.mark.timeout(300)
def test_eight_threads_share_a_producer(case: Case) -> None:
    options = () if case.traits.lease_s is None else ("lease_s=60",)
    begin = threading.Barrier(THREADS)

    def send(thread: int) -> float:
        begin.wait()
        started_s = time.monotonic()
        for n in range(SENDS):
            producer.send(URN, {"n": thread * SENDS + n})
        return time.monotonic() - started_s

    with Producer(case.url, queue=case.queue) as producer, ThreadPoolExecutor(THREADS) as threads:
        longest_s = max(threads.map(send, range(THREADS)))
        assert producer.metrics.value("shinar_sent_total") == THREADS * SENDS
    print(f"\n{THREADS} threads: {THREADS * SENDS / longest_s:,.0f} messages/s")
    broker = case.connect(*options)
    arrived = Counter(map(number_of, take(broker, case.queue, THREADS * SENDS, timeout_s=120)))
    arrived.update(map(number_of, broker.reserve(case.queue, 10, 1.0)))
    assert arrived == Counter(range(THREADS * SENDS))


@pytest.mark.timeout(120)
def test_a_closed_producer_refuses(case: Case) -> None:
    producer = Producer(case.url, queue=case.queue)
    producer.send(URN, {"n": 0})
    producer.close()
    producer.close()
    with pytest.raises(Closed, match="the producer is closed; open another one"):
        producer.send(URN, {"n": 1})
    assert [number_of(delivery) for delivery in take(case.connect(), case.queue, 1)] == [0]
