"""One client: bytes in, requests to the engine, frames out after the commit.

Requests wait in line until the hub gives the connection a slice of time; while some wait, or replies are
not read, no more bytes are read. Whoever breaks the protocol, is too slow or does not read is cut off with
a reason in the log; nobody else notices. Must not know what a queue does with a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final, cast

from shinar.errors import ProtocolViolation
from shinar.phpmq.engine.leases import Lease
from shinar.phpmq.engine.options import RequestRefused
from shinar.phpmq.engine.queue import PlainConsumer, Queue, Waiter
from shinar.phpmq.protocol import Acknowledge, Decoder, Extended, Limits, Message, Send
from shinar.phpmq.protocol.encode import dispatch_frame, dispatch_prefix
from shinar.phpmq.protocol.extension import Failure, pack, pack_reply
from shinar.phpmq.server import commands
from shinar.phpmq.server.access import Rights, digest_of
from shinar.phpmq.server.plain_writer import PlainWriter
from shinar.phpmq.server.sockets import keep_alive
from shinar.phpmq.store import DamagedPage, Entry

if TYPE_CHECKING:
    from shinar.phpmq.server.hub import Hub, Listener

#: Bytes waiting to be sent above which a client of the extension gets nothing new, and is not read from.
HIGH_WATER: Final = 4 * 1024 * 1024
#: The same for a plain consumer. It is read on: it may be blocked in a send, and would never read again.
PLAIN_HIGH_WATER: Final = 256 * 1024
#: What somebody may send who has not shown a token yet, where one is asked for.
STRANGER_LIMITS: Final = Limits(max_body_bytes=65_536, max_payload_bytes=65_536)


class Connection(asyncio.Protocol):
    def __init__(self, hub: Hub, listener: Listener) -> None:
        self.hub = hub
        self.listener = listener
        self.leases: dict[int, Lease] = {}
        self.waiting: dict[Waiter, Queue] = {}
        self.consumers: dict[str, PlainConsumer] = {}
        #: True while the hub has it in line for a slice of time.
        self.in_line = False
        #: What this client may do; None until it said hello where a token is required.
        self.rights: Rights | None = None if listener.token else hub.access.plain
        self.extended = False
        #: Set by a hello that was refused: hang up once the refusal is out.
        self.leave_after_reply = False
        self.client = ""
        self.peer = "?"
        self.address = "unix"
        #: Monotonic time of the last request.
        self.active_s = hub.clock.monotonic_s()
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
        self._requests: deque[Message] = deque()
        self._steps: commands.Steps | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._counted_in = 0
        self._counted_out = 0
        self._login_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._plain: PlainWriter | None = None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer, self.address = f"{name[0]}:{name[1]}", str(name[0])
            keep_alive(transport.get_extra_info("socket"))
        else:
            self.peer = "unix"
        self.account = self.hub.engine.accounts.get(f"address {self.address}")
        self.hub.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._plain is not None:
            self._plain.stop()
        if self._login_timer is not None:
            self._login_timer.cancel()
            self.hub.logins.answered(self.address)
        if self._requests and not self.extended:
            self.hub.finish(self)
        self.forget_requests()
        self._out.clear()
        self._count_inbound(0)
        self._count_unsent(0)
        self.hub.left(self)

    def pause_writing(self) -> None:
        self.unread_since_s = self.hub.clock.monotonic_s()
        self._update_reading()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        self.count_unsent()
        self.go_on()
        self.hub.wake(self)

    def data_received(self, data: bytes) -> None:
        decoder = self._decoder
        messages = decoder.feed(data)
        if messages:
            self.frames += len(messages)
            self.frame_since_s = None
            self.active_s = self.hub.clock.monotonic_s()
            self._requests.extend(messages)
        if messages or decoder.violation is not None:
            self.hub.line_up(self)
        if decoder.pending_bytes:
            if self.frame_since_s is None:
                self.frame_since_s = self.hub.clock.monotonic_s()
            if not self._count_inbound(decoder.pending_bytes):
                self.hub.engine.totals.limit_reached("inbound_bytes")
                self.cut_off(ProtocolViolation("unfinished frames use up the inbound budget"))
        elif self._counted_in:
            self._count_inbound(0)

    # -- requests

    @property
    def pending_bytes(self) -> int:
        """Of the frame it has begun; 0 while we do not read what it may have sent."""
        reading = self._transport is not None and self._transport.is_reading()
        return self._decoder.pending_bytes if reading else 0

    @property
    def has_work(self) -> bool:
        """There is something to do for this client that can be done now."""
        if self._transport is None or self._transport.is_closing() or self.leave_after_reply:
            return False
        if self.extended and self._full():
            return False
        return bool(self._requests) or self._steps is not None or self._decoder.violation is not None

    @property
    def idle(self) -> bool:
        """Nothing would be lost to this client, or to others, if it had to connect again."""
        return not (self.leases or self.waiting or self.consumers or self._requests or self._steps)

    def work(self, until_s: float) -> None:
        """Carry out requests until the slice of time is over, or nothing can be done now."""
        while self.has_work:
            if self._steps is not None:
                if next(self._steps, self) is self:
                    self._steps = None
            elif self._requests:
                self._next_request()
            elif self._decoder.violation is not None:
                raise self._decoder.violation
            if self.hub.clock.monotonic_s() >= until_s:
                break
        self._update_reading()

    def finish(self) -> None:
        """Carry out what a plain client sent before it hung up: it gets no replies, so it counts on that."""
        while self._requests:
            self._next_request()

    def _next_request(self) -> None:
        """One request, or a run of plain sends or acknowledgements, which go to the store together."""
        requests = self._requests
        first = requests.popleft()
        kind = type(first)
        if kind is Send or kind is Acknowledge:
            run = [first]
            queue = first.queue  # type: ignore[union-attr]  # both have one
            while requests and type(requests[0]) is kind and requests[0].queue == queue:
                run.append(requests.popleft())
            try:
                self._run(queue, cast(list[Send] | list[Acknowledge], run))
            except DamagedPage as exc:
                raise commands.damaged(self, exc) from exc
        elif isinstance(first, Extended):
            self._steps = commands.extended(self, first)
        else:
            commands.plain(self, first)

    def go_on(self) -> None:
        """Replies were taken, or a slice was not enough: serve what is left, or read more."""
        if self.has_work:
            self.hub.line_up(self)
        self._update_reading()

    def forget_requests(self) -> None:
        self._requests.clear()
        self._steps = None

    def _update_reading(self) -> None:
        """Read only while there is nothing left to do: so what a client sends waits in its own memory."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        # A plain consumer may be blocked in a send: if it were not read, it would never read again either.
        blocked = self.extended and self.unread_since_s is not None
        if self._requests or self._steps is not None or blocked or self._login_timer is not None:
            transport.pause_reading()
        elif not transport.is_reading():
            if self.frame_since_s is not None:
                self.frame_since_s = self.hub.clock.monotonic_s()
            transport.resume_reading()

    def _run(self, queue: str, run: list[Send] | list[Acknowledge]) -> None:
        last = run[-1]
        if isinstance(last, Send):
            self._ttl_form = last.ttl_s is not None
            sends = cast(list[Send], run)
            commands.send(self, queue, [(send.content, send.ttl_s or 0) for send in sends])
        else:
            commands.acknowledge(self, queue, [ack.id for ack in cast(list[Acknowledge], run)])

    def welcome(self, rights: Rights, token: str) -> None:
        """The client said hello and may go on; with a token, whatever it does counts for that token."""
        self.rights = rights
        self.extended = True
        self._decoder.limits = self.hub.options.limits
        if token and self.hub.access.tokens:
            inbound, unsent = self._counted_in, self._counted_out
            self._count_inbound(0)
            self._count_unsent(0)
            self.account = self.hub.engine.accounts.get(f"token {digest_of(token)}")
            self._count_inbound(inbound)
            self._count_unsent(unsent)

    def refuse_login(self) -> None:
        """No token or a wrong one: the answer comes later with every failure of this address."""
        delay_s = self.hub.login_failed(self)
        self.forget_requests()
        if delay_s is None:
            self.abort()
            return
        self._login_timer = asyncio.get_running_loop().call_later(delay_s, self._answer_login)
        self._update_reading()

    def _answer_login(self) -> None:
        self._login_timer = None
        self.hub.logins.answered(self.address)
        text = "this listener requires a token, and the hello had none or a wrong one"
        self.write(pack(Failure(0, "denied", text)))
        self.leave_after_reply = True
        self.hub.touch()

    def reply(self, tag: int, result: object) -> None:
        self.write(pack_reply(tag, result))

    def refuse(self, tag: int, refused: RequestRefused) -> None:
        self.write(pack(Failure(tag, refused.code, str(refused), list(refused.detail))))

    # -- what the engine hands out

    def writable(self) -> bool:
        return self.unread_since_s is None and not self._full() and self._transport is not None

    def _full(self) -> bool:
        """Its replies, or those of this client's other connections, are not read: no room for more."""
        if self.extended and self.unread_since_s is not None:
            return True
        if self.extended and self.account.unsent_bytes >= self.hub.options.unsent_bytes:
            return True
        return self._out_bytes >= (HIGH_WATER if self.extended else PLAIN_HIGH_WATER)

    def count_unsent(self) -> None:
        """Bring the account's figure up to date: asyncio does not say when it has sent something."""
        waiting = self._plain.waiting_bytes if self._plain is not None else 0
        buffered = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._count_unsent(self._out_bytes + waiting + buffered)

    def _count_unsent(self, unsent: int) -> None:
        self.account.unsent_bytes += unsent - self._counted_out
        self._counted_out = unsent

    def deliver(self, waiter: Waiter, lease: Lease | None, entries: list[Entry]) -> None:
        batch = (0, 0, ()) if lease is None else (lease.token, int(waiter.lease_s * 1000), entries)
        self.write(pack_reply(waiter.tag, batch))

    def dispatch(self, consumer: PlainConsumer, entries: list[Entry]) -> None:
        queue, ttl = consumer.queue.name, self._ttl_form
        prefix = self._prefixes.get((queue, ttl))
        if prefix is None:
            prefix = self._prefixes[queue, ttl] = dispatch_prefix(queue, ttl=ttl)
        store = self.hub.store_id
        frames = [
            dispatch_frame(prefix, entry[1], b"%b%016x" % (store, entry[0]), left_s)
            for entry, left_s in zip(entries, self._ttls(entries) if ttl else repeat(None), strict=False)
        ]
        size = sum(map(len, frames))
        self._out += frames
        self._out_bytes += size
        self._count_unsent(self._counted_out + size)
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
        self._count_unsent(self._counted_out + len(frame))
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
        self.count_unsent()
        if was_full and self.writable():
            # Others were served meanwhile; there may be more for this one.
            self.hub.wake(self)
        self.go_on()

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
        self.forget_requests()
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

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _count_inbound(self, pending: int) -> bool:
        """Count an unfinished frame; False when it is one too many, for this client or for all of them."""
        hub, options = self.hub, self.hub.options
        hub.inbound_bytes += pending - self._counted_in
        self.account.inbound_bytes += pending - self._counted_in
        self._counted_in = pending
        of_client = max(options.limits.max_payload_bytes, options.inbound_bytes // 4)
        fits = hub.inbound_bytes <= options.inbound_bytes and self.account.inbound_bytes <= of_client
        return pending < 65_536 or fits
