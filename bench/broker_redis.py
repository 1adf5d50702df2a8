"""Redis, side by side in one run: the public SDK, Shinar, and the barest use of redis-py we can write.

    python bench/broker_redis.py [--messages 20000] [--batch 500] [--url redis://127.0.0.1:6379/0]

Consuming includes judging each body and calling a handler, for the SDK and for us. The bare client
runs nothing but Redis: `bare` takes and settles a batch with the smallest scripts that lose
nothing when the worker dies, `bare, lossy` is LPOP, which loses what it holds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import babelqueue
import redis

from shinar.brokers import Outgoing, connect
from shinar.envelope import Kind, build, encode, judge

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

URN = "urn:babel:orders:created"
DATA = {"order_id": 1042, "customer": "Zoë", "lines": [{"sku": "A-1", "n": 2}, {"sku": "B-7", "n": 1}]}

TAKE = """
local found = redis.call('LPOP', KEYS[1], ARGV[1]) or {}
for i, raw in ipairs(found) do
    redis.call('RPUSH', KEYS[2], raw)
    redis.call('ZADD', KEYS[3], 1, ARGV[2] .. i .. ':' .. raw)
end
return found
"""
SETTLE = """
for i = 1, #ARGV - 1 do
    if redis.call('ZREM', KEYS[2], ARGV[#ARGV] .. i .. ':' .. ARGV[i]) == 1 then
        redis.call('LREM', KEYS[1], 1, ARGV[i])
    end
end
"""


def rate(count: int, action: Callable[[], None]) -> float:
    started = time.perf_counter()
    action()
    return count / (time.perf_counter() - started)


def best(rates: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Of the rounds, each side's fastest: what disturbs a machine only ever slows it down."""
    return tuple(max(column) for column in zip(*rates, strict=True))


def sdk(url: str, laravel: bool, count: int) -> tuple[float, float]:
    from babelqueue.redis_transport import RedisTransport

    transport = RedisTransport(url, laravel_compat=laravel)
    app = babelqueue.BabelQueue(transport=transport, queue="bench-sdk")
    seen = 0

    @app.handler(URN)
    def handle(data: object, meta: object) -> None:
        nonlocal seen
        seen += 1

    publish = rate(count, lambda: [app.publish(URN, DATA) for _ in range(count)] and None)
    consume = rate(count, lambda: app.consume(max_messages=count, timeout=1.0))
    assert seen == count
    return publish, consume


def ours(url: str, laravel: bool, count: int, batch: int) -> tuple[float, float]:
    broker = connect(f"{url}/bench-ours" + ("?layout=laravel" if laravel else ""))
    seen = 0

    def publish() -> None:
        for _ in range(0, count, batch):
            broker.publish("bench-ours", [Outgoing(encode(build(URN, DATA))) for _ in range(batch)])

    def consume() -> None:
        nonlocal seen
        while found := broker.reserve("bench-ours", batch, 0.0):
            for delivery in found:
                verdict = judge(delivery.body)
                assert verdict.kind is Kind.ACCEPTED
                seen += 1
            assert broker.ack(found) == ()

    result = rate(count, publish), rate(count, consume)
    assert seen == count
    broker.close()
    return result


def ours_moving_bytes(url: str, laravel: bool, bodies: list[bytes], batch: int) -> tuple[float, float]:
    """Without building and judging envelopes: what the broker module itself costs."""
    broker = connect(f"{url}/bench-bytes" + ("?layout=laravel" if laravel else ""))
    messages = [Outgoing(body) for body in bodies]

    def publish() -> None:
        for start in range(0, len(bodies), batch):
            broker.publish("bench-bytes", messages[start : start + batch])

    def consume() -> None:
        while found := broker.reserve("bench-bytes", batch, 0.0):
            broker.ack(found)

    result = rate(len(bodies), publish), rate(len(bodies), consume)
    broker.close()
    return result


def bare(url: str, bodies: list[bytes], batch: int) -> tuple[float, float, float]:
    client = redis.Redis.from_url(url, protocol=2)
    take, settle = client.register_script(TAKE), client.register_script(SETTLE)

    def publish() -> None:
        for start in range(0, len(bodies), batch):
            client.rpush("bare", *bodies[start : start + batch])

    def consume() -> None:
        while found := take(["bare", "bare:p", "bare:d"], [batch, "t"]):
            settle(["bare:p", "bare:d"], [*found, "t"])

    def lossy() -> None:
        while client.lpop("bare", batch):
            pass

    pushed, taken = rate(len(bodies), publish), rate(len(bodies), consume)
    publish()
    return pushed, taken, rate(len(bodies), lossy)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    url = options.url
    if url is None:
        import servers

        url = servers.acquire("redis").url
    count, batch = options.messages // options.batch * options.batch, options.batch
    bodies = [encode(build(URN, DATA)) for _ in range(count)]
    redis.Redis.from_url(url).flushdb()
    print(f"{count} messages of {len(bodies[0])} bytes, batches of {batch}; per second")
    print(f"{'':<34}{'publish':>10}{'consume':>10}")
    for laravel in (False, True):
        name = "laravel" if laravel else "processing"
        rounds = [
            (
                bare(url, bodies, batch),
                sdk(url, laravel, max(2000, count // 10)),
                ours(url, laravel, count, batch),
                ours_moving_bytes(url, laravel, bodies, batch),
            )
            for _ in range(options.rounds)
        ]
        (pushed, taken, lossy), theirs, mine, moved = (best([row[i] for row in rounds]) for i in range(4))
        print(f"{'bare redis-py':<34}{pushed:>10,.0f}{taken:>10,.0f}   (lossy LPOP {lossy:,.0f})")
        print(f"{f'SDK, {name}':<34}{theirs[0]:>10,.0f}{theirs[1]:>10,.0f}")
        print(f"{f'Shinar, {name}':<34}{mine[0]:>10,.0f}{mine[1]:>10,.0f}")
        print(f"{f'Shinar, {name}, bytes only':<34}{moved[0]:>10,.0f}{moved[1]:>10,.0f}")
        print(f"{'   times the SDK':<34}{mine[0] / theirs[0]:>9.1f}x{mine[1] / theirs[1]:>9.1f}x")
        print(f"{'   of the bare client':<34}{moved[0] / pushed:>10.0%}{moved[1] / taken:>10.0%}")


if __name__ == "__main__":
    main()
