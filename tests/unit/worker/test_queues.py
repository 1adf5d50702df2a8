"""Several queues in one worker: each is served, weights decide which comes first."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

from shinar import Limits, Producer, Worker
from shinar.errors import ConfigError
from shinar.observe import Metrics
from shinar.worker.queues import Rotation, weights_of

URN = "urn:babel:orders:created"


def test_weights_decide_how_often_a_queue_is_asked_first() -> None:
    rotation = Rotation({"a": 1, "b": 3})
    orders = [list(rotation.order()) for _ in range(40)]
    assert all(sorted(order) == ["a", "b"] for order in orders)
    assert Counter(order[0] for order in orders) == {"a": 10, "b": 30}


@pytest.mark.parametrize("queues", [["a", "a"], {"a": 0}, {"a": 101}, {"": 1}, [""], {"a": 1.5}])
def test_odd_queues_are_refused(queues: object) -> None:
    with pytest.raises(ConfigError):
        weights_of(queues)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize("queues", [["a", "b"], {"a": 1, "b": 5}])
def test_a_worker_serves_all_of_its_queues_and_counts_each(queues: list[str] | dict[str, int]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    seen: Counter[str] = Counter()
    with Producer(url) as producer:
        for queue, count in (("a", 30), ("b", 50)):
            producer.send_many([(URN, {"queue": queue})] * count, queue=queue)
    metrics = Metrics()

    def handle(message) -> None:
        seen[message.data["queue"]] += 1

    limits = Limits(until_empty=True, empty_wait_s=0.1, max_time_s=20)
    report = Worker(url, {URN: handle}, queue=queues, limits=limits, metrics=metrics).run()
    assert seen == {"a": 30, "b": 50}
    assert report.counts == {"handled": 80}
    for queue, count in seen.items():
        assert metrics.value("shinar_received_total", queue=queue) == count
        assert metrics.value("shinar_outcomes_total", queue=queue, outcome="handled") == count
