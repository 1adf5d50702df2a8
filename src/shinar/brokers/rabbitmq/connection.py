"""AMQP connections on a thread of their own: heartbeats are answered while handlers work, and
confirms and deliveries stream in while the caller is busy. Knows pika; no queue and no message.

The caller's thread asks (`Link.ask`), the I/O thread acts and answers through a future. pika
objects are only ever touched on the I/O thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPConnectionError

from shinar.brokers.rabbitmq.frames import Content, FrameStream, Tap

#: Largest single write to the socket.
WRITE_BYTES: Final = 256 * 1024

# What went wrong is raised, once; pika would log every failed attempt in seven lines of its own.
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)

_T = TypeVar("_T")


class Silence(AMQPConnectionError):  # type: ignore[misc]  # pika has no types
    """The server did not answer in time."""


class _Connection(pika.SelectConnection):  # type: ignore[misc]  # pika has no types
    """Two short cuts at the edge to the socket, where pika lets adapters in. What one turn of the
    loop produced is sent in few large writes instead of three system calls a message; deliveries
    to tapped channels are read without pika's objects."""

    def __init__(self, loop: IOLoop, *args: Any, **kwargs: Any) -> None:
        self._loop = loop
        self._outbox: list[bytes] = []
        self.stream = FrameStream(self._pass_on)
        super().__init__(*args, custom_ioloop=loop, **kwargs)

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._outbox:
            self._loop.add_callback_threadsafe(self._flush)
        self._outbox.append(data)

    def _on_data_available(self, data_in: bytes) -> None:
        # What pika does not see must still count as a sign of life for its heartbeat.
        self.bytes_received += 1
        self.stream.feed(data_in)

    def _pass_on(self, data: bytes) -> None:
        super()._on_data_available(data)

    def abort(self, reason: Exception) -> None:
        """Hang up without a word: what was not confirmed is not sent after all."""
        self._outbox.clear()
        self._terminate_stream(reason)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if self.is_closed or self._transport is None:
            return
        for start in range(0, len(data), WRITE_BYTES):
            super()._adapter_emit_data(data[start : start + WRITE_BYTES])


class IoThread:
    def __init__(self) -> None:
        self.loop = IOLoop()
        #: Told, on the I/O thread, of an error nobody caught there.
        self.on_error: list[Callable[[Exception], None]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="shinar-rabbitmq", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self.loop.start()
            # Outermost loop of the thread. Whoever waits must hear of it, or would wait in vain, and the
            # connections must close, or what they hold would stay held: so the loop goes on.
            except Exception as exc:
                for tell in list(self.on_error):
                    tell(AMQPConnectionError(exc))
        self.loop.close()

    def submit(self, action: Callable[[], None]) -> None:
        self.loop.add_callback_threadsafe(action)

    def stop(self) -> None:
        # A turn later, so that a connection given up just now can close its socket.
        self.submit(lambda: self.submit(self._stop))
        self._thread.join(timeout=5.0)

    def _stop(self) -> None:
        self._stopped = True
        self.loop.stop()


class Link:
    """One connection. Once lost it stays lost: whoever needs one opens a new one."""

    def __init__(self, io: IoThread, parameters: pika.ConnectionParameters, timeout_s: float) -> None:
        self._io = io
        self._timeout_s = timeout_s
        self._pending: set[Future[Any]] = set()
        #: Why the connection ended; None while it lives.
        self.lost: BaseException | None = None
        #: Told, on the I/O thread, that the connection ended.
        self.on_lost: list[Callable[[BaseException], None]] = []
        self._connection: Any = None
        io.on_error.append(self._give_up)
        self.ask(lambda opened: self._open(parameters, opened))

    def ask(self, action: Callable[[Future[_T]], None], timeout_s: float | None = None) -> _T:
        """Run `action` on the I/O thread and wait until it, or a callback of it, sets the result."""
        answer: Future[_T] = Future()

        def run() -> None:
            if self.lost is not None:
                answer.set_exception(self.lost)
                return
            self._pending.add(answer)
            answer.add_done_callback(self._pending.discard)
            try:
                action(answer)
            # Whatever the action raises belongs to the caller, whose thread waits for it.
            except Exception as exc:
                if not answer.done():
                    answer.set_exception(exc)

        self._io.submit(run)
        try:
            return answer.result(self._timeout_s if timeout_s is None else timeout_s)
        except FutureTimeout:
            silence = Silence("no answer in time")
            self._io.submit(lambda: self._give_up(silence))
            raise silence from None

    def tap(self, channel: int, deliver: Callable[[Content], None]) -> None:
        """On the I/O thread only: give the deliveries of this channel to `deliver`."""
        self._connection.stream.taps[channel] = Tap(deliver)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """On the I/O thread only."""
        self._io.loop.call_later(delay_s, action)

    def channel(self, on_closed: Callable[[BaseException], None] | None = None) -> Any:
        """A new channel; what fails on it fails the question that is open."""

        def open_(answer: Future[Any]) -> None:
            def closed(channel: Any, reason: BaseException) -> None:
                self._connection.stream.taps.pop(channel.channel_number, None)
                if on_closed is not None:
                    on_closed(reason)

            def opened(channel: Any) -> None:
                channel.add_on_close_callback(closed)
                answer.set_result(channel)

            self._connection.channel(on_open_callback=opened)

        return self.ask(open_)

    def close(self) -> None:
        def close(answer: Future[None]) -> None:
            self.on_lost.append(lambda _reason: None if answer.done() else answer.set_result(None))
            self._connection.close()

        if self.lost is None:
            try:
                self.ask(close, timeout_s=5.0)
            except AMQPConnectionError:
                return

    def _open(self, parameters: pika.ConnectionParameters, opened: Future[None]) -> None:
        def on_open(_connection: object) -> None:
            opened.set_result(None)

        def on_error(_connection: object, reason: BaseException) -> None:
            # What fails below AMQP, TLS for one, comes as it is.
            self._end(reason if isinstance(reason, AMQPConnectionError) else AMQPConnectionError(reason))

        self._connection = _Connection(
            self._io.loop,
            parameters,
            on_open_callback=on_open,
            on_open_error_callback=on_error,
            on_close_callback=on_error,
        )

    def _give_up(self, reason: Exception) -> None:
        if self.lost is None:
            self._end(reason)
            if self._connection is not None and not self._connection.is_closed:
                self._connection.abort(reason)

    def _end(self, reason: BaseException) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        self._io.on_error.remove(self._give_up)
        for tell in self.on_lost:
            tell(reason)
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(reason)
