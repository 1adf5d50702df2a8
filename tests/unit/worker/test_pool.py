"""The pool drops what no thread has started, and only that; ordering keys stay usable afterwards."""

from __future__ import annotations

import threading
import time

from shinar.brokers import Delivery
from shinar.clock import SYSTEM
from shinar.worker.pool import Pool


class Gate:
    """A handler's stand-in: notes what it got, and waits at the first until it is let through."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.seen.append(delivery)
        self.entered.set()
        assert self.open.wait(10)


def delivery(number: int, key: bytes | None = None) -> Delivery:
    return Delivery(b"", "orders", number, key=key)


def collected(pool: Pool) -> tuple[list[Delivery], int]:
    handled: list[Delivery] = []
    dropped = 0
    deadline = time.monotonic() + 10
    while pool.size and time.monotonic() < deadline:
        done = pool.collect(0.05)
        handled += done.handled
        dropped += done.dropped
    return handled, dropped


def test_only_what_was_started_comes_out_after_a_drop() -> None:
    gate = Gate()
    pool = Pool(gate, 1, SYSTEM)
    pool._cost_s = 0.001  # chunks of five: the first is running when the connection goes
    given = [delivery(n) for n in range(12)]
    pool.submit(given)
    assert gate.entered.wait(10)
    idle = pool.drop()
    gate.open.set()
    handled, dropped = collected(pool)
    assert handled == gate.seen == given[:1]
    assert (len(idle), dropped, pool.size) == (7, 4, 0)
    pool.submit([delivery(99)])
    assert [d.receipt for d in collected(pool)[0]] == [99]
    pool.close()


def test_keys_are_free_again_after_a_drop() -> None:
    gate = Gate()
    pool = Pool(gate, 2, SYSTEM)
    pool.submit([delivery(n, b"k") for n in range(4)])
    assert gate.entered.wait(10)
    pool.submit([delivery(4, b"k")])
    pool.drop()
    gate.open.set()
    collected(pool)
    pool.submit([delivery(5, b"k"), delivery(6, b"k")])
    assert [d.receipt for d in collected(pool)[0]] == [5, 6]
    assert pool.size == 0
    pool.close()
