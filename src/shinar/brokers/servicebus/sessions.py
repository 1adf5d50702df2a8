"""The sessions a broker object holds on Service Bus (`?sessions=1`), and what of them is unsettled.

A session is locked as a whole and its messages come in order. One is held while it still brings
messages or has some out; then it is let go, and the next one with messages is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

#: Shortest wait for a session: the service answers a lesser one with a timeout only.
MIN_WAIT_S: Final = 1.0
#: How long to look into a session that is held already.
LOOK_S: Final = 0.2

Key = tuple[str, str]


class Sessions:
    def __init__(self, client: ServiceBusClient) -> None:
        """`client` is ours alone and tries once: it would repeat a fruitless wait for a session."""
        self._client = client
        self._held: dict[Key, ServiceBusReceiver] = {}
        #: Lock tokens handed out and not settled yet.
        self._out: dict[Key, set[str]] = {}

    def receive(self, queue: str, limit: int, wait_s: float) -> list[Any]:
        for key in [key for key in self._held if key[0] == queue]:
            try:
                found = self._held[key].receive_messages(limit, LOOK_S)
            except SessionLockLostError:
                # Its messages are lost to us too, as whoever settles them will be told.
                self._let_go(key)
                continue
            if found:
                return self._handed_out(key, found)
            if not self._out[key]:
                self._let_go(key)
        if wait_s <= 0 and any(out for key, out in self._out.items() if key[0] == queue):
            # To look for another session takes seconds, in which nobody settles or renews what is in hand.
            return []
        receiver = self._client.get_queue_receiver(
            queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=max(wait_s, MIN_WAIT_S)
        )
        try:
            receiver.__enter__()
        except (OperationTimeoutError, SessionCannotBeLockedError):
            # No session has anything for us.
            receiver.close()
            return []
        key = (queue, str(receiver.session.session_id))
        self._held[key], self._out[key] = receiver, set()
        return self._handed_out(
            key, receiver.receive_messages(max_message_count=limit, max_wait_time=MIN_WAIT_S)
        )

    def _handed_out(self, key: Key, messages: list[Any]) -> list[Any]:
        self._out[key].update(str(message.lock_token) for message in messages)
        return messages

    def receiver(self, queue: str, session: str) -> ServiceBusReceiver | None:
        """None when the session is not, or no more, ours."""
        return self._held.get((queue, session))

    def settled(self, queue: str, session: str, tokens: Iterable[str]) -> None:
        out = self._out.get((queue, session))
        if out is not None:
            out.difference_update(tokens)

    def _let_go(self, key: Key) -> None:
        self._out.pop(key, None)
        self._held.pop(key).close()

    @property
    def handlers(self) -> list[Any]:
        """What is to be closed, in this order."""
        return [*self._held.values(), self._client]
