"""A stand-in for Azure Service Bus, for tests: enough AMQP 1.0 for the unmodified azure-servicebus SDK.

    python servicebus_standin.py --port P [--dedup-window S] [--lock S] [--key SAS_KEY]

It is not the service. It answers `$cbs`, locks, counts, settles, dead-letters, defers, schedules, peeks,
renews, detects duplicates, expires and refuses what is too large; queues come into being when a link
names them. It has no topics, rules, transactions, TLS, HTTP management, or storage that outlives it.
Sessions are there as far as one receiver per session needs them.
"""

from __future__ import annotations

import argparse
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from proton import (
    Condition,
    Delivery,
    Endpoint,
    Handler,
    Link,
    Message,
    Terminus,
    symbol,
)
from proton.reactor import Container
from servicebus_message import stored, unpack, wire
from servicebus_queue import DEAD_LETTERS, Queue, Settings
from servicebus_requests import LOCK_LOST, VENDOR, manage, now_ms, token_is_valid

TICK_S = 0.02
CREDIT = 1000
MANAGEMENT = "/$management"
SESSION_FILTER = symbol(f"{VENDOR}:session-filter")
#: How long the service lets a receiver wait for any session, unless it says.
SESSION_WAIT_MS = 65_000
#: .NET ticks between year 1 and 1970.
TICKS_EPOCH = 621_355_968_000_000_000

# -- links


@dataclass(slots=True)
class Consumer:
    link: Link
    queue: Queue
    #: None on a queue without sessions.
    session: str | None = None
    #: Waiting for a session until then.
    until_ms: int = 0

    @property
    def forgetful(self) -> bool:
        return self.link.remote_snd_settle_mode == Link.SND_SETTLED


