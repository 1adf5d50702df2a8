"""Sleeping until a Redis queue gets a message, ready or soon due, without taking it.

A blocking pop would take the message out of the list before any script can write its deadline;
a worker killed between the two would strand it, and the contract forbids sweeping entries that
have no deadline. So we let the server tell us instead: client-side caching (CLIENT TRACKING)
sends one message when a key that this connection has read is written by anybody. Foreign
producers need to do nothing for it, and there is no moment in which a crash loses anything.
Where the server or its ACL refuses tracking, and on a cluster, the queue is looked at in
growing steps.
"""

from __future__ import annotations

from typing import Any, Final

import redis

from shinar.brokers.redis.keys import Keys
from shinar.clock import Clock

#: First and longest pause of the fallback, in seconds.
POLL_FIRST_S: Final = 0.01
POLL_LONGEST_S: Final = 0.25

#: A command that reads one key, and its arguments.
Command = tuple[str, ...]


class QueueWatch:
    """One extra connection, opened when a reserve first finds nothing."""

    def __init__(self, client: redis.Redis, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._connection: Any = None
        # A cluster client has no connection of its own; there we look.
        self._tracking = isinstance(client, redis.Redis)

    def wait(self, keys: Keys, seconds: float, until_s: float) -> None:
        """Return when something is ready, when something became delayed that is due before the epoch
        second `until_s`, or after `seconds`."""
        due = ("ZCOUNT", keys.delayed, "-inf", f"({until_s!r}")
        if self._tracking:
            try:
                self._wait_for_push(("LLEN", keys.ready), due, seconds)
                return
            except redis.ResponseError:
                self._tracking = False
            except redis.RedisError:
                self.close()
                raise
        self._poll(keys.ready, due, seconds)

    def _wait_for_push(self, ready: Command, due: Command, seconds: float) -> None:
        connection = self._connection or self._connect()
        end = self._clock.monotonic_s() + seconds
        while True:
            # Reading arms the watch; what came before is seen here.
            connection.send_packed_command(connection.pack_commands([ready, due]))
            found = [connection.read_response() for _ in (ready, due)]
            left = end - self._clock.monotonic_s()
            if any(found) or left <= 0 or not connection.can_read(timeout=left):
                return
            connection.read_response(push_request=True)

    def _connect(self) -> Any:
        pool = self._client.connection_pool
        connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 3})
        self._connection = connection
        connection.connect()
        connection.send_command("CLIENT", "TRACKING", "ON")
        connection.read_response()
        return connection

    def _poll(self, key: str, due: Command, seconds: float) -> None:
        end = self._clock.monotonic_s() + seconds
        pause = POLL_FIRST_S
        while not self._client.llen(key) and not self._client.zcount(*due[1:]):
            left = end - self._clock.monotonic_s()
            if left <= 0:
                return
            self._clock.sleep(min(pause, left))
            pause = min(pause * 2, POLL_LONGEST_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
