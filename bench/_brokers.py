"""What the benches of single brokers share: message, loops over Shinar and the public SDK, printing.

Two ways to measure. `whole` counts building and judging the envelopes and calling a handler, on both
sides. `moved` has the bodies ready and counts only what the broker module, or the transport, does.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shinar.brokers import Broker, Outgoing, connect
from shinar.envelope import Kind, build, encode, judge

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
os.environ.setdefault("TEST_SERVER_JIT", "1")
os.environ.setdefault("TEST_SERVER_MEMORY", "1")

from servers import acquire

__all__ = ["DATA", "URN", "acquire"]

URN = "urn:babel:orders:created"
DATA = {"order_id": 1042, "customer": "Zoë", "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}]}
#: The machine is not alone, and the first round warms it up.
ROUNDS = 3

#: Publishing and consuming, per second.
Rates = tuple[float, float]


def queue_name() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def rate(count: int, action: Callable[[], object]) -> float:
    return count / seconds(action)


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def best(rounds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Of the rounds, each side's fastest: what disturbs a machine only ever slows it down."""
    return tuple(max(column) for column in zip(*rounds, strict=True))


# -- whole: envelopes built, judged and handled


def ours_whole(broker: Broker, queue: str, count: int, *, send: int, take: int, wait_s: float = 0.0) -> Rates:
    """`send` messages to a publish, `take` to a reserve. Closes the broker."""
    seen = 0

    def publish() -> None:
        for at in range(0, count, send):
            broker.publish(
                queue, [Outgoing(encode(build(URN, DATA, queue=queue))) for _ in range(min(send, count - at))]
            )

    def consume() -> None:
        nonlocal seen
        while seen < count:
            found = broker.reserve(queue, take, wait_s)
            for delivery in found:
                assert judge(delivery.body).kind is Kind.ACCEPTED
            seen += len(found)
            assert broker.ack(found) == ()

    rates = rate(count, publish), rate(count, consume)
    assert seen == count, seen
    broker.close()
    return rates


def sdk_whole(app: Any, count: int, *, timeout_s: float = 1.0) -> Rates:
    """`app` is a babelqueue.BabelQueue on a queue of its own."""
    seen = 0

    @app.handler(URN)
    def handle(data: object, meta: object) -> None:
        nonlocal seen
        seen += 1

    publish = rate(count, lambda: [app.publish(URN, DATA) for _ in range(count)])
    consume = rate(count, lambda: app.consume(max_messages=count, timeout=timeout_s))
    assert seen == count, seen
    return publish, consume


# -- moved: bodies in, bodies out


def bodies(count: int) -> list[bytes]:
    return [encode(build(URN, {"n": n, "items": [1, 2, 3]}, queue="orders")) for n in range(count)]


def ours_publish(url: str, queue: str, count: int, *, send: int = 1_000) -> float:
    """Seconds. The queue has one message more than that: opening it is not measured."""
    broker = connect(url)
    broker.publish(queue, [Outgoing(b"{}")])
    messages = [Outgoing(body) for body in bodies(count)]

    def publish() -> None:
        for at in range(0, count, send):
            broker.publish(queue, messages[at : at + send])

    took_s = seconds(publish)
    broker.close()
    return took_s


def ours_consume(url: str, queue: str, count: int, *, take: int) -> float:
    """Seconds, for a queue filled by `ours_publish`."""
    broker = connect(url)
    broker.ack(broker.reserve(queue, 1, 10))

    def consume() -> None:
        seen = 0
        while seen < count:
            got = broker.reserve(queue, take, 5)
            seen += len(got)
            broker.ack(got)

    took_s = seconds(consume)
    broker.close()
    return took_s


def filled(url: str, count: int) -> str:
    """A new queue with that many messages, and the one more."""
    queue = queue_name()
    ours_publish(url, queue, count)
    return queue


def sdk_publish(transport: Any, queue: str, count: int, *, by: str = "publish") -> float:
    """Seconds. `by` is the method that waits for the broker, where the transport has several."""
    texts = [body.decode() for body in bodies(count)]
    publish = getattr(transport, by)
    publish(queue, texts[0])
    took_s = seconds(lambda: [publish(queue, text) for text in texts])
    transport.close()
    return took_s


def sdk_consume(transport: Any, queue: str, count: int) -> float:
    """Seconds, for a queue filled by `ours_publish`."""
    while (first := transport.pop(queue, 10)) is None:
        pass
    transport.ack(first)
    took_s = seconds(lambda: [transport.ack(transport.pop(queue, 10)) for _ in range(count)])
    transport.close()
    return took_s


def compare(
    what: str, runs: Mapping[str, Callable[[str, int], float]], url: str, count: int, few: int
) -> None:
    """Runs `shinar`, `bare` and `babelqueue` in turns, each `(url, count) -> seconds`; prints the best.

    The public SDK has one turn of `few` messages: it would take the most of the time."""
    rates = dict.fromkeys(runs, 0.0)
    for turn in range(ROUNDS):
        for name, run in runs.items():
            if name == "babelqueue" and turn:
                continue
            size = few if name == "babelqueue" else count
            rates[name] = max(rates[name], size / run(url, size))
    ours, bare, sdk = rates["shinar"], rates["bare"], rates["babelqueue"]
    print(
        f"{what}: shinar {ours:,.0f}/s, bare {bare:,.0f}/s ({ours / bare:.0%}), "
        f"babelqueue {sdk:,.0f}/s (x{ours / sdk:.1f})"
    )


# -- printing


def headline(what: str, count: int, size: int, batch: int) -> None:
    print(f"{what}, {count} messages of {size} bytes, batches of {batch}; per second")


def columns() -> None:
    print(f"{'':<34}{'publish':>10}{'consume':>10}")


def line(label: str, rates: Sequence[float], note: str = "") -> None:
    print(f"{label:<34}{rates[0]:>10,.0f}{rates[1]:>10,.0f}{note}")


def times(label: str, mine: Sequence[float], other: Sequence[float]) -> None:
    print(f"{f'   times {label}':<34}{mine[0] / other[0]:>9.1f}x{mine[1] / other[1]:>9.1f}x")


def share(label: str, mine: Sequence[float], other: Sequence[float]) -> None:
    print(f"{f'   of {label}':<34}{mine[0] / other[0]:>10.0%}{mine[1] / other[1]:>10.0%}")


def three(bare_name: str, ours: Sequence[float], bare: Sequence[float], sdk: Sequence[float]) -> None:
    columns()
    line("SDK", sdk)
    line(bare_name, bare)
    line("Shinar", ours)
    times("the SDK", ours, sdk)
    share("the bare client", ours, bare)
