"""Confirmed publishing with many messages in flight. Knows pika's publisher confirms; no envelope.

A publish returns when the broker has taken responsibility for every message. Waiting for each
before sending the next costs a round trip apiece; here a window of them is on its way at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

import pika
from pika.exceptions import AMQPError

from shinar.brokers.rabbitmq.connection import Link

#: Unconfirmed messages on their way at once: enough to hide the round trip, little to lose.
WINDOW: Final = 1000
#: A confirm rate below this is taken for a server that does not answer.
SLOWEST_PER_S: Final = 100.0

#: A body and the properties it travels with.
Piece = tuple[bytes, pika.BasicProperties]


class Incomplete(Exception):
    """The broker did not take everything. Indices are into the pieces given."""

    def __init__(self, job: _Job, cause: BaseException | None) -> None:
        super().__init__("not everything was confirmed")
        #: Sent back: no queue of that name.
        self.returned = tuple(sorted(job.returned))
        #: Refused by the queue (its length limit).
        self.refused = tuple(sorted(job.refused))
        #: Neither confirmed nor refused when the connection or channel broke (`cause`).
        self.unknown = tuple(sorted(set(job.in_flight.values()) | set(range(job.next, len(job.pieces)))))
        self.cause = cause


@dataclass(slots=True)
class _Job:
    queue: str
    pieces: Sequence[Piece]
    done: Future[None]
    next: int = 0
    #: The broker's number for a message -> its index, oldest first.
    in_flight: dict[int, int] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


class Publisher:
    """One confirming channel of a link."""

    def __init__(self, link: Link, patience_s: float) -> None:
        self._link = link
        self._patience_s = patience_s
        self._sent = 0
        self._job: _Job | None = None
        self._channel = link.channel(self._on_closed)
        link.on_lost.append(self._on_closed)
        link.ask(self._confirm)

    @property
    def usable(self) -> bool:
        return self._link.lost is None and self._channel is not None

    def _confirm(self, answer: Future[None]) -> None:
        self._channel.add_on_return_callback(self._on_return)
        self._channel.confirm_delivery(self._on_confirm, callback=lambda _frame: answer.set_result(None))

    def publish(self, queue: str, pieces: Sequence[Piece]) -> None:
        def start(answer: Future[None]) -> None:
            self._job = _Job(queue, pieces, answer)
            self._pump()

        try:
            self._link.ask(start, self._patience_s + len(pieces) / SLOWEST_PER_S)
        except AMQPError as exc:
            job, self._job = self._job, None
            if job is None:
                raise
            failed = Incomplete(job, exc)
            if failed.returned or failed.refused or failed.unknown:
                raise failed from exc

    def _pump(self) -> None:
        job = self._job
        assert job is not None
        room = WINDOW - len(job.in_flight)
        for index in range(job.next, min(job.next + room, len(job.pieces))):
            body, properties = job.pieces[index]
            self._channel.basic_publish("", job.queue, body, properties, mandatory=True)
            self._sent += 1
            job.in_flight[self._sent] = index
            job.next = index + 1
        if not job.in_flight and not job.done.done():
            self._job = None
            if job.returned or job.refused:
                job.done.set_exception(Incomplete(job, None))
            else:
                job.done.set_result(None)

    def _on_confirm(self, frame: Any) -> None:
        job = self._job
        if job is None:
            return
        method = frame.method
        if method.multiple:
            numbers = [number for number in job.in_flight if number <= method.delivery_tag]
        else:
            numbers = [method.delivery_tag]
        taken = isinstance(method, pika.spec.Basic.Ack)
        for number in numbers:
            index = job.in_flight.pop(number, None)
            if index is not None and not taken:
                job.refused.add(index)
        if len(job.in_flight) <= WINDOW // 2 and self._channel is not None and self._channel.is_open:
            self._pump()

    def _on_return(self, _channel: object, _method: object, _properties: object, body: bytes) -> None:
        """Comes before the confirm of the same message. Equal bodies are interchangeable here."""
        job = self._job
        if job is None:
            return
        for index in job.in_flight.values():
            if index not in job.returned and job.pieces[index][0] == body:
                job.returned.add(index)
                return

    def _on_closed(self, reason: BaseException) -> None:
        self._channel = None
        if self._job is not None and not self._job.done.done():
            self._job.done.set_exception(reason)
