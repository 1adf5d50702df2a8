"""Taking deliveries from one queue: a prefetching consumer that stops when nobody asks.

The server streams up to as many messages as were asked for, so a busy worker never waits for a
round trip. A consumer left on would also collect messages for a worker that is stuck in a
slow handler, so it is cancelled shortly after the last question and what it had collected goes
back. Knows pika's channels; no envelope and no broker contract.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

import pika
from pika.exceptions import AMQPError, ConsumerCancelled

from shinar.brokers.rabbitmq_link import Link

#: How long a consumer outlives the last question, in seconds.
IDLE_S: Final = 0.05
#: The protocol's largest prefetch.
MAX_PREFETCH: Final = 65535


class Taken(NamedTuple):
    tag: int
    body: bytes
    properties: pika.BasicProperties


class Receipt(NamedTuple):
    #: Name of the channel's life: its deliveries end with it.
    life: str
    tag: int


class Consumer:
    def __init__(self, link: Link, queue: str) -> None:
        self.life = secrets.token_hex(8)
        self._link = link
        self._queue = queue
        #: Why the channel ended; None while it lives.
        self.ended: BaseException | None = None
        #: The queue vanished under the consumer.
        self.cancelled = False
        #: Arrived and not yet handed out. Whoever pops an entry owns it, on either thread.
        self.buffer: deque[Taken] = deque()
        #: Everything unsettled, by tag, in the order it came. Touched on the I/O thread only.
        self._open: dict[int, pika.BasicProperties] = {}
        self._consumer_tag: str | None = None
        self._prefetch = 0
        #: Unsettled ones that count against the running consumer's prefetch.
        self._charged: set[int] = set()
        self._arrived = threading.Event()
        self._asking = False
        self._last_asked = 0.0
        self._got: Future[None] | None = None
        self._channel = link.channel(self._end)
        link.on_lost.append(self._end)
        link.ask(self._prepare)

    def _prepare(self, answer: Future[None]) -> None:
        self._channel.add_callback(self._on_nothing, [pika.spec.Basic.GetEmpty], one_shot=False)
        self._channel.add_on_cancel_callback(self._on_cancelled)
        answer.set_result(None)

    # -- on the caller's thread

    def take(self, limit: int, wait_s: float) -> list[Taken]:
        self._asking = True
        try:
            if not self.buffer:
                self._fill(limit, wait_s)
            return self._popped(limit)
        finally:
            self._last_asked = time.monotonic()
            self._asking = False

    def _fill(self, limit: int, wait_s: float) -> None:
        self._arrived.clear()
        self._link.ask(lambda answer: self._start(answer, limit, probe=wait_s <= 0))
        if not self.buffer and wait_s > 0:
            self._arrived.wait(wait_s)
        if self.ended is not None:
            raise self.ended
        if self.cancelled:
            raise ConsumerCancelled

    def settle(self, tags: Iterable[int], *, requeue: bool = False) -> set[int]:
        """Ack, or hand back; returns those that were still open."""
        wanted = set(tags)
        return self._link.ask(lambda answer: answer.set_result(self._settle(wanted, requeue)))

    def still_open(self, tags: Iterable[int]) -> dict[int, pika.BasicProperties]:
        wanted = set(tags)
        return self._link.ask(
            lambda answer: answer.set_result({t: p for t, p in self._open.items() if t in wanted})
        )

    # -- on either thread

    def _popped(self, limit: int) -> list[Taken]:
        found: list[Taken] = []
        while len(found) < limit:
            try:
                found.append(self.buffer.popleft())
            except IndexError:
                break
        return found

    # -- on the I/O thread

    def _start(self, answer: Future[None], limit: int, *, probe: bool) -> None:
        """Have the consumer running with credit left. A fresh one, or a probe, is answered when the
        server has sent what it has: its answer to a get comes after the deliveries before it."""
        running = self._consumer_tag is not None and len(self._charged) < self._prefetch
        if running and not probe:
            answer.set_result(None)
            return
        self._got = answer
        if running:
            self._get()
            return
        if self._consumer_tag is not None:
            self._channel.basic_cancel(self._consumer_tag, _ignore)
        self._charged.clear()
        self._prefetch = min(limit, MAX_PREFETCH)
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._consumer_tag = self._channel.basic_consume(
            self._queue, self._on_message, callback=lambda _frame: self._get()
        )
        self._link.later(IDLE_S, self._stop_if_idle)

    def _get(self) -> None:
        if len(self._charged) >= self._prefetch:
            self._answer()
        else:
            self._channel.basic_get(self._queue, self._on_message)

    def _on_nothing(self, _frame: object) -> None:
        self._answer()

    def _on_message(
        self, _channel: object, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        tag = method.delivery_tag
        self._open[tag] = properties
        self.buffer.append(Taken(tag, body, properties))
        if isinstance(method, pika.spec.Basic.Deliver):
            self._charged.add(tag)
            if self._asking:
                self._arrived.set()
        else:
            self._answer()

    def _answer(self) -> None:
        got, self._got = self._got, None
        if got is not None and not got.done():
            got.set_result(None)

    def _settle(self, wanted: set[int], requeue: bool) -> set[int]:
        done = {tag for tag in wanted if tag in self._open}
        # Everything up to here goes in one frame; a gap would settle what is still being handled.
        together = 0
        for tag in self._open:
            if tag not in done:
                break
            together = tag
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
        if self.ended is not None or self._consumer_tag is None:
            return
        if self._asking or time.monotonic() - self._last_asked < IDLE_S:
            self._link.later(IDLE_S, self._stop_if_idle)
            return
        self._channel.basic_cancel(self._consumer_tag, _ignore)
        self._consumer_tag = None
        self._settle({taken.tag for taken in self._popped(len(self.buffer))}, requeue=True)

    def _on_cancelled(self, _frame: object) -> None:
        self._consumer_tag = None
        self.cancelled = True
        self._arrived.set()

    def _end(self, reason: BaseException) -> None:
        self.ended = reason if isinstance(reason, AMQPError) else AMQPError(str(reason))
        self.buffer.clear()
        self._open.clear()
        got, self._got = self._got, None
        if got is not None and not got.done():
            got.set_exception(self.ended)
        self._arrived.set()


def _ignore(_frame: object) -> None:
    """pika forgets a cancelled consumer only if somebody wants to hear of it."""
