"""What each message of a client does: rights are checked here, then the engine is called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shinar.errors import ProtocolViolation
from shinar.phpmq.protocol import Consume, DeadLetter, Extended, Message, Requeue, Type
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.server import figures, settle, upkeep
from shinar.phpmq.server.options import Refused
from shinar.phpmq.server.queue import Consumer, Waiter

if TYPE_CHECKING:
    from shinar.phpmq.server.access import Rights
    from shinar.phpmq.server.connection import Connection

#: Longest a reserve may wait; clients ask again.
MAX_WAIT_MS: Final = 60_000
#: Messages one browse returns.
MAX_BROWSE: Final = 1_000


def send(connection: Connection, queue: str, bodies: list[tuple[bytes, int]]) -> None:
    if not _rights(connection).may_write(queue):
        raise ProtocolViolation(f"a plain client may not send to queue {queue}")
    connection.spoke = True
    connection.hub.engine.send(queue, bodies)


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
    settle.ack(connection.hub.engine, [ext.Held(token, keys) for token, keys in by_token.items()])


def plain(connection: Connection, message: Message) -> None:
    connection.spoke = True
    match message:
        case Consume(queue, count):
            _consume(connection, queue, count)
        case Requeue(queue, id_, ttl_s):
            consumer, key = _held(connection, queue, id_)
            if consumer is not None:
                settle.requeue(connection.hub.engine, consumer, key, ttl_s or 0)
        case DeadLetter(queue, id_):
            consumer, key = _held(connection, queue, id_)
            if consumer is not None:
                settle.dead_letter(connection.hub.engine, consumer, key)
        case _:
            raise ProtocolViolation("a dispatch (003) comes from the server, never from a client")


def extended(connection: Connection, message: Extended) -> None:
    request = ext.unpack(message.type, message.payload)
    if message.type == Type.HELLO:
        _hello(connection, request)
        return
    handler = _HANDLERS.get(message.type)
    if handler is None or not connection.extended:
        raise ProtocolViolation(f"message type {message.type:03d} without a hello before it")
    try:
        handler(connection, request)
    except Refused as refused:
        connection.refuse(request.tag, refused)


def _consume(connection: Connection, queue: str, count: int) -> None:
    if not _rights(connection).may_read(queue):
        raise ProtocolViolation(f"a plain client may not consume from queue {queue}")
    engine = connection.hub.engine
    before = connection.consumers.pop(queue, None)
    if before is not None:
        # As php-mq's server does: a new request replaces the old one, and what it held goes back.
        engine.stop_consuming(before)
    if count:
        connection.consumers[queue] = engine.consume(connection, queue, count)


def _held(connection: Connection, queue: str, id_: str) -> tuple[Consumer | None, int]:
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
        connection.write(
            ext.pack(ext.Failure(0, "denied", "this listener asks for a token; none or a wrong one came"))
        )
        connection.leave_after_reply = True
        return
    connection.welcome(rights)
    limits = hub.options.limits
    connection.write(
        ext.pack(
            ext.Welcome(
                ext.EXTENSION, hub.version, hub.store_id.decode(), limits.max_body_bytes,
                limits.max_payload_bytes, int(hub.options.lease_s * 1000),
            )
        )
    )  # fmt: skip


def _publish(connection: Connection, request: ext.Publish) -> None:
    _writes(connection, request.queue)
    connection.hub.engine.publish(request.queue, request.items, request.create)
    connection.reply(request.tag, len(request.items))


def _reserve(connection: Connection, request: ext.Reserve) -> None:
    _reads(connection, request.queue)
    options = connection.hub.options
    lease_s = min(request.lease_ms / 1000 or options.lease_s, options.max_lease_s)
    limit = min(request.limit, options.max_reserve, options.max_held - connection.holding)
    if request.limit == 0:
        connection.reply(request.tag, (0, 0, ()))
        return
    if limit <= 0:
        raise Refused("full", f"this connection holds {connection.holding} messages; settle some first")
    deadline_s = connection.hub.clock.monotonic_s() + min(request.wait_ms, MAX_WAIT_MS) / 1000
    waiter = Waiter(
        connection, request.tag, limit, deadline_s=deadline_s, lease_s=lease_s, detached=request.detached
    )
    connection.hub.engine.reserve(request.queue, waiter, request.create)


def _ack(connection: Connection, request: ext.Ack) -> None:
    connection.reply(request.tag, settle.ack(connection.hub.engine, request.held))


def _release(connection: Connection, request: ext.Release) -> None:
    connection.reply(request.tag, settle.release(connection.hub.engine, request.held, request.delay_ms))


def _extend(connection: Connection, request: ext.Extend) -> None:
    lease_s = min(request.lease_ms / 1000, connection.hub.options.max_lease_s)
    connection.reply(request.tag, settle.extend(connection.hub.engine, request.held, lease_s))


def _move(connection: Connection, request: ext.Move) -> None:
    _writes(connection, request.queue)
    lapsed = settle.move(connection.hub.engine, request.queue, request.copies, request.create)
    connection.reply(request.tag, lapsed)


def _depth(connection: Connection, request: ext.Depth) -> None:
    _reads(connection, request.queue)
    queue = connection.hub.engine.find(request.queue)
    if queue is None:
        connection.reply(request.tag, [])
        return
    oldest_ms = connection.hub.engine.store.oldest_ms(queue.row)
    depth = ext.DepthReply(queue.ready, queue.inflight, queue.row.delayed, oldest_ms)
    connection.reply(request.tag, [depth])


def _browse(connection: Connection, request: ext.Browse) -> None:
    _reads(connection, request.queue)
    engine = connection.hub.engine
    queue = engine.find(request.queue)
    limit = min(request.limit, MAX_BROWSE)
    after = max(request.after, queue.row.first) if queue else 0
    found = engine.peek(queue, after, limit, connection.hub.browse_bytes) if queue else []
    connection.reply(request.tag, found)


def _queues(connection: Connection, request: ext.Queues) -> None:
    rights = _rights(connection)
    found = [one for one in figures.of_queues(connection.hub.engine) if rights.may_read(one.name)]
    connection.reply(request.tag, found)


def _status(connection: Connection, request: ext.Status) -> None:
    _admin(connection)
    connection.reply(request.tag, figures.of_server(connection.hub))


def _flush(connection: Connection, request: ext.Flush) -> None:
    _admin(connection)
    engine = connection.hub.engine
    queue = engine.queue(request.queue, create=False)
    engine.jobs.append(upkeep.flush(engine, queue, partial(connection.reply, request.tag)))


def _transfer(connection: Connection, request: ext.Transfer) -> None:
    _admin(connection)
    engine = connection.hub.engine
    if request.source == request.target:
        raise Refused("bad-request", "source and target are the same queue")
    source, target = engine.queue(request.source, create=False), engine.queue(request.target)
    done = partial(connection.reply, request.tag)
    engine.jobs.append(upkeep.transfer(engine, source, target, request.limit, done))


def _admin(connection: Connection) -> None:
    if not _rights(connection).admin:
        raise Refused("denied", "this token may not administer the broker")


def _reads(connection: Connection, queue: str) -> None:
    if not _rights(connection).may_read(queue):
        raise Refused("denied", f"this token may not read queue {queue}")


def _writes(connection: Connection, queue: str) -> None:
    if not _rights(connection).may_write(queue):
        raise Refused("denied", f"this token may not write to queue {queue}")


def _rights(connection: Connection) -> Rights:
    if connection.rights is None:
        raise ProtocolViolation("this listener asks for a token: plain PHPMQ clients are not served on it")
    return connection.rights


_HANDLERS: Final[dict[Type, Callable[[Connection, Any], None]]] = {
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
