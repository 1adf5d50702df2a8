"""The contract and the worker, side by side with the public SDK (babelqueue) and bare msgspec.

    python bench/core.py

Every pair runs alternately in one process, best of several rounds; read the ratios, not the rates.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import msgspec
from babelqueue import BabelQueue, EnvelopeCodec

from shinar import Limits, Worker, build, encode, judge
from shinar.brokers import Outgoing, connect

URN = "urn:babel:orders:created"
DATA = {
    "order_id": 1042,
    "amount": 99.9,
    "currency": "EUR",
    "items": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}],
    "note": "grüße",
}
SMALL = {"order_id": 1042, "amount": 99.9, "currency": "EUR"}
ROUNDS = 5
#: In the queue before a worker starts, ours and theirs.
MESSAGES = 30_000


def best_us(call: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count * 1e6


def compare(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], peer: str, goal: str
) -> None:
    mine, other = float("inf"), float("inf")
    for _ in range(ROUNDS):
        mine = min(mine, best_us(ours, 20_000))
        other = min(other, best_us(theirs, 3_000))
    print(f"{what:<28} {mine:8.2f} us   {peer:<12} {other:8.2f} us   {other / mine:6.2f}x   goal {goal}")


def codec() -> None:
    body = encode(build(URN, DATA, queue="orders"))
    text = body.decode()

    def sdk_judge() -> None:
        if EnvelopeCodec.poison_cause(text) is None:
            EnvelopeCodec.accepts(EnvelopeCodec.decode(text))

    print(f"one body of {len(body)} bytes")
    compare("judge", lambda: judge(body), sdk_judge, "babelqueue", ">= 15x")
    compare("judge", lambda: judge(body), lambda: msgspec.json.decode(body), "msgspec", ">= 0.33x")
    compare(
        "build + encode",
        lambda: encode(build(URN, DATA, queue="orders")),
        lambda: EnvelopeCodec.encode(EnvelopeCodec.make(URN, DATA, queue="orders")),
        "babelqueue",
        ">= 5x",
    )


def worker_rate(count: int) -> float:
    url = f"memory://{uuid.uuid4().hex}/orders"
    connect(url).publish("orders", [Outgoing(encode(build(URN, SMALL))) for _ in range(count)])
    worker = Worker(url, {URN: lambda message: None}, limits=Limits(max_messages=count))
    started = time.perf_counter()
    report = worker.run()
    spent = time.perf_counter() - started
    assert report.counts == {"handled": count}
    return count / spent


def sdk_rate(count: int) -> float:
    app = BabelQueue("memory://", queue="orders")
    handled = 0

    @app.handler(URN)
    def handle(data: dict, meta: dict) -> None:
        nonlocal handled
        handled += 1

    for _ in range(count):
        app.publish(URN, SMALL)
    started = time.perf_counter()
    app.consume(max_messages=count)
    spent = time.perf_counter() - started
    assert handled == count
    return count / spent


def main() -> None:
    codec()
    ours, theirs = 0.0, 0.0
    for _ in range(ROUNDS):
        ours = max(ours, worker_rate(MESSAGES))
        theirs = max(theirs, sdk_rate(MESSAGES))
    print(f"worker on memory:// {ours:>12,.0f} msg/s   babelqueue {theirs:>9,.0f} msg/s", end="   ")
    print(f"{ours / theirs:.1f}x   goal >= 20x")


if __name__ == "__main__":
    main()
