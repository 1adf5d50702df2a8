"""phpmq://, phpmqs:// and phpmq+unix:// — the embedded broker (`shinar broker serve`) and its extension.

Publishes are confirmed after the server's commit, receipts settle from any process, moves are atomic.
A reservation ends with its lease and with the connection that made it; with ?hold=lease it outlives the
connection. Plain PHPMQ servers have none of this and cannot be used with these URLs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from shinar.brokers.contract import NOTHING, Delivery, Depth, Lapsed, Outgoing
from shinar.brokers.tls import tls_context
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import BodyTooLarge, BrokerError, BrokerUnavailable, ConfigError, PublishFailed
from shinar.phpmq import archive
from shinar.phpmq.client import NAME, Client, PhpmqAddress
from shinar.phpmq.protocol import extension as ext
from shinar.settlement.traits import Traits

#: Seconds a reservation lasts unless the URL says otherwise (?lease_s=).
DEFAULT_LEASE_S: Final = 60.0
SCHEMES: Final = frozenset({"phpmq", "phpmqs", "phpmq+unix"})
#: One publish frame: large enough to share a commit, small enough for the server's limits.
CHUNK_MESSAGES: Final = 2_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
#: What a message costs in a frame beside its body and headers, at most.
ITEM_BYTES: Final = 64
#: Publish frames on their way before the first confirmation is awaited.
CHUNKS_IN_FLIGHT: Final = 8
#: The server answers a reserve after at most this; a longer wait asks again.
LONGEST_WAIT_S: Final = 30.0
BROWSE_PAGE: Final = 500
#: Receipts in one request; the server takes up to four times as many.
CHUNK_RECEIPTS: Final = 5_000

OPTIONS: Final = frozenset(
    {"lease_s", "timeout_s", "token", "hold", "declare", "tls_ca", "tls_cert", "tls_key"}
)

#: What settles a delivery: its batch's token and its own key.
PhpmqReceipt = tuple[int, int]
RECEIPT: Final = PhpmqReceipt
T = TypeVar("T")


def traits(url: BrokerUrl) -> Traits:
    return Traits(
        name=NAME,
        key=True,
        attempts="max",
        count_base=0,
        lease_s=url.number("lease_s", DEFAULT_LEASE_S, least=0.001),
        portable_receipts=True,
        stable_position=True,
        atomic_move=True,
        release_counts=True,
        release_uncounted=True,
    )


def connect(url: BrokerUrl, clock: Clock) -> PhpmqBroker:
    return PhpmqBroker(url, clock)


class PhpmqBroker:
    def __init__(self, url: BrokerUrl, clock: Clock) -> None:
        self.traits = traits(url)
        self._clock = clock
        self._address = address(url)
        self._timeout_s = url.number("timeout_s", 30.0, least=0.1)
        self._lease_ms = int((self.traits.lease_s or DEFAULT_LEASE_S) * 1000)
        hold = url.option("hold", "connection")
        if hold not in ("connection", "lease"):
            raise ConfigError(f"{hold!r} is neither connection nor lease", setting="?hold=")
        self._detached = hold == "lease"
        self._create = url.flag("declare", True)
        self._opened: Client | None = None
        self._pid = 0
        self._client()

    # -- the contract

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        client = self._client()
        limit = client.welcome.max_body_bytes
        for message in messages:
            if len(message.body) > limit:
                raise BodyTooLarge(len(message.body), limit, broker=NAME, queue=queue)
        waiting: deque[tuple[int, int, int]] = deque()
        unconfirmed = set(range(len(messages)))
        failure: BrokerError | None = None
        begin = 0
        try:
            for chunk in _chunks(messages, client.welcome.max_payload_bytes):
                request = ext.Publish(client.tag(), queue, [_item(one) for one in chunk], self._create)
                waiting.append((client.send(request), begin, begin + len(chunk)))
                begin += len(chunk)
                if len(waiting) >= CHUNKS_IN_FLIGHT:
                    failure = _confirm(client, waiting, unconfirmed) or failure
            while waiting:
                failure = _confirm(client, waiting, unconfirmed) or failure
        except BrokerError as exc:
            failure = exc
        if failure is None:
            return
        if len(unconfirmed) == len(messages):
            raise failure
        left = tuple(sorted(unconfirmed))
        raise PublishFailed(str(failure), total=len(messages), unconfirmed=left, queue=queue) from failure

    def reserve(self, queue: str, limit: int, wait_s: float) -> list[Delivery]:
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            left_s = min(max(0.0, deadline_s - self._clock.monotonic_s()), LONGEST_WAIT_S)
            batch = self._safely(partial(self._reserve, queue=queue, limit=limit, wait_s=left_s))
            if batch.items or self._clock.monotonic_s() >= deadline_s:
                return self._deliveries(queue, batch)

    def ack(self, deliveries: Sequence[Delivery]) -> Lapsed:
        return self._settle(deliveries, lambda tag, held: ext.Ack(tag, held))

    def release(self, deliveries: Sequence[Delivery], delay_s: float = 0.0, *, count: bool = True) -> Lapsed:
        """`count` False: as if they had never been handed out. A server without that feature counts them."""
        delay_ms = int(max(0.0, delay_s) * 1000)
        return self._settle(deliveries, lambda tag, held: ext.Release(tag, held, delay_ms, count))

    def extend(self, deliveries: Sequence[Delivery], lease_s: float) -> Lapsed:
        lease_ms = int(lease_s * 1000)
        return self._settle(deliveries, lambda tag, held: ext.Extend(tag, held, lease_ms))

    def move(self, queue: str, copies: Sequence[tuple[Delivery, Outgoing]]) -> Lapsed:
        client = self._client()
        lapsed: set[PhpmqReceipt] = set()
        begin = 0
        for part in _chunks([copy for _, copy in copies], client.welcome.max_payload_bytes):
            pairs = copies[begin : begin + len(part)]
            begin += len(part)
            moved = [
                ext.Copy(delivery.receipt[0], delivery.receipt[1], _item(copy)) for delivery, copy in pairs
            ]
            request = ext.Move(client.tag(), queue, moved, self._create)
            lapsed |= _receipts(client.call(request, list[ext.Held]))
        return tuple(delivery for delivery, _ in copies if delivery.receipt in lapsed)

    def browse(self, queue: str, limit: int | None = None) -> Iterator[Delivery]:
        after, left = 0, limit
        while left is None or left > 0:
            size = BROWSE_PAGE if left is None else min(left, BROWSE_PAGE)
            page = self._safely(partial(_page, queue=queue, after=after, size=size))
            if not page:
                return
            store = self._client().welcome.store
            for item in page:
                yield _delivery(queue, item, f"{store}{item.key:016x}", item.published_ms)
            after = page[-1].key
            left = None if left is None else left - len(page)

    def depth(self, queue: str) -> Depth:
        found = self._safely(partial(_depth, queue=queue))
        if found is None:
            return Depth(0, 0, 0, None)
        age_s = max(0.0, (self._clock.epoch_ms() - found.oldest_ms) / 1000) if found.oldest_ms else None
        return Depth(found.ready, found.reserved, found.delayed, age_s)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # -- requests

    def _reserve(self, client: Client, queue: str, limit: int, wait_s: float) -> ext.Batch:
        request = ext.Reserve(
            client.tag(), queue, limit, int(wait_s * 1000), self._lease_ms, self._detached, self._create
        )
        return client.call(request, ext.Batch, wait_s=wait_s)

    def _settle(
        self,
        deliveries: Sequence[Delivery],
        make: Callable[[int, list[ext.Held]], ext.Ack | ext.Release | ext.Extend],
    ) -> Lapsed:
        """Settle over the connection there is, or a new one: receipts of one that is gone are lapsed."""
        lapsed: set[PhpmqReceipt] = set()
        for begin in range(0, len(deliveries), CHUNK_RECEIPTS):
            groups: dict[int, list[int]] = {}
            for delivery in deliveries[begin : begin + CHUNK_RECEIPTS]:
                token, key = delivery.receipt
                groups.setdefault(token, []).append(key)
            held = [ext.Held(token, keys) for token, keys in groups.items()]
            lapsed |= _receipts(self._safely(partial(_settle, make=make, held=held)))
        if not lapsed:
            return ()
        return tuple(delivery for delivery in deliveries if delivery.receipt in lapsed)

    def _client(self) -> Client:
        """The open connection, or a new one; a forked child never talks on its parent's."""
        if self._opened is None or self._opened.closed or self._pid != os.getpid():
            self._opened = Client(self._address, timeout_s=self._timeout_s)
            self._pid = os.getpid()
        return self._opened

    def _safely(self, action: Callable[[Client], T]) -> T:
        """Something that may be asked twice: once more, if the connection had died unnoticed."""
        fresh = self._opened is None or self._opened.closed
        client = self._client()
        try:
            return action(client)
        except BrokerUnavailable:
            if fresh:
                raise
            client.close()
            return action(self._client())

    # -- values

    def _deliveries(self, queue: str, batch: ext.Batch) -> list[Delivery]:
        now_ms = self._clock.epoch_ms()
        until_ms = now_ms + batch.lease_ms
        token, store = batch.token, self._client().welcome.store
        return [
            _delivery(queue, item, f"{store}{item.key:016x}", now_ms, (token, item.key), until_ms)
            for item in batch.items
        ]


