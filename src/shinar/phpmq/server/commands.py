"""What each message of a client does: size and rights are checked here, then the engine is called.

A request whose work is not bounded by its limits returns steps, which its connection takes one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from shinar.errors import ProtocolViolation, StoreError
from shinar.phpmq.engine.catalogue import damage_text
from shinar.phpmq.engine.options import RequestRefused
from shinar.phpmq.engine.queue import PlainConsumer, Waiter
from shinar.phpmq.engine.upkeep import JobClient
from shinar.phpmq.protocol import Consume, DeadLetter, Extended, Message, Requeue, Type, measure
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.server import metrics
from shinar.phpmq.store import DamagedPage

if TYPE_CHECKING:
    from shinar.phpmq.server.access import Rights
    from shinar.phpmq.server.connection import Connection

#: Longest a reserve may wait; clients ask again.
MAX_WAIT_MS: Final = 60_000
#: Messages one browse returns, and their bodies together.
MAX_BROWSE: Final = 1_000
MAX_BROWSE_BYTES: Final = 4 * 1024 * 1024
#: Messages in one publish or move: they are one transaction, so they cannot be done in steps.
MAX_ITEMS: Final = 2_000
#: Headers and keys of all messages of one publish or move.
MAX_EXTRAS_BYTES: Final = 2 * 1024 * 1024
#: Receipts in one ack, release or extend; and how many of them one step settles.
MAX_RECEIPTS: Final = 20_000
STEP_RECEIPTS: Final = 1_000
#: Queues one step of a listing looks at.
STEP_QUEUES: Final = 200
#: Longest payload of a request that carries receipts, and of one that carries neither those nor messages.
MAX_RECEIPTS_BYTES: Final = 512 * 1024
MAX_SMALL_BYTES: Final = 64 * 1024
#: A payload up to this size cannot hold enough of anything to be measured first.
UNMEASURED_BYTES: Final = 16 * 1024

#: What is left to do of a request.
Steps = Iterator[None]


def send(connection: Connection, queue: str, bodies: list[tuple[bytes, int]]) -> None:
    if not _rights(connection).may_write(queue):
        raise ProtocolViolation(f"a plain client may not send to queue {queue}")
    connection.spoke = True
    connection.hub.engine.intake.send(queue, bodies)


def acknowledge(connection: Connection, queue: str, ids: list[str]) -> None:
    """Ids this connection does not hold are ignored, as php-mq's server does."""
    _rights(connection)
    connection.spoke = True
    consumer = connection.consumers.get(queue)
    if consumer is None:
        return
    store, held = connection.hub.store_id.decode(), consumer.held
    by_token: dict[int, list[int]] = {}
    for id_ in ids:
        key = _key(id_, store)
        token = held.get(key)
        if token is not None:
            by_token.setdefault(token, []).append(key)
    connection.hub.engine.settlement.ack([ext.Held(token, keys) for token, keys in by_token.items()])


def plain(connection: Connection, message: Message) -> None:
    connection.spoke = True
    match message:
        case Consume(queue, count):
            _consume(connection, queue, count)
        case Requeue(queue, id_, ttl_s):
            consumer, key = _held(connection, queue, id_)
            if consumer is not None:
                connection.hub.engine.settlement.requeue(consumer, key, ttl_s or 0)
        case DeadLetter(queue, id_):
            consumer, key = _held(connection, queue, id_)
            if consumer is not None:
                connection.hub.engine.settlement.dead_letter(consumer, key)
        case _:
            raise ProtocolViolation("a dispatch (003) comes from the server, never from a client")


def extended(connection: Connection, message: Extended) -> Steps | None:
    """Carry out one request of the extension; what is left of it, if it takes several steps."""
    refused = _too_much(message)
    if refused is not None:
        connection.hub.engine.totals.limit_reached("request_size")
        connection.refuse(*refused)
        return None
    request = ext.unpack(message.type, message.payload)
    if message.type == Type.HELLO:
        _hello(connection, request)
        return None
    handler = _HANDLERS.get(message.type)
    if handler is None or not connection.extended:
        raise ProtocolViolation(f"message type {message.type:03d} without a hello before it")
    steps = _guarded(connection, request.tag, lambda: handler(connection, request))
    return steps if next(steps, steps) is not steps else None


def _guarded(connection: Connection, tag: int, action: Callable[[], Steps | None]) -> Steps:
    """A request and its steps; what is refused, or damaged, is answered and ends this request only."""
    try:
        yield from action() or ()
    except RequestRefused as refused:
        connection.refuse(tag, refused)
    except DamagedPage as exc:
        connection.refuse(tag, damaged(connection, exc))


def damaged(connection: Connection, error: DamagedPage) -> RequestRefused:
    """Close the queue that has the damaged page; what to answer whoever asked for it."""
    queue = connection.hub.engine.queues.isolate(error.queue, error)
    return RequestRefused("failed", damage_text(queue) if queue else str(error))


