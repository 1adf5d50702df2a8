"""One client: bytes in, requests to the engine, frames out after the commit.

Whoever breaks the protocol, is too slow or does not read is cut off with a reason in the log; nobody
else notices. Knows what a request is, not what a queue does with it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Final, cast

from shinar.errors import ProtocolViolation
from shinar.phpmq.protocol import Acknowledge, Decoder, Extended, Limits, Message, Send
from shinar.phpmq.protocol.encode import dispatch_frame, dispatch_prefix
from shinar.phpmq.protocol.extension import Failure, pack, pack_reply
from shinar.phpmq.server import commands
from shinar.phpmq.server.access import Rights
from shinar.phpmq.server.leases import Lease
from shinar.phpmq.server.options import Refused
from shinar.phpmq.server.plain_writer import PlainWriter
from shinar.phpmq.server.queue import Consumer, Queue, Waiter
from shinar.phpmq.store import Entry

if TYPE_CHECKING:
    from shinar.phpmq.server.listen import Hub, Listener

#: Bytes waiting to be sent above which a client of the extension gets nothing new, and is not read from.
HIGH_WATER: Final = 4 * 1024 * 1024
#: The same for a plain consumer. It is read on: it may be blocked in a send, and would never read again.
PLAIN_HIGH_WATER: Final = 256 * 1024
#: What somebody may send who has not shown a token yet, where one is asked for.
STRANGER_LIMITS: Final = Limits(max_body_bytes=65_536, max_payload_bytes=65_536)
#: Seconds of silence after which the kernel asks whether the other host is still there.
KEEPALIVE_S: Final = 60


class Connection(asyncio.Protocol):
    def __init__(self, hub: Hub, listener: Listener) -> None:
        self.hub = hub
        self.listener = listener
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[Waiter, Queue] = {}
        self.holding = 0
        self.consumers: dict[str, Consumer] = {}
        #: What this client may do; None until it said hello where a token is asked for.
        self.rights: Rights | None = None if listener.token else hub.access.plain
        self.extended = False
        #: Set by a hello that was refused: hang up once the refusal is out.
        self.leave_after_reply = False
        self.client = ""
        self.peer = "?"
        #: Monotonic time at which the unfinished frame began; None between frames.
        self.frame_since_s: float | None = None
        self.unread_since_s: float | None = None
        self.closing_since_s: float | None = None
        self.since_s = hub.clock.monotonic_s()
        self.frames = 0
        #: True once a message was carried out: a hello comes before that, or not at all.
        self.spoke = False
        self._ttl_form = listener.dispatch_form == "ttl"
        self._prefixes: dict[tuple[str, bool], bytes] = {}
        self._decoder = Decoder(STRANGER_LIMITS if listener.token else hub.options.limits)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._counted_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._plain: PlainWriter | None = None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"{name[0]}:{name[1]}"
            _notice_the_dead(transport.get_extra_info("socket"))
        else:
            self.peer = "unix"
        self.hub.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._plain is not None:
            self._plain.stop()
        self._out.clear()
        self._count_inbound(0)
        self.hub.left(self)

    def pause_writing(self) -> None:
        self.unread_since_s = self.hub.clock.monotonic_s()
        if self._transport is not None and self.extended:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self.hub.wake(self)

    def data_received(self, data: bytes) -> None:
        decoder = self._decoder
        messages = decoder.feed(data)
        if messages:
            self.frames += len(messages)
            self.frame_since_s = None
            self.hub.guard(self, messages)
        if decoder.violation is not None:
            self.cut_off(decoder.violation)
        elif decoder.pending_bytes:
            if self.frame_since_s is None:
                self.frame_since_s = self.hub.clock.monotonic_s()
            if not self._count_inbound(decoder.pending_bytes):
                self.cut_off(ProtocolViolation("unfinished frames of all clients use up the inbound budget"))
        elif self._counted_bytes:
            self._count_inbound(0)

    # -- requests

    def handle(self, messages: list[Message]) -> None:
        """Carry out what came in one read; runs of sends or acknowledgements go to the store together."""
        start, end = 0, len(messages)
        while start < end and not self._leaving():
            first = messages[start]
            kind = type(first)
            stop = start + 1
            if kind is Send or kind is Acknowledge:
                queue = first.queue  # type: ignore[union-attr]  # both have one
                while stop < end and type(messages[stop]) is kind and messages[stop].queue == queue:  # type: ignore[union-attr]  # the same kind
                    stop += 1
                self._run(queue, cast(list[Send] | list[Acknowledge], messages[start:stop]))
            elif isinstance(first, Extended):
                commands.extended(self, first)
            else:
                commands.plain(self, first)
            start = stop

    def _run(self, queue: str, run: list[Send] | list[Acknowledge]) -> None:
        last = run[-1]
        if isinstance(last, Send):
            self._ttl_form = last.ttl_s is not None
            sends = cast(list[Send], run)
            commands.send(self, queue, [(send.content, send.ttl_s or 0) for send in sends])
        else:
            commands.acknowledge(self, queue, [ack.id for ack in cast(list[Acknowledge], run)])

    def welcome(self, rights: Rights) -> None:
        """The client said hello and may go on."""
        self.rights = rights
        self.extended = True
        self._decoder.limits = self.hub.options.limits

    def reply(self, tag: int, result: object) -> None:
        self.write(pack_reply(tag, result))

    def refuse(self, tag: int, refused: Refused) -> None:
        self.write(pack(Failure(tag, refused.code, str(refused), list(refused.detail))))

    # -- what the engine hands out

    def writable(self) -> bool:
        return self.unread_since_s is None and not self._full() and self._transport is not None

    def _full(self) -> bool:
        return self._out_bytes >= (HIGH_WATER if self.extended else PLAIN_HIGH_WATER)

    def deliver(self, waiter: Waiter, lease: Lease | None, entries: list[Entry]) -> None:
        batch = (0, 0, ()) if lease is None else (lease.token, int(waiter.lease_s * 1000), entries)
        self.write(pack_reply(waiter.tag, batch))

    def dispatch(self, consumer: Consumer, entries: list[Entry]) -> None:
        queue, ttl = consumer.queue.name, self._ttl_form
        prefix = self._prefixes.get((queue, ttl))
        if prefix is None:
            prefix = self._prefixes[queue, ttl] = dispatch_prefix(queue, ttl=ttl)
        store = self.hub.store_id
        frames = [
            dispatch_frame(prefix, entry[1], b"%b%016x" % (store, entry[0]), left_s)
            for entry, left_s in zip(entries, self._ttls(entries) if ttl else repeat(None), strict=False)
        ]
        self._out += frames
        self._out_bytes += sum(map(len, frames))
        self.hub.outgoing.add(self)

    def _ttls(self, entries: list[Entry]) -> list[int]:
        """Seconds left, rounded up: 0 would mean "never"."""
        now_ms = self.hub.clock.epoch_ms()
        return [-(-(entry[4] - now_ms) // 1000) if entry[4] else 0 for entry in entries]

    # -- bytes out

    def write(self, frame: bytes) -> None:
        """Keep a whole frame until the commit; `flush` sends it."""
        if self._transport is None:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        self.hub.outgoing.add(self)

    def flush(self) -> None:
        was_full = self._full()
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is None or not out:
            return
        if self.extended or self.leave_after_reply:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self.leave_after_reply:
                self._hang_up()
        else:
            self._flush_plain(out)
        if was_full and self.writable():
            # Others were served meanwhile; there may be more for this one.
            self.hub.wake(self)

    def _flush_plain(self, out: list[bytes]) -> None:
        if self._plain is None and self._transport is not None:
            self._plain = PlainWriter(self._transport, self.resume_writing)
        if self._plain is not None:
            self._plain.write(out)
            if self._plain.waiting_bytes > PLAIN_HIGH_WATER and self.unread_since_s is None:
                self.unread_since_s = self.hub.clock.monotonic_s()

    def cut_off(self, reason: Exception | str) -> None:
        """End this connection for good, and say why in the log."""
        if self._transport is None:
            return
        if self._transport.is_closing():
            # It was told to go and does not take its last frame.
            self._transport.abort()
            return
        self.hub.note_cut_off(self.peer, reason)
        if self.extended and not self._transport.get_write_buffer_size():
            self._transport.write(pack(Failure(0, "bad-request", str(reason))))
            self._hang_up()
        else:
            self._transport.abort()

    def say_goodbye(self) -> None:
        """The server is stopping: what was committed has been written, this is the last frame."""
        if self._transport is not None:
            if self.extended:
                self._transport.write(pack(Failure(0, "stopping", "the broker is going away")))
            self._hang_up()

    def _hang_up(self) -> None:
        """Close once the last frame is taken, which must not take for ever."""
        if self._transport is not None:
            self.closing_since_s = self.hub.clock.monotonic_s()
            self._transport.close()

    def _leaving(self) -> bool:
        return self._transport is None or self.leave_after_reply or self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def overdue(self, now_s: float) -> str | None:
        """Why this client has used up our patience; None while it has not."""
        options = self.hub.options
        if self.closing_since_s is not None:
            over = now_s - self.closing_since_s > options.stop_s
            return "it does not take its last frame" if over else None
        if self.frame_since_s is not None:
            allowed_s = options.frame_s + self._decoder.pending_bytes / options.slowest_bytes_s
            if now_s - self.frame_since_s > allowed_s:
                return "a frame was begun and not finished in time"
        if self.frames == 0 and now_s - self.since_s > options.first_frame_s:
            return "it connected and said nothing"
        # A plain consumer may be busy for as long as it may hold a message.
        unread_s = options.unread_s if self.extended else options.plain_lease_s
        if self.unread_since_s is not None and now_s - self.unread_since_s > unread_s:
            return "it does not read what it asked for"
        return None

    def _count_inbound(self, pending: int) -> bool:
        self.hub.inbound_bytes += pending - self._counted_bytes
        self._counted_bytes = pending
        return pending < 65_536 or self.hub.inbound_bytes <= self.hub.options.inbound_bytes


def _notice_the_dead(raw: socket.socket) -> None:
    """A host that lost its power says no goodbye; what it holds must come back all the same."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 4)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
