"""Taking deliveries from one queue: a prefetching consumer that stops when nobody asks.

The server streams up to as many messages as were asked for, so a busy worker never waits for a
round trip. A consumer left on would also collect messages for a worker that is stuck in a
slow handler, so it is cancelled shortly after the last question and what it had collected goes
back. Knows pika's channels; no envelope and no broker contract.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from pika.exceptions import AMQPError, ConsumerCancelled

from shinar.brokers.rabbitmq.connection import Link
from shinar.brokers.rabbitmq.frames import Content
from shinar.clock import SYSTEM

#: How long a consumer outlives the last question, in seconds.
IDLE_S: Final = 0.1
#: Quorum queues deliver on their own time: what a reserve that should not wait allows them, in seconds.
GRACE_S: Final = 0.01
#: The same while the server says that there are messages: they are on their way to somebody.
READY_GRACE_S: Final = 0.5
#: Questions in quick succession after which a second batch is fetched ahead.
READ_AHEAD_AFTER: Final = 3
#: The protocol's largest prefetch.
MAX_PREFETCH: Final = 65535


class RabbitReceipt(NamedTuple):
    #: Name of the channel's life: its deliveries end with it.
    life: str
    tag: int


class QueueConsumer:
    def __init__(self, link: Link, queue: str) -> None:
        self.life = secrets.token_hex(8)
        self._link = link
        self._queue = queue
        #: Why the channel ended; None while it lives.
        self.ended: BaseException | None = None
        #: The queue vanished under the consumer.
        self.cancelled = False
        #: Arrived and not yet handed out. Filled on the I/O thread, emptied by the caller while it asks.
        self.buffer: deque[Content] = deque()
        #: Everything unsettled, by tag, in the order it came. Touched on the I/O thread only.
        self._open: dict[int, bytes] = {}
        self._consumer_tag: str | None = None
        #: The running consumer and those it replaced without a pause: refusing what is still on its
        #: way from them would change the order.
        self._welcome: set[str] = set()
        self._prefetch = 0
        #: Unsettled ones that count against the running consumer's prefetch.
        self._charged: set[int] = set()
        self._arrived = threading.Event()
        #: Decides between a caller that asks and a consumer that stops or ends.
        self._lock = threading.Lock()
        self._watched = False
        #: Messages the server had when it was last asked.
        self._ready = 0
        self._asking = False
        self._last_asked = 0.0
        #: Questions in quick succession: a worker that keeps up is worth reading ahead for.
        self._streak = 0
        self._got: Future[None] | None = None
        self._channel = link.channel(self._end)
        link.on_lost.append(self._end)
        link.ask(self._prepare)

    def _prepare(self, answer: Future[None]) -> None:
        self._channel.add_on_cancel_callback(self._on_cancelled)
        self._link.tap(self._channel.channel_number, self._on_delivery)
        answer.set_result(None)

    # -- on the caller's thread

    def take(self, limit: int, wait_s: float) -> list[Content]:
        with self._lock:
            self._asking = True
            self._streak = self._streak + 1 if SYSTEM.monotonic_s() - self._last_asked < IDLE_S else 0
        try:
            if not self.buffer:
                self._fill(limit, wait_s)
            with self._lock:
                return [self.buffer.popleft() for _ in range(min(limit, len(self.buffer)))]
        finally:
            self._last_asked = SYSTEM.monotonic_s()
            self._asking = False

    def _fill(self, limit: int, wait_s: float) -> None:
        self._arrived.clear()
        self._link.ask(lambda answer: self._start(answer, limit, probe=wait_s <= 0))
        if not self.buffer:
            grace_s = READY_GRACE_S if self._ready else GRACE_S
            self._arrived.wait(wait_s if wait_s > 0 else grace_s)
        if self.ended is not None:
            raise self.ended
        if self.cancelled:
            raise ConsumerCancelled

    def settle(self, tags: Iterable[int], *, requeue: bool = False) -> set[int]:
        """Ack, or hand back; returns those that were still open."""
        wanted = set(tags)
        return self._link.ask(lambda answer: answer.set_result(self._settle(wanted, requeue)))

    def still_open(self, tags: Iterable[int]) -> dict[int, bytes]:
        """Their properties as they were on the wire."""
        wanted = set(tags)
        return self._link.ask(
            lambda answer: answer.set_result({t: p for t, p in self._open.items() if t in wanted})
        )

    # -- on the I/O thread

    def _start(self, answer: Future[None], limit: int, *, probe: bool) -> None:
        """Have the consumer running with credit left. A fresh one, or a probe, is answered when what
        the server has is here."""
        # Whoever asks for one wants no other in hand: what is read ahead is lost with a process that ends.
        reads_ahead = limit > 1 and self._streak >= READ_AHEAD_AFTER
        ahead = min(limit * 2 if reads_ahead else limit, MAX_PREFETCH)
        running = self._consumer_tag is not None and self._prefetch >= max(ahead, len(self._charged) + 1)
        if running and not probe:
            answer.set_result(None)
            return
        self._got = answer
        if running:
            self._ask_queue()
            return
        if self._consumer_tag is not None:
            self._channel.basic_cancel(self._consumer_tag, _ignore)
        self._charged.clear()
        self._prefetch = ahead
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._consumer_tag = self._channel.basic_consume(
            self._queue, _unused, callback=lambda _frame: self._ask_queue()
        )
        self._welcome.add(self._consumer_tag)
        if not self._watched:
            self._watched = True
            self._link.later(IDLE_S, self._stop_if_idle)

    def _ask_queue(self) -> None:
        """Two questions in a row are a barrier: the first is answered by the queue, after it passed what
        it had to our channel; the second by the channel, after it sent that to us."""

        def asked(frame: Any) -> None:
            self._ready = frame.method.message_count
            self._channel.basic_qos(prefetch_count=self._prefetch, callback=lambda _frame: self._answer())

        self._channel.queue_declare(self._queue, passive=True, callback=asked)

    def _on_delivery(self, content: Content) -> None:
        consumer = content.consumer.decode()
        if consumer not in self._welcome:
            # Sent before the server heard that we stopped: back to its place, like those before it.
            if self._channel.is_open:
                self._channel.basic_reject(content.tag, requeue=True)
            return
        if consumer == self._consumer_tag:
            self._charged.add(content.tag)
        self._open[content.tag] = content.properties
        self.buffer.append(content)
        if self._asking:
            self._arrived.set()

    def _answer(self) -> None:
        got, self._got = self._got, None
        if got is not None and not got.done():
            got.set_result(None)

    def _settle(self, wanted: set[int], requeue: bool) -> set[int]:
        done = {tag for tag in wanted if tag in self._open}
        # Everything below the first one that stays goes in one frame; a gap would settle what is
        # still being handled.
        stays = min((tag for tag in self._open if tag not in done), default=math.inf)
        together = max((tag for tag in done if tag < stays), default=0)
        if together and not requeue:
            self._channel.basic_ack(together, multiple=True)
        for tag in sorted(done):
            if requeue:
                self._channel.basic_nack(tag, requeue=True)
            elif tag > together:
                self._channel.basic_ack(tag)
        for tag in done:
            del self._open[tag]
        self._charged -= done
        return done

    def _stop_if_idle(self) -> None:
        if self.ended is not None or self._consumer_tag is None or not self._channel.is_open:
            self._watched = False
            return
        with self._lock:
            if self._asking or SYSTEM.monotonic_s() - self._last_asked < IDLE_S:
                self._link.later(IDLE_S, self._stop_if_idle)
                return
            back = {content.tag for content in self.buffer}
            self.buffer.clear()
        self._watched = False
        self._channel.basic_cancel(self._consumer_tag, _ignore)
        self._consumer_tag = None
        self._welcome.clear()
        self._settle(back, requeue=True)

    def _on_cancelled(self, _frame: object) -> None:
        self._consumer_tag = None
        self.cancelled = True
        self._arrived.set()

    def _end(self, reason: BaseException) -> None:
        self.ended = reason if isinstance(reason, AMQPError) else AMQPError(str(reason))
        with self._lock:
            self.buffer.clear()
        self._open.clear()
        got, self._got = self._got, None
        if got is not None and not got.done():
            got.set_exception(self.ended)
        self._arrived.set()


def _unused(*_delivery: object) -> None:
    """pika wants a receiver; the tap is one, and pika never sees a delivery."""


def _ignore(_frame: object) -> None:
    """pika forgets a cancelled consumer only if somebody wants to hear of it."""