def _too_much(message: Extended) -> tuple[int, RequestRefused] | None:
    """Tag and refusal of a request that asks for more than one request may; found before it is decoded."""
    kind, payload = message.type, message.payload
    if len(payload) <= UNMEASURED_BYTES:
        return None
    if kind not in (Type.PUBLISH, Type.MOVE):
        limit = MAX_RECEIPTS_BYTES if kind in (Type.ACK, Type.RELEASE, Type.EXTEND) else MAX_SMALL_BYTES
        if len(payload) > limit:
            raise ProtocolViolation(
                f"a payload of {len(payload)} bytes in message type {kind:03d} is over the limit of {limit}"
            )
        return None
    tag, count = measure.tag_and_items(payload) or (0, 0)
    if count > MAX_ITEMS:
        text = f"{count} messages in one request are over the limit of {MAX_ITEMS}; send several requests"
        return tag, RequestRefused("bad-request", text)
    extras = measure.extra_bytes(payload, copies=kind == Type.MOVE)
    if extras > MAX_EXTRAS_BYTES:
        text = f"headers of {extras} bytes in one request are over the limit of {MAX_EXTRAS_BYTES}"
        return tag, RequestRefused("too-large", text, (extras, MAX_EXTRAS_BYTES))
    return None


def _consume(connection: Connection, queue: str, count: int) -> None:
    if not _rights(connection).may_read(queue):
        raise ProtocolViolation(f"a plain client may not consume from queue {queue}")
    engine = connection.hub.engine
    before = connection.consumers.pop(queue, None)
    if before is not None:
        # As php-mq's server does: a new request replaces the old one, and what it held goes back.
        engine.dispatcher.stop_consuming(before)
    if count:
        connection.consumers[queue] = engine.dispatcher.consume(connection, queue, count)


def _held(connection: Connection, queue: str, id_: str) -> tuple[PlainConsumer | None, int]:
    """The consumer on this connection that holds the message; anybody else's word does not count."""
    _rights(connection)
    consumer = connection.consumers.get(queue)
    key = _key(id_, connection.hub.store_id.decode())
    return (consumer, key) if consumer is not None and key in consumer.held else (None, 0)


def _key(id_: str, store: str) -> int:
    """The key in a message id of this store; 0, which is nobody's key, for anything else."""
    if not id_.startswith(store):
        return 0
    try:
        return int(id_[len(store) :], 16)
    except ValueError:
        return 0


def _hello(connection: Connection, hello: ext.Hello) -> None:
    hub = connection.hub
    if connection.spoke:
        raise ProtocolViolation("hello comes first, and once")
    rights = hub.access.rights_of(hello.token) if hello.token else None
    if not connection.listener.token and not (hello.token and hub.access.tokens):
        rights = hub.access.plain
    connection.client = hello.client[:100]
    connection.spoke = True
    if rights is None:
        connection.refuse_login()
        return
    connection.welcome(rights, hello.token)
    limits = hub.options.limits
    connection.write(
        ext.pack(
            ext.Welcome(
                ext.EXTENSION, hub.version, hub.store_id.decode(), limits.max_body_bytes,
                limits.max_payload_bytes, int(hub.options.lease_s * 1000), [ext.UNCOUNTED_RELEASE],
            )
        )
    )  # fmt: skip


def _publish(connection: Connection, request: ext.Publish) -> None:
    _writes(connection, request.queue)
    connection.hub.engine.intake.publish(request.queue, request.items, request.create)
    connection.reply(request.tag, len(request.items))


def _reserve(connection: Connection, request: ext.Reserve) -> None:
    _reads(connection, request.queue)
    engine, options = connection.hub.engine, connection.hub.options
    if request.limit == 0:
        connection.reply(request.tag, (0, 0, ()))
        return
    if connection.account.reserved >= options.max_held:
        raise engine.dispatcher.client_full(connection.account)
    if len(connection.waiting) >= options.max_waiting:
        engine.totals.limit_reached("waiting_reserves")
        text = f"{len(connection.waiting)} reserves of this connection wait already; read their replies first"
        raise RequestRefused("full", text)
    waiter = Waiter(
        connection, request.tag, min(request.limit, options.max_reserve),
        deadline_s=connection.hub.clock.monotonic_s() + min(request.wait_ms, MAX_WAIT_MS) / 1000,
        lease_s=min(request.lease_ms / 1000 or options.lease_s, options.max_lease_s),
        detached=request.detached,
    )  # fmt: skip
    engine.dispatcher.reserve(request.queue, waiter, request.create)


def _ack(connection: Connection, request: ext.Ack) -> Steps:
    return _settle(connection, request, connection.hub.engine.settlement.ack)


def _release(connection: Connection, request: ext.Release) -> Steps:
    release = connection.hub.engine.settlement.release
    return _settle(connection, request, partial(release, delay_ms=request.delay_ms, counted=request.counted))


def _extend(connection: Connection, request: ext.Extend) -> Steps:
    lease_s = min(request.lease_ms / 1000, connection.hub.options.max_lease_s)
    return _settle(connection, request, partial(connection.hub.engine.settlement.extend, lease_s=lease_s))