def _delivery(
    queue: str, item: ext.Delivered, position: str, received_ms: int,
    receipt: PhpmqReceipt | None = None, until_ms: int | None = None,
) -> Delivery:  # fmt: skip
    # By position, in the order of Delivery's fields: keywords cost a third more, a thousand times a batch.
    extra = item.extra
    if extra is None:
        return Delivery(
            item.body, queue, receipt, NOTHING, NOTHING, None, item.count, received_ms, until_ms, position
        )
    return Delivery(
        item.body,
        queue,
        receipt,
        extra.headers,
        NOTHING,
        extra.key,
        item.count,
        received_ms,
        until_ms,
        position,
    )


def _confirm(
    client: Client, waiting: deque[tuple[int, int, int]], unconfirmed: set[int]
) -> BrokerError | None:
    """Await the oldest chunk. A refusal is returned, so that the others' outcome is still learnt; a broken
    connection is raised."""
    tag, begin, end = waiting.popleft()
    try:
        client.receive(tag, int)
    except BrokerError as exc:
        if client.closed:
            raise
        return exc
    unconfirmed.difference_update(range(begin, end))
    return None


def _item(message: Outgoing) -> ext.Item:
    extra = None
    if message.headers or message.key is not None:
        extra = ext.Extra(dict(message.headers), message.key)
    return ext.Item(message.body, extra, int(max(0.0, message.delay_s) * 1000))