class Standin(Handler):
    def __init__(self, port: int, settings: Settings, key: str, only: frozenset[str]) -> None:
        super().__init__()
        self._only = only
        self._port = port
        self._settings = settings
        self._key = key
        self._queues: dict[str, Queue] = {}
        self._consumers: list[Consumer] = []
        #: Where answers to requests on a node go: (connection, node) -> link.
        self._answers: dict[tuple[int, str], Link] = {}
        self._trusted: set[int] = set()

    def queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            # `orders/$DeadLetterQueue` is made with `orders`, whichever is asked for first.
            base = name.removesuffix(DEAD_LETTERS)
            graveyard = Queue(base + DEAD_LETTERS, self._settings, None)
            self._queues[base] = Queue(base, self._settings, graveyard)
            self._queues[base + DEAD_LETTERS] = graveyard
            found = self._queues[name]
        return found

    def _is_known(self, node: str) -> bool:
        base = node.removesuffix(MANAGEMENT).removesuffix(DEAD_LETTERS)
        return not self._only or base in self._only or node == "$cbs"

    # -- connections, sessions, links

    def on_reactor_init(self, event: Any) -> None:
        self._container = event.container
        self._container.listen(f"127.0.0.1:{self._port}")
        self._container.schedule(TICK_S, self)
        print("ready", flush=True)

    def on_connection_remote_open(self, event: Any) -> None:
        event.connection.open()

    def on_session_remote_open(self, event: Any) -> None:
        event.session.open()

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()
        self._forget(event.connection)

    def on_transport_closed(self, event: Any) -> None:
        if event.connection is not None:
            self._forget(event.connection)

    def on_session_remote_close(self, event: Any) -> None:
        event.session.close()

    def _forget(self, connection: Any) -> None:
        mark = hash(connection)
        for consumer in [c for c in self._consumers if hash(c.link.connection) == mark]:
            self._drop(consumer)
        self._answers = {key: link for key, link in self._answers.items() if key[0] != mark}
        self._trusted.discard(mark)

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        node = address(link.remote_source.address if link.is_sender else link.remote_target.address)
        trusted = not self._key or hash(event.connection) in self._trusted
        if not trusted and node != "$cbs":
            refuse(
                link,
                "amqp:unauthorized-access",
                "Unauthorized access. 'Send' or 'Listen' claim(s) are required.",
            )
        elif not self._is_known(node):
            refuse(link, "amqp:not-found", f"The messaging entity '{node}' could not be found.")
        elif link.is_receiver:
            link.target.address = link.remote_target.address
            link.max_message_size = self._settings.max_bytes
            if self._settings.max_batch_bytes:
                limit = symbol(f"{VENDOR}:max-message-batch-size")
                link.properties = {limit: self._settings.max_batch_bytes}
            link.open()
            link.flow(CREDIT)
        elif node == "$cbs" or node.endswith(MANAGEMENT):
            link.source.address = link.remote_source.address
            link.open()
            self._answers[hash(event.connection), node] = link
        else:
            self._consume(link, self.queue(node))

    def _consume(self, link: Link, queue: Queue) -> None:
        consumer = Consumer(link, queue)
        wanted = filters(link)
        link.source.address = link.remote_source.address
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        self._consumers.append(consumer)
        if SESSION_FILTER not in wanted:
            link.open()
            return
        wait_ms = (link.remote_properties or {}).get(symbol(f"{VENDOR}:timeout"), SESSION_WAIT_MS)
        consumer.until_ms = now_ms() + int(wait_ms)
        self._grant_session(consumer, wanted[SESSION_FILTER])

    def _grant_session(self, consumer: Consumer, name: str | None) -> None:
        """Open the link on the session it wants, or on any that has messages; else keep it waiting."""
        taken = {c.session for c in self._consumers if c.queue is consumer.queue}
        free = [name] if name else consumer.queue.waiting_sessions()
        chosen = next((session for session in free if session not in taken), None)
        link = consumer.link
        if chosen is not None:
            consumer.session, consumer.until_ms = chosen, 0
            link.source.filter.put_object({SESSION_FILTER: chosen})
            until = TICKS_EPOCH + (now_ms() + self._settings.lock_ms) * 10_000
            link.properties = {symbol(f"{VENDOR}:locked-until-utc"): until}
            link.open()
        elif name:
            refuse(
                link,
                f"{VENDOR}:session-cannot-be-locked",
                f"The session {name} is locked by another receiver.",
            )
            self._consumers.remove(consumer)
        elif consumer.until_ms <= now_ms():
            refuse(link, f"{VENDOR}:timeout", "No session became available in time.")
            self._consumers.remove(consumer)

    def on_link_remote_close(self, event: Any) -> None:
        self._detached(event.link)
        event.link.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self._detached(event.link)
        event.link.detach()

    def _detached(self, link: Link) -> None:
        for consumer in [c for c in self._consumers if c.link == link]:
            self._drop(consumer)

    def _drop(self, consumer: Consumer) -> None:
        # Message locks outlive the link; a session's messages go back with it.
        self._consumers.remove(consumer)
        if consumer.session is not None:
            for message in consumer.queue.peek(1, 1_000_000):
                if message.token and message.session == consumer.session:
                    consumer.queue.abandon(message.token, now_ms(), counted=False)

    # -- deliveries

    def on_timer_task(self, event: Any) -> None:
        at_ms = now_ms()
        for queue in list(self._queues.values()):
            queue.tick(at_ms)
        for consumer in [c for c in self._consumers if c.until_ms]:
            self._grant_session(consumer, None)
        self._pump()
        self._container.schedule(TICK_S, self)

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender:
            self._pump()

    def _pump(self) -> None:
        for consumer in list(self._consumers):
            link = consumer.link
            if consumer.until_ms or not link.state & Endpoint.LOCAL_ACTIVE:
                continue
            while link.credit > 0:
                message = consumer.queue.take(now_ms(), consumer.session, forget=consumer.forgetful)
                if message is None:
                    break
                delivery = link.delivery(message.token or uuid.uuid4().hex[:16])
                link.send(wire(message))
                if consumer.forgetful:
                    delivery.settle()
                link.advance()
            if link.drain_mode:
                link.drained()

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.link.is_receiver:
            if delivery.readable and not delivery.partial:
                self._received(delivery)
        elif delivery.updated:
            self._settled(delivery)

    def _received(self, delivery: Delivery) -> None:
        link = delivery.link
        payload = link.recv(delivery.pending) or b""
        link.advance()
        link.flow(1)
        node = address(link.remote_target.address)
        if len(payload) > self._settings.max_bytes:
            reject(
                delivery,
                "amqp:link:message-size-exceeded",
                f"The received message (size {len(payload)}) is too large.",
            )
            return
        if node == "$cbs" or node.endswith(MANAGEMENT):
            self._request(link, node, payload)
        else:
            for part in unpack(payload):
                self.queue(node).put(stored(part, now_ms()), now_ms())
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        self._pump()

    def _settled(self, delivery: Delivery) -> None:
        consumer = next((c for c in self._consumers if c.link == delivery.link), None)
        state = delivery.remote_state
        if consumer is None or not state:
            if delivery.settled:
                delivery.settle()
            return
        queue, token, at_ms = consumer.queue, delivery.tag, now_ms()
        if state == Delivery.ACCEPTED:
            done = queue.complete(token, at_ms)
        elif state == Delivery.REJECTED:
            done = queue.dead_letter(token, at_ms, *reason_of(delivery.remote.condition))
        elif state == Delivery.MODIFIED and delivery.remote.undeliverable:
            done = queue.defer(token, at_ms)
        else:
            # Every abandon counts, whatever its delivery-failed says; a release does not.
            done = queue.abandon(token, at_ms, counted=state == Delivery.MODIFIED)
        if done:
            delivery.update(state)
            delivery.settle()
        else:
            reject(delivery, LOCK_LOST, "The lock supplied is invalid or has expired.")
        self._pump()

    # -- requests

    def _request(self, link: Link, node: str, payload: bytes) -> None:
        request = Message()
        request.decode(payload)
        if node == "$cbs":
            known = not self._key or token_is_valid(str(request.body), self._key)
            if known:
                self._trusted.add(hash(link.connection))
            answer = Message(
                properties={"status-code": 202 if known else 401, "status-description": "as told"}
            )
        else:
            queue = self.queue(node.removesuffix(MANAGEMENT))
            operation = str((request.properties or {}).get("operation", "")).removeprefix(f"{VENDOR}:")
            code, body, condition = manage(queue, operation, request.body or {})
            answer = Message(
                body=body, properties={"statusCode": code, "statusDescription": condition or "OK"}
            )
            if condition:
                answer.properties["errorCondition"] = symbol(condition)
        answer.correlation_id = request.id
        reply = self._answers.get((hash(link.connection), node))
        if reply is not None:
            sent = reply.send(answer)
            sent.settle()