def _settle(
    connection: Connection,
    request: ext.Ack | ext.Release | ext.Extend,
    settle: Callable[[list[ext.Held]], list[ext.Held]],
) -> Steps:
    """Receipts a thousand at a time; the reply names those that were not held any more."""
    count = sum(1 + len(part.keys) for part in request.held)
    if count > 2 * MAX_RECEIPTS:
        connection.hub.engine.totals.limit_reached("request_size")
        text = f"more than {MAX_RECEIPTS} receipts in one request; send several requests"
        raise RequestRefused("bad-request", text)
    lapsed: list[ext.Held] = []
    batch: list[ext.Held] = []
    size = 0
    for part in request.held:
        for begin in range(0, len(part.keys), STEP_RECEIPTS):
            keys = part.keys[begin : begin + STEP_RECEIPTS]
            batch.append(ext.Held(part.token, keys))
            size += len(keys)
            if size >= STEP_RECEIPTS:
                lapsed += settle(batch)
                batch, size = [], 0
                yield
    lapsed += settle(batch)
    connection.reply(request.tag, lapsed)


def _move(connection: Connection, request: ext.Move) -> None:
    _writes(connection, request.queue)
    engine = connection.hub.engine
    try:
        lapsed = engine.settlement.move(request.queue, request.copies, request.create)
    except DamagedPage as exc:
        # Two queues take part: only a rollback of everything is sure to leave each message in one of them.
        engine.queues.isolate(exc.queue, exc)
        raise StoreError(str(exc)) from exc
    connection.reply(request.tag, lapsed)


def _depth(connection: Connection, request: ext.Depth) -> None:
    _reads(connection, request.queue)
    queue = connection.hub.engine.queues.find(request.queue)
    if queue is None:
        connection.reply(request.tag, [])
        return
    oldest_ms = connection.hub.engine.store.oldest_ms(queue.row)
    depth = ext.DepthReply(queue.ready, len(queue.reserved), queue.row.delayed, oldest_ms)
    connection.reply(request.tag, [depth])


def _browse(connection: Connection, request: ext.Browse) -> None:
    _reads(connection, request.queue)
    if connection.hub.engine.queues.find(request.queue) is None:
        connection.reply(request.tag, [])
        return
    queue = connection.hub.engine.queues.get(request.queue)
    found = queue.browse(
        max(request.after, queue.row.first),
        min(request.limit, MAX_BROWSE),
        MAX_BROWSE_BYTES,
        connection.hub.clock.epoch_ms(),
    )
    connection.reply(request.tag, found)


def _queues(connection: Connection, request: ext.Queues) -> Steps:
    rights = _rights(connection)
    found: list[ext.QueueMetrics] = []
    rows = metrics.of_queues(connection.hub.engine, rights.may_read)
    while page := list(islice(rows, STEP_QUEUES)):
        found += [row for row in page if row is not None]
        yield
    connection.reply(request.tag, found)


def _status(connection: Connection, request: ext.Status) -> None:
    _admin(connection)
    connection.reply(request.tag, metrics.of_server(connection.hub))


def _flush(connection: Connection, request: ext.Flush) -> None:
    _admin(connection)
    engine = connection.hub.engine
    engine.upkeep.flush(engine.queues.get(request.queue, create=False), _job_client(connection, request.tag))


def _transfer(connection: Connection, request: ext.Transfer) -> None:
    _admin(connection)
    engine = connection.hub.engine
    if request.source == request.target:
        raise RequestRefused("bad-request", "source and target are the same queue")
    source, target = engine.queues.get(request.source, create=False), engine.queues.get(request.target)
    engine.upkeep.transfer(source, target, request.limit, _job_client(connection, request.tag))


def _job_client(connection: Connection, tag: int) -> JobClient:
    return JobClient(partial(connection.reply, tag), partial(connection.refuse, tag))


def _admin(connection: Connection) -> None:
    if not _rights(connection).admin:
        raise RequestRefused("denied", "this token may not administer the broker")


def _reads(connection: Connection, queue: str) -> None:
    if not _rights(connection).may_read(queue):
        raise RequestRefused("denied", f"this token may not read queue {queue}")


def _writes(connection: Connection, queue: str) -> None:
    if not _rights(connection).may_write(queue):
        raise RequestRefused("denied", f"this token may not write to queue {queue}")


def _rights(connection: Connection) -> Rights:
    if connection.rights is None:
        raise ProtocolViolation("this listener requires a token; plain PHPMQ clients are not served on it")
    return connection.rights


_HANDLERS: Final[dict[Type, Callable[[Connection, Any], Steps | None]]] = {
    Type.PUBLISH: _publish,
    Type.RESERVE: _reserve,
    Type.ACK: _ack,
    Type.RELEASE: _release,
    Type.EXTEND: _extend,
    Type.MOVE: _move,
    Type.DEPTH: _depth,
    Type.BROWSE: _browse,
    Type.QUEUES: _queues,
    Type.STATUS: _status,
    Type.FLUSH: _flush,
    Type.TRANSFER: _transfer,
}