def _chunks(messages: Sequence[Outgoing], max_payload_bytes: int) -> Iterator[Sequence[Outgoing]]:
    """The messages in frames of bounded size, in order."""
    most = min(CHUNK_BYTES, max_payload_bytes // 2)
    begin = size = 0
    for index, message in enumerate(messages):
        cost = len(message.body) + ITEM_BYTES
        if message.headers:
            cost += sum(4 * (len(name) + len(value)) for name, value in message.headers.items())
        if index > begin and (size + cost > most or index - begin >= CHUNK_MESSAGES):
            yield messages[begin:index]
            begin, size = index, 0
        size += cost
    if begin < len(messages):
        yield messages[begin:]


def _page(client: Client, queue: str, after: int, size: int) -> list[ext.Delivered]:
    return client.call(ext.Browse(client.tag(), queue, after, size), list[ext.Delivered])


def _settle(
    client: Client,
    make: Callable[[int, list[ext.Held]], ext.Ack | ext.Release | ext.Extend],
    held: list[ext.Held],
) -> list[ext.Held]:
    return client.call(make(client.tag(), held), list[ext.Held])


def _depth(client: Client, queue: str) -> ext.DepthReply | None:
    found = client.call(ext.Depth(client.tag(), queue), list[ext.DepthReply])
    return found[0] if found else None


def _receipts(held: Sequence[ext.Held]) -> set[PhpmqReceipt]:
    return {(part.token, key) for part in held for key in part.keys}


def address(url: BrokerUrl) -> PhpmqAddress:
    token = url.option("token") or url.password
    if url.scheme == "phpmq+unix":
        return PhpmqAddress(unix=url.path, token=token)
    return PhpmqAddress(
        host=url.host or "127.0.0.1",
        port=url.port or url.usual_port,
        tls=tls_context(url) if url.scheme == "phpmqs" else None,
        token=token,
    )


# -- the log in the server's own folder (`shinar broker serve --archive`)

log_bounds = archive.bounds


def read_log(folder: Path, start: int, end: int, queues: Collection[str] = ()) -> Iterator[Delivery]:
    for found in archive.read(folder, start, end, queues):
        yield Delivery(
            body=found.body,
            queue=found.queue,
            headers=found.headers,
            key=found.key,
            received_ms=found.settled_ms,
            position=str(found.position),
        )
