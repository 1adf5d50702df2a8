"""Every setting of the broker in one frozen value, with the reason for its default. Reads no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from shinar.errors import ConfigError
from shinar.phpmq.protocol.wire import Limits

#: Beside a body, a payload holds a queue name, headers and the frame of a request.
PAYLOAD_MARGIN: Final = 512 * 1024
#: What a dispatch looks like to a client that has not shown its form by a send.
DispatchForm = Literal["legacy", "ttl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    limits: Limits = field(default_factory=Limits)
    #: Lease of a reserve that asks for none.
    lease_s: float = 60.0
    #: Longest lease anyone may ask for, so that a lost client cannot hide a message for a year.
    max_lease_s: float = 12 * 3600.0
    #: A plain PHPMQ consumer that has neither settled nor gone away by then is taken for hung.
    plain_lease_s: float = 1800.0
    #: Bodies kept ready in memory, over all queues; the rest waits on disk.
    memory_bytes: int = 64 * 1024 * 1024
    #: Unfinished frames of all clients together; one client may have a quarter of it, or one whole frame.
    inbound_bytes: int = 256 * 1024 * 1024
    #: Replies that one client has not read, over all its connections. Above it no more requests are served.
    unsent_bytes: int = 64 * 1024 * 1024
    max_connections: int = 1000
    #: Queues; the dead-letter queue that the broker adds to a queue does not count.
    max_queues: int = 10_000
    #: Messages one client may have reserved, over all its connections and detached leases.
    max_held: int = 200_000
    #: Messages all clients together may have reserved; each costs about 150 bytes of memory.
    max_inflight: int = 500_000
    #: Reserves of one connection that may wait for messages at a time.
    max_waiting: int = 1_000
    #: Messages one reserve may take.
    max_reserve: int = 10_000
    #: A client that connects and stays silent is cut off after this; afterwards it may idle for as long as
    #: no new connection needs its slot.
    first_frame_s: float = 60.0
    #: A frame must be complete this long after its first byte, plus a second for each `slowest_bytes_s`.
    frame_s: float = 15.0
    slowest_bytes_s: int = 65_536
    #: A client that does not read what it asked for is cut off after this.
    unread_s: float = 60.0
    #: Publishes are refused (`full`) while the disk has less than this left; acks still work.
    min_free_bytes: int = 256 * 1024 * 1024
    #: Acknowledged messages are kept this long when the archive is on; None keeps them for good.
    archive_keep_s: float | None = None
    #: How long a graceful stop waits for clients to take their last replies.
    stop_s: float = 5.0

    def __post_init__(self) -> None:
        if self.limits.max_payload_bytes < self.limits.max_body_bytes + PAYLOAD_MARGIN:
            raise ConfigError(
                f"a payload must have room for the longest body and {PAYLOAD_MARGIN} bytes more",
                setting="limits",
            )


class RequestRefused(Exception):  # an answer, not a fault: it becomes an ERROR message
    """A request that is answered with an error while its connection goes on."""

    def __init__(self, code: str, text: str, detail: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.detail = detail
