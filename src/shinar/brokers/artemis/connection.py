"""One AMQP 1.0 connection: proton's protocol engine, a socket and a thread that drives both.

proton's C objects allow one thread at a time and its calls let others run, so every touch of one,
the end of its life included, happens under `_turn`; outside there are only numbers and bytes.
Knows links, credit and outcomes; nothing of messages or queues in Shinar's sense.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from proton import SASL, Collector, Connection, Delivery, Endpoint, Event, Terminus, Transport
from proton import ProtonException as EngineError

from shinar.brokers.artemis.transport import (
    BROKER,
    ArtemisAddress,
    ReceiveLink,
    SendLink,
    ask_for_queue,
    dial,
    our_error,
    tls_domain,
)
from shinar.clock import SYSTEM
from shinar.errors import AccessDenied, BrokerError, BrokerFull, BrokerUnavailable, ConfigError

#: We are gone for the server, and it for us, after this long without a byte; either side sends an
#: empty frame at half of it, whatever the handlers do.
IDLE_S: Final = 20.0
_READ_BYTES: Final = 256 * 1024
#: Sends handed to the socket at once before the window is looked at again.
_STRIDE: Final = 100

ACCEPTED, RELEASED, MODIFIED, REJECTED = (
    Delivery.ACCEPTED,
    Delivery.RELEASED,
    Delivery.MODIFIED,
    Delivery.REJECTED,
)


class ArtemisConnection:
    def __init__(self, address: ArtemisAddress) -> None:
        self._address = address
        self._turn = threading.Condition()
        #: Why the connection is over; nothing works after it is set.
        self.fault: BrokerError | None = None
        self._closing = False
        self._number = 0
        self._held: dict[int, Any] = {}
        self._outboxes: dict[str, SendLink] = {}
        self._inboxes: dict[str, ReceiveLink] = {}
        self._sock = dial(address)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._collector = Collector()
        self._connection = Connection()
        self._connection.collect(self._collector)
        self._transport = Transport()
        try:
            self._open()
        except EngineError as exc:
            self._hang_up()
            raise ConfigError(f"artemis: {exc}") from None
        self._thread = threading.Thread(target=self._run, name="shinar-artemis", daemon=True)
        self._thread.start()
        with self._turn:
            opened = self._wait(
                lambda: bool(self._connection.state & Endpoint.REMOTE_ACTIVE), address.timeout_s
            )
            fault = self.fault
        if not opened or fault is not None:
            self.close()
            raise fault or BrokerUnavailable("no answer to the AMQP handshake", broker=BROKER)

    # -- links

    def outbox(self, queue: str) -> SendLink:
        with self._turn:
            box = self._outboxes.get(queue)
            if box is None or box.fault is not None:
                self._number += 1
                link = self._session.sender(f"out-{self._number}-{queue}")
                link.target.address = queue
                ask_for_queue(link.target)
                box = self._outboxes[queue] = SendLink(queue, link)
                self._attach(link, box)
            return box

    def inbox(self, queue: str, *, browse: bool = False, dynamic: bool = False) -> ReceiveLink:
        with self._turn:
            box = None if browse or dynamic else self._inboxes.get(queue)
            if box is None or box.fault is not None:
                self._number += 1
                link = self._session.receiver(f"in-{self._number}-{queue}")
                if dynamic:
                    link.source.dynamic = True
                else:
                    link.source.address = queue
                    ask_for_queue(link.source)
                if browse:
                    link.source.distribution_mode = Terminus.DIST_MODE_COPY
                box = ReceiveLink(queue, link)
                self._attach(link, box)
                if dynamic:
                    box.queue = link.remote_source.address or ""
                elif not browse:
                    self._inboxes[queue] = box
            return box

    def detach(self, box: ReceiveLink) -> None:
        with self._turn:
            for number, _ in box.arrived:
                self._settle(number, RELEASED)
            box.arrived.clear()
            box.link.close()
            self._flush()

    # -- sending

    def send(self, box: SendLink, messages: Sequence[bytes]) -> dict[int, BrokerError]:
        """Hand all over and wait for their outcomes; the answer holds those that were not accepted."""
        timeout_s = self._address.timeout_s
        with self._turn:
            box.pending.clear()
            box.failed = {}
            sent = 0
            while sent < len(messages) and self._fault_of(box) is None:
                if box.link.credit <= 0 and not self._wait(lambda: box.link.credit > 0, timeout_s, box):
                    break
                window = min(box.link.credit, _STRIDE, len(messages) - sent)
                for index in range(sent, sent + window):
                    self._send_one(box, index, messages[index])
                sent += window
                self._flush()
            self._wait(lambda: not box.pending, timeout_s, box)
            failed, box.failed = box.failed, {}
            fault = self._fault_of(box)
            late = fault or BrokerUnavailable("not confirmed in time", broker=BROKER, queue=box.queue)
            failed |= dict.fromkeys(box.pending.values(), late)
            if sent < len(messages):
                stuck = fault or BrokerFull(
                    "the server gives no credit: the address is full or its disk is",
                    broker=BROKER,
                    queue=box.queue,
                )
                failed |= dict.fromkeys(range(sent, len(messages)), stuck)
            if box.pending and fault is None:
                # What we called unconfirmed must not be confirmed to the next batch.
                box.link.close()
                box.fault = late
            return failed

    def _send_one(self, box: SendLink, index: int, message: bytes) -> None:
        box.tag += 1
        tag = str(box.tag)
        box.pending[tag] = index
        box.link.delivery(tag)
        box.link.stream(message)
        box.link.advance()

    # -- receiving

    def take(self, box: ReceiveLink, limit: int, wait_s: float, ahead: int = 0) -> list[tuple[int, bytes]]:
        """Up to `limit`. Credit is asked for to that size and given back when it was not used, so
        that nothing piles up here which another worker could do; `ahead` more may follow a full
        batch."""
        with self._turn:
            link = box.link
            short = limit - len(box.arrived) - link.credit
            if short > 0:
                link.flow(short)
                self._flush()
            if wait_s > 0:
                self._wait(lambda: len(box.arrived) > 0, wait_s, box)
            if len(box.arrived) < limit and link.credit > 0:
                self._recall(box)
            fault = self._fault_of(box)
            if fault is not None and not box.arrived:
                raise fault
            got = [box.arrived.popleft() for _ in range(min(limit, len(box.arrived)))]
            if ahead and len(got) == limit and len(box.arrived) + link.credit < ahead:
                link.flow(ahead - len(box.arrived) - link.credit)
                self._flush()
            return got

    def _recall(self, box: ReceiveLink) -> None:
        """Ask for what is there now and void the rest of the credit: one round trip, and an empty
        answer means an empty queue."""
        box.link.drain(0)
        self._flush()
        self._wait(lambda: box.link.credit == 0, self._address.timeout_s, box)

    def settle(self, numbers: Sequence[int], state: Any) -> None:
        """Exactly these, as far as they are still held."""
        with self._turn:
            for number in numbers:
                self._settle(number, state)
            self._flush()

    def holds(self, number: int) -> bool:
        return self.fault is None and number in self._held

    def _settle(self, number: int, state: Any) -> None:
        delivery = self._held.pop(number, None)
        if delivery is None:
            return
        if state is MODIFIED:
            # Without the flag proton sends a MODIFIED that does not count.
            delivery.local.failed = True
        delivery.update(state)
        delivery.settle()

    def close(self) -> None:
        with self._turn:
            if self.fault is None and not self._closing:
                for number in list(self._held):
                    self._settle(number, RELEASED)
                self._connection.close()
                self._flush()
                self._wait(lambda: bool(self._connection.state & Endpoint.REMOTE_CLOSED), 5.0)
            self._closing = True
        self._wake()
        self._thread.join()

    # -- under `_turn`

    def _open(self) -> None:
        address = self._address
        transport, connection = self._transport, self._connection
        if address.tls:
            transport.ssl(tls_domain(address)).peer_hostname = address.host
        sasl = transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs("PLAIN" if address.user else "ANONYMOUS")
        if address.user:
            connection.user, connection.password = address.user, address.password
        connection.hostname = address.host
        connection.container = f"shinar-{id(self):x}-{SYSTEM.epoch_ms():x}"
        transport.idle_timeout = IDLE_S
        transport.bind(connection)
        connection.open()
        self._session = connection.session()
        self._session.open()

    def _attach(self, link: Any, box: SendLink | ReceiveLink) -> None:
        link.box = box
        link.open()
        self._flush()
        if not self._wait(lambda: bool(link.state & Endpoint.REMOTE_ACTIVE), self._address.timeout_s, box):
            raise self._fault_of(box) or BrokerUnavailable("link refused", broker=BROKER, queue=box.queue)
        # A refused link is first opened without an address, and closed with the reason right after.
        remote = link.remote_target if link.is_sender else link.remote_source
        if not remote.address:
            self._wait(lambda: False, 2.0, box)
            raise self._fault_of(box) or BrokerUnavailable("link refused", broker=BROKER, queue=box.queue)

    def _fault_of(self, box: SendLink | ReceiveLink | None) -> BrokerError | None:
        return self.fault or (box.fault if box is not None else None)

    def _wait(
        self, done: Callable[[], bool], timeout_s: float, box: SendLink | ReceiveLink | None = None
    ) -> bool:
        deadline = SYSTEM.monotonic_s() + timeout_s
        while not done():
            left_s = deadline - SYSTEM.monotonic_s()
            if left_s <= 0 or self._fault_of(box) is not None:
                return False
            self._turn.wait(left_s)
        return self._fault_of(box) is None

    def _flush(self) -> None:
        """Write what fits; the thread does the rest."""
        try:
            while (size := self._transport.pending()) > 0:
                self._transport.pop(self._sock.send(self._transport.peek(size) or b""))
        except BlockingIOError:
            self._wake()
        except (OSError, EngineError):
            self._wake()  # the reader meets the same fault and reports it once

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    # -- the thread

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except (OSError, EngineError) as exc:
            self._fail(BrokerUnavailable(f"connection lost: {exc}", broker=BROKER))
        finally:
            with self._turn:
                self._dispatch()  # the reason may have come with the last bytes
            self._fail(BrokerUnavailable("connection closed", broker=BROKER))
            self._hang_up()

    def _round(self) -> bool:
        with self._turn:
            due_s = self._transport.tick(SYSTEM.monotonic_s())
            self._flush()
            unsent = self._transport.pending()
            if self._closing or self._transport.closed or self.fault is not None:
                return False
        watch = select.poll()
        watch.register(self._sock, select.POLLIN | (select.POLLOUT if unsent > 0 else 0))
        watch.register(self._wake_in, select.POLLIN)
        rest_s = max(0.0, due_s - SYSTEM.monotonic_s()) if due_s else IDLE_S / 2
        ready = dict(watch.poll(min(rest_s, IDLE_S / 2) * 1000))
        with self._turn:
            if self._wake_in.fileno() in ready:
                self._wake_in.recv(4096)
            if self._sock.fileno() in ready:
                self._read()
            self._dispatch()
            self._flush()
            self._turn.notify_all()
        return True

    def _read(self) -> None:
        room = self._transport.capacity()
        if room <= 0:
            return
        try:
            data = self._sock.recv(min(room, _READ_BYTES))
        except BlockingIOError:
            return
        if data:
            self._transport.push(data)
        else:
            self._transport.close_tail()

    def _dispatch(self) -> None:
        while (event := self._collector.peek()) is not None:
            kind = event.type
            if kind == Event.DELIVERY:
                self._on_delivery(event.delivery)
            elif kind == Event.LINK_REMOTE_CLOSE:
                self._on_link_closed(event.link)
            elif kind in (Event.CONNECTION_REMOTE_CLOSE, Event.TRANSPORT_ERROR, Event.TRANSPORT_TAIL_CLOSED):
                self._on_closed(event)
            self._collector.pop()

    def _on_delivery(self, delivery: Any) -> None:
        link = delivery.link
        box = link.box
        if isinstance(box, SendLink):
            self._on_outcome(box, delivery)
        elif delivery.readable and not delivery.partial and not delivery.aborted:
            self._number += 1
            box.arrived.append((self._number, bytes(link.recv(delivery.pending) or b"")))
            link.advance()
            self._held[self._number] = delivery

    def _on_outcome(self, box: SendLink, delivery: Any) -> None:
        state = delivery.remote_state
        if not (delivery.settled or state in (ACCEPTED, REJECTED, RELEASED, MODIFIED)):
            return
        index = box.pending.pop(delivery.tag, None)
        if index is not None and state != ACCEPTED:
            why = delivery.remote.condition
            name, text = (why.name, why.description or "") if why is not None else ("refused", "not accepted")
            box.failed[index] = our_error(name, text, box.queue)
        delivery.settle()

    def _on_link_closed(self, link: Any) -> None:
        why = link.remote_condition
        link.box.fault = our_error(
            why.name if why else "", (why.description or "") if why else "link closed", link.box.queue
        )
        link.close()

    def _on_closed(self, event: Any) -> None:
        if self._closing:
            return
        why = event.connection.remote_condition if event.connection is not None else None
        why = why or self._transport.condition
        if self._transport.sasl().outcome == SASL.AUTH:
            self._fail(AccessDenied("login refused; check user and password", broker=BROKER))
        self._fail(our_error(why.name if why else "", (why.description or "") if why else ""))

    def _fail(self, fault: BrokerError) -> None:
        with self._turn:
            self.fault = self.fault or fault
            self._turn.notify_all()

    def _hang_up(self) -> None:
        with self._turn:
            self._held.clear()
            for sock in (self._sock, self._wake_in, self._wake_out):
                sock.close()
