"""SIGKILL at random points under load, and a log cut at any byte: what was confirmed is there, what was
acked stays away, order is kept, and the data file is sound after every crash."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from shinar.brokers import Broker, Delivery, Outgoing, connect
from shinar.errors import BrokerError
from shinar.phpmq import maintenance
from shinar.phpmq.schema import DATA_FILE
from shinar.phpmq.store import BrokerStore

KILLS = 100 if os.environ.get("SHINAR_HEAVY") else 10
PUBLISHERS = 2


def start(folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], str]:
    command = [
        sys.executable,
        "-m",
        "shinar.cli.main",
        "broker",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    process = subprocess.Popen(
        [*command, "--data", str(folder), *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the server ended with {process.wait()}"
    return process, json.loads(line)["urls"][0]


class Load:
    """Publishers and one consumer that note what the broker promised them."""

    def __init__(self) -> None:
        self.confirmed: set[tuple[int, int]] = set()
        self.acked: set[tuple[int, int]] = set()
        #: Acks sent, whatever became of them.
        self.asked: set[tuple[int, int]] = set()
        self.released = 0
        self.problems: list[str] = []
        self.next = [0] * PUBLISHERS
        self.last_first = [-1] * PUBLISHERS

    def run(self, url: str, stop: threading.Event, seed: int) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._publish, args=(url, stop, who, random.Random(seed + who)))
            for who in range(PUBLISHERS)
        ]
        threads.append(threading.Thread(target=self._consume, args=(url, stop, random.Random(seed - 1))))
        for thread in threads:
            thread.start()
        return threads

    def _publish(self, url: str, stop: threading.Event, who: int, dice: random.Random) -> None:
        with suppress(BrokerError), closing(connect(url)) as broker:
            while not stop.is_set():
                count = dice.choice([1, 1, 10, 200])
                numbers = range(self.next[who], self.next[who] + count)
                self.next[who] += count
                broker.publish(
                    "orders", [Outgoing(b"%d %d" % (who, number) + b"x" * 300) for number in numbers]
                )
                self.confirmed.update((who, number) for number in numbers)

    def _consume(self, url: str, stop: threading.Event, dice: random.Random) -> None:
        with suppress(BrokerError), closing(connect(url)) as broker:
            while not stop.is_set():
                self.take(broker, dice)

    def take(self, broker: Broker, dice: random.Random) -> int:
        got = broker.reserve("orders", dice.choice([1, 50, 500]), 0.05)
        for delivery in got:
            who, number = numbers_of(delivery)
            if (who, number) in self.acked:
                self.problems.append(f"{who}/{number} was acked and came back")
            if delivery.native_count == 0:
                if number <= self.last_first[who]:
                    self.problems.append(f"{who}/{number} came first after {self.last_first[who]}")
                self.last_first[who] = number
        if got and dice.random() < 0.2:
            back = got[len(got) // 2 :]
            got = got[: len(got) // 2]
            broker.release(back)
            self.released += len(back)
        # The server may die between the commit of an ack and its reply: then both outcomes are right.
        self.asked.update(numbers_of(delivery) for delivery in got)
        lapsed = {delivery.receipt for delivery in broker.ack(got)}
        for delivery in got:
            if delivery.receipt not in lapsed:
                self.acked.add(numbers_of(delivery))
        return len(got)


def numbers_of(delivery: Delivery) -> tuple[int, int]:
    who, number = map(int, delivery.body.rstrip(b"x").split())
    return who, number


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_sigkill_under_load(tmp_path: Path) -> None:
    seed = int(os.environ.get("SHINAR_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SHINAR_SEED={seed}")
    dice = random.Random(seed)
    load = Load()
    for round_ in range(KILLS):
        # Every other round merges the log so often that some kills hit that, too.
        flags = ("--archive", "--checkpoint-mib", "1") if round_ % 2 else ()
        process, url = start(tmp_path, *flags)
        stop = threading.Event()
        threads = load.run(url, stop, seed + 10 * round_)
        time.sleep(dice.uniform(0.02, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.set()
        for thread in threads:
            thread.join(30)
        assert process.stdout is not None
        process.stdout.close()
        assert maintenance.check(tmp_path) == []
        assert not load.problems, load.problems[:5]
    process, url = start(tmp_path)
    try:
        with closing(connect(url)) as broker:
            while load.take(broker, dice) or broker.depth("orders").ready:
                pass
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()
    assert not load.problems, load.problems[:5]
    assert len(load.confirmed) > 100 * KILLS / 10, "the load was a load"
    lost = load.confirmed - load.asked
    assert len(load.asked - load.acked) <= 500 * KILLS, "only the last ack of a round may be in doubt"
    assert not lost, f"{len(lost)} confirmed messages are gone, such as {sorted(lost)[:5]}"


@pytest.mark.chaos
def test_a_log_cut_at_any_byte_is_a_prefix_of_commits(tmp_path: Path) -> None:
    """A power cut leaves some prefix of the write-ahead log, perhaps with garbage behind it."""
    folder = tmp_path / "live"
    store = BrokerStore(folder)
    queue = store.create_queue("orders")
    store.commit([queue])
    wal = folder / (DATA_FILE + "-wal")
    ends = [(wal.stat().st_size, 0)]
    for number in range(40):
        for _ in range(1 + number % 7):
            store.insert([(queue.next, b"body %d" % queue.next, None, 1, 0)])
            queue.next += 1
            queue.messages += 1
        store.commit([queue])
        ends.append((wal.stat().st_size, queue.messages))
    dice = random.Random(7)
    for trial in range(60):
        size = dice.randrange(ends[0][0], ends[-1][0] + 1)
        crashed = tmp_path / f"crash{trial}"
        crashed.mkdir()
        shutil.copy(folder / DATA_FILE, crashed / DATA_FILE)
        torn = wal.read_bytes()[:size] + dice.randbytes(dice.choice([0, 0, 100, 5000]))
        (crashed / wal.name).write_bytes(torn)
        expected = max(count for end, count in ends if end <= size)
        again = BrokerStore(crashed)
        (row,) = again.queues()
        assert row.messages == expected
        assert len(again.load(row.first, row, 10_000, 10**9)) == expected
        again.close()
        assert maintenance.check(crashed) == []
    store.close()