def address(text: str | None) -> str:
    text = text or ""
    return urlsplit(text).path.lstrip("/") if "://" in text else text


def filters(link: Link) -> dict[Any, Any]:
    data = link.remote_source.filter
    data.rewind()
    return dict(data.get_object() or {}) if data.next() else {}


def reason_of(condition: Condition | None) -> tuple[str, str]:
    info = {str(name): text for name, text in (condition.info or {}).items()} if condition else {}
    return info.get("DeadLetterReason") or "", info.get("DeadLetterErrorDescription") or ""


def reject(delivery: Delivery, condition: str, text: str) -> None:
    # All three fields: the SDK waits for ever for an error without `info`.
    delivery.local.condition = Condition(condition, text, {symbol("stand-in"): True})
    delivery.update(Delivery.REJECTED)
    delivery.settle()


def refuse(link: Link, condition: str, text: str) -> None:
    # An attach without source and target announces the refusal that follows.
    link.source.type = link.target.type = Terminus.UNSPECIFIED
    link.open()
    link.condition = Condition(condition, text)
    link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="An AMQP 1.0 stand-in for Azure Service Bus, for tests.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--dedup-window", type=float, default=0.0, metavar="S", help="0: no duplicate detection"
    )
    parser.add_argument(
        "--lock", type=float, default=60.0, metavar="S", help="how long a message stays locked"
    )
    parser.add_argument("--max-deliveries", type=int, default=10)
    parser.add_argument("--max-bytes", type=int, default=256 * 1024)
    parser.add_argument("--max-batch-bytes", type=int, default=0, help="lower than that, as premium has it")
    parser.add_argument(
        "--key", default="", help="SAS key that tokens must be signed with; none: all are welcome"
    )
    parser.add_argument(
        "--only", default="", metavar="A,B", help="the queues there are; none given: any name is one"
    )
    asked = parser.parse_args()
    only = frozenset(asked.only.split(",")) - {""}
    settings = Settings(
        lock_ms=int(asked.lock * 1000),
        max_deliveries=asked.max_deliveries,
        dedup_ms=int(asked.dedup_window * 1000),
        max_bytes=asked.max_bytes,
        max_batch_bytes=asked.max_batch_bytes,
    )
    Container(Standin(asked.port, settings, asked.key, only)).run()


if __name__ == "__main__":
    main()
