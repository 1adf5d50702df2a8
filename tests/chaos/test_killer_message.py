"""Brokers that count what is lost with a worker: a message that ends its worker process is handled
`max_attempts` times and is then a dead letter. Its neighbours, lost with it, are handled all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases import Case, case, embedded, nothing_left, take, with_options
from shinar.brokers import Outgoing
from shinar.envelope import build, encode
from shinar.settlement import dead_letter_queue

PROGRAM = Path(__file__).with_name("killer_program.py")
#: Artemis and Pulsar count what is handed back, not what is lost with a connection; the stand-in for Service
#: Bus has locks of its own length; the others keep no count.
COUNTING = ("phpmq", "sqlite", "postgresql", "mysql", "redis-laravel", "rabbitmq-quorum", "sqs")
NEIGHBOURS = 60
MAX_ATTEMPTS = 3

__all__ = ["case", "embedded"]


def bodies() -> Iterator[Outgoing]:
    for n in range(NEIGHBOURS):
        if n == NEIGHBOURS // 3:
            yield Outgoing(encode(build("urn:babel:orders:kill", {})))
        yield Outgoing(encode(build("urn:babel:orders:created", {"n": n})))


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", COUNTING, indirect=True)
def test_a_message_that_ends_its_worker_is_dead_after_max_attempts(case: Case, tmp_path: Path) -> None:
    traits = case.traits
    lease = () if traits.lease_s is None else ("lease_s=2",)
    broker = case.connect(*lease)
    broker.publish(case.queue, list(bodies()))

    log = tmp_path / "handled"
    command = [sys.executable, str(PROGRAM), with_options(case.url, *lease), case.queue, str(log)]
    environment = {**os.environ, "EMPTY_WAIT_S": "4"}
    ends = []
    while not ends or ends[-1] == 9:
        ends.append(
            subprocess.run(command, timeout=120, env=environment, stdout=subprocess.DEVNULL).returncode
        )
        assert len(ends) < 10, "nothing bounds it"

    handled = Counter(log.read_text().split())
    assert (handled.pop("kill"), ends) == (MAX_ATTEMPTS, [9] * MAX_ATTEMPTS + [0])
    assert sorted(map(int, handled)) == list(range(NEIGHBOURS)), "a neighbour was not handled"
    letters = dead_letter_queue(case.queue, traits)
    (dead,) = take(broker, letters, 1)
    assert nothing_left(broker, letters), "a neighbour is dead too"
    record = json.loads(dead.body)
    block = record["dead_letter"]
    assert record["job"] == "urn:babel:orders:kill"
    assert (block["reason"], block["exception"], block["attempts"]) == ("failed", "WorkerLost", MAX_ATTEMPTS)
    assert "delivered 3 times without an outcome" in block["error"]
