"""One broker object, many threads: concurrent publishes are gathered into one batch, and each caller gets its
own outcome. Knows the broker contract; nothing of envelopes.

Whoever comes first publishes for all that wait meanwhile. Nobody waits for company, so a single thread is as
fast as without this, and many threads pay one round trip together instead of one after another.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from shinar.brokers.contract import Broker, Outgoing
from shinar.errors import Closed, PublishFailed, ShinarError
from shinar.settlement import refuses_message

#: Messages of different callers that are published at once, at most. A caller with more has a batch alone.
MAX_GATHERED: Final = 1000


class _Call:
    """What one thread wants published, and what became of it."""

    __slots__ = ("done", "error", "messages", "queue")

    def __init__(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self.queue, self.messages = queue, messages
        self.done = False
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done = True


class Gathering:
    """`publish` and `close` from any thread. After a fork, the child opens a broker of its own."""

    def __init__(self, connect: Callable[[], Broker], what: str) -> None:
        self._connect, self._what = connect, what
        self._abandoned: list[Broker] = []
        self._open()

    def _open(self) -> None:
        self.broker = self._connect()
        self._pid = os.getpid()
        #: Held by the one thread that talks to the broker.
        self._talking = threading.Lock()
        #: At most one call per thread: appends and pops need no lock of their own.
        self._waiting: deque[_Call] = deque()
        self._closed = False

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """As Broker.publish."""
        if self._pid != os.getpid():
            # The connection is the parent's: kept, so that nothing hangs up on it, and never used here.
            self._abandoned.append(self.broker)
            self._open()
        call = _Call(queue, messages)
        self._waiting.append(call)
        with self._talking:
            while not call.done:
                self._publish_next()
        if call.error is not None:
            raise call.error

    def close(self) -> None:
        """Waits for what is being published; everything later is refused."""
        if self._pid != os.getpid():
            self._closed = True
            return
        with self._talking:
            if not self._closed:
                self._closed = True
                self.broker.close()

    def _publish_next(self) -> None:
        """The oldest call that waits, and with it those for the same queue right behind it."""
        calls = [self._waiting.popleft()]
        count = len(calls[0].messages)
        while self._waiting and self._waiting[0].queue == calls[0].queue:
            count += len(self._waiting[0].messages)
            if count > MAX_GATHERED:
                break
            calls.append(self._waiting.popleft())
        if self._closed:
            for call in calls:
                call.end(Closed(self._what))
            return
        try:
            self._publish(calls)
        except BaseException as exc:  # a signal in this thread: the others must not wait without an end
            for call in calls:
                if not call.done:
                    call.end(exc if call is calls[0] else _interrupted(call))
            raise

    def _publish(self, calls: list[_Call]) -> None:
        messages = calls[0].messages if len(calls) == 1 else [m for call in calls for m in call.messages]
        try:
            self.broker.publish(calls[0].queue, messages)
        except PublishFailed as exc:
            _divide(calls, exc)
        except ShinarError as exc:
            if len(calls) > 1 and refuses_message(exc):
                # One message is refused, and only its caller is to blame. What was sent before it was found
                # is sent again under the same id.
                for call in calls:
                    self._publish([call])
                return
            for call in calls:
                call.end(exc)
        else:
            for call in calls:
                call.end()


def _divide(calls: list[_Call], exc: PublishFailed) -> None:
    """To each caller what was not confirmed of its own messages, counted from its own first."""
    if len(calls) == 1:
        calls[0].end(exc)
        return
    missing = set(exc.unconfirmed)
    start = 0
    for call in calls:
        size = len(call.messages)
        own = tuple(at for at in range(size) if start + at in missing)
        start += size
        if own:
            text = f"another thread's batch: {exc}"
            failed = PublishFailed(text, total=size, unconfirmed=own, broker=exc.broker, queue=exc.queue)
            failed.__cause__ = exc.__cause__
            call.end(failed)
        else:
            call.end()


def _interrupted(call: _Call) -> PublishFailed:
    every = tuple(range(len(call.messages)))
    return PublishFailed(
        "the thread that published for this one was interrupted", total=len(every), unconfirmed=every
    )
