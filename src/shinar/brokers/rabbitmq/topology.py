"""Declaring queues, and the queues in which delayed messages wait. Knows pika's channels; no message.

A delay queue lets its messages expire into the queue they are for. A quorum queue keeps one that the target
refuses (full, with x-overflow=reject-publish) or that has no target, and tries again every three
minutes; a classic one would drop it without a word.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any, Final, Literal

from pika.exceptions import ChannelClosedByBroker

from shinar.brokers.rabbitmq.connection import Link

QueueType = Literal["classic", "quorum"]

#: How long a delay queue outlives the last message that can be in it, in milliseconds. One that hands
#: over at most once is empty then; one that keeps what its target refused needs the time for that, because
#: the server deletes it with all that it holds.
DELAY_QUEUE_GRACE_MS: Final[dict[QueueType, int]] = {"classic": 60_000, "quorum": 24 * 60 * 60 * 1000}
#: What the server answers to arguments that it does not know, or that the queue was not made with.
PRECONDITION_FAILED: Final = 406


def delay_steps_ms(delay_s: float) -> int:
    """Up to two significant digits: every distinct delay needs a queue of its own, and jittered
    delays must not make thousands of them."""
    exact = max(1, math.ceil(delay_s * 1000))
    step: int = 10 ** max(0, len(str(exact)) - 2)
    return -(-exact // step) * step


def declare_delay_queue(link: Link, queue: str, delay_ms: int, kind: QueueType) -> str:
    """Its name. Each kind has its own, because a queue cannot become another kind."""
    name = f"{queue}.delay.{delay_ms}"
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-message-ttl": delay_ms,
        "x-expires": delay_ms + DELAY_QUEUE_GRACE_MS[kind],
    }
    if kind == "quorum":
        name += ".quorum"
        arguments |= {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            # Without it the server hands over at most once after all.
            "x-overflow": "reject-publish",
        }
    try:
        declare(link, name, arguments=arguments)
    except ChannelClosedByBroker as exc:
        # Servers before 3.10 know no such quorum queues.
        if kind != "quorum" or exc.reply_code != PRECONDITION_FAILED:
            raise
        return declare_delay_queue(link, queue, delay_ms, "classic")
    return name


def declare(link: Link, queue: str, *, passive: bool = False, arguments: dict[str, Any] | None = None) -> int:
    """On a channel of its own, because a refusal closes the channel. Returns the ready count."""
    failed: list[Future[int]] = []

    def closed(reason: BaseException) -> None:
        if failed and not failed[0].done():
            failed[0].set_exception(reason)

    channel = link.channel(closed)

    def ask(answer: Future[int]) -> None:
        failed.append(answer)

        def declared(frame: Any) -> None:
            answer.set_result(int(frame.method.message_count))
            channel.close()

        channel.queue_declare(queue, passive=passive, durable=True, arguments=arguments, callback=declared)

    return int(link.ask(ask))
