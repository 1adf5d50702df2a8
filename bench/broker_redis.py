"""Redis, side by side in one run: the public SDK, Shinar, and the barest use of redis-py we can write.

    python bench/broker_redis.py [--messages 20000] [--batch 500] [--url redis://127.0.0.1:6379/0]

Consuming includes judging each body and calling a handler, for the SDK and for us. The bare client
runs nothing but Redis: `bare` takes and settles a batch with the smallest scripts of the same
layout that lose nothing when the worker dies, `bare, lossy` is LPOP, which loses what it holds.
"""

from __future__ import annotations

import argparse

import redis
from babelqueue import BabelQueue
from babelqueue.redis_transport import RedisTransport

import _brokers
from _brokers import rate
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode

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
#: What the Laravel layout asks of any client, in the fewest steps: the reserved copy counts one more.
TAKE_LARAVEL = """
local found = redis.call('LPOP', KEYS[1], ARGV[1]) or {}
for i, raw in ipairs(found) do
    local document = cjson.decode(raw)
    document.attempts = document.attempts + 1
    found[i] = cjson.encode(document)
    redis.call('ZADD', KEYS[2], ARGV[2], found[i])
end
if #found > 0 then
    redis.call('LPOP', KEYS[3], #found)
end
return found
"""


def sdk(url: str, laravel: bool, count: int) -> _brokers.Rates:
    transport = RedisTransport(url, laravel_compat=laravel)
    return _brokers.sdk_whole(BabelQueue(transport=transport, queue="bench-sdk"), count)


def ours(url: str, laravel: bool, count: int, batch: int) -> _brokers.Rates:
    broker = connect(f"{url}/bench-ours" + ("?layout=laravel" if laravel else ""))
    return _brokers.ours_whole(broker, "bench-ours", count, send=batch, take=batch)


def ours_moving_bytes(url: str, laravel: bool, bodies: list[bytes], batch: int) -> _brokers.Rates:
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


def bare(url: str, laravel: bool, bodies: list[bytes], batch: int) -> tuple[float, float, float]:
    client = redis.Redis.from_url(url, protocol=2)
    take, settle = client.register_script(TAKE), client.register_script(SETTLE)
    take_laravel = client.register_script(TAKE_LARAVEL)

    def publish() -> None:
        for start in range(0, len(bodies), batch):
            chunk = bodies[start : start + batch]
            if laravel:
                with client.pipeline() as pipe:
                    pipe.rpush("bare", *chunk).rpush("bare:notify", *([b"1"] * len(chunk))).execute()
            else:
                client.rpush("bare", *chunk)

    def consume() -> None:
        while laravel and (found := take_laravel(["bare", "bare:reserved", "bare:notify"], [batch, 1])):
            client.zrem("bare:reserved", *found)
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
        url = _brokers.acquire("redis").url
    count, batch = options.messages // options.batch * options.batch, options.batch
    bodies = [encode(build(_brokers.URN, _brokers.DATA)) for _ in range(count)]
    redis.Redis.from_url(url).flushdb()
    _brokers.headline("Redis", count, len(bodies[0]), batch)
    _brokers.columns()
    for laravel in (False, True):
        name = "laravel" if laravel else "processing"
        rounds = [
            (
                bare(url, laravel, bodies, batch),
                sdk(url, laravel, max(2000, count // 10)),
                ours(url, laravel, count, batch),
                ours_moving_bytes(url, laravel, bodies, batch),
            )
            for _ in range(options.rounds)
        ]
        plain, theirs, mine, moved = (_brokers.best([row[i] for row in rounds]) for i in range(4))
        _brokers.line("bare redis-py", plain, f"   (lossy LPOP {plain[2]:,.0f})")
        _brokers.line(f"SDK, {name}", theirs)
        _brokers.line(f"Shinar, {name}", mine)
        _brokers.line(f"Shinar, {name}, bytes only", moved)
        _brokers.times("the SDK", mine, theirs)
        _brokers.share("the bare client", moved, plain)


if __name__ == "__main__":
    main()
