"""Dead letters that a real broker refuses for their size: only they stay, and the others are settled."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable

from servers import Server, with_queue
from shinar import Limits, Policy, Worker
from shinar.brokers import Outgoing, connect
from shinar.envelope import Message, build, encode

URN = "urn:babel:orders:created"
LIMIT = 4000


def test_one_that_is_too_large_leaves_its_neighbours_alone(live_server: Callable[..., Server]) -> None:
    queue = f"w-{uuid.uuid4().hex[:10]}"
    url = with_queue(live_server("elasticmq").url, queue)
    url += ("&" if "?" in url else "?") + f"lease_s=2&max_body={LIMIT}"
    broker = connect(url)

    def body(number: int, room: int) -> bytes:
        """So many bytes short of the limit; the attributes of SQS and the dead_letter block need some."""
        short = len(encode(build(URN, {"n": number, "x": ""})))
        return encode(build(URN, {"n": number, "x": "x" * (LIMIT - room - short)}))

    # 0 can never be a dead letter, 1 fits with a shorter error, the rest has all the room it wants.
    broker.publish(queue, [Outgoing(body(n, room)) for n, room in enumerate([300, 600, *[3000] * 4])])
    calls: Counter[int] = Counter()

    def fail(message: Message) -> None:
        calls[message.data["n"]] += 1
        raise ValueError("e" * 1000)

    report = Worker(url, {URN: fail}, policy=Policy(max_attempts=1), limits=Limits(max_time_s=5)).run()
    assert sum(report.counts.values()) == report.received
    assert set(report.counts) == {"dead_letter", "unsettled"}
    assert report.count("dead_letter") == 5
    # Delivered again and again; its handler is spared once the broker has counted two without an outcome.
    assert report.count("unsettled") >= calls[0]
    assert 1 <= calls[0] <= 2
    assert [calls[n] for n in range(1, 6)] == [1] * 5
    dead = {
        d["data"]["n"]: d["dead_letter"]
        for d in (json.loads(f.body) for f in broker.reserve(f"{queue}-dlq", 10, 2))
    }
    assert sorted(dead) == [1, 2, 3, 4, 5]
    assert (dead[1]["error"], dead[1]["reason"], dead[2]["error"]) == ("e" * 200, "failed", "e" * 1000)
