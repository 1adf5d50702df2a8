# pyright: strict
"""A user's program. It must check as it is: with mypy --strict and with pyright's strict mode."""

from dataclasses import dataclass
from typing import ClassVar

from shinar import (
    Backoff,
    Context,
    ContractError,
    GiveUp,
    Handlers,
    Limits,
    Message,
    Policy,
    Producer,
    Redrive,
    Retry,
    ShinarError,
    Verdict,
    Worker,
    build,
    connect,
    decode,
    encode,
    errors,
    judge,
)
from shinar.schemas import AesGcm, Registry, protect, unprotect


@dataclass
class OrderCreated:
    urn: ClassVar[str] = "urn:babel:orders:created"
    order_id: int


handlers = Handlers()


@handlers.handler("urn:babel:orders:created")
def created(message: Message) -> None:
    order: int = message.data["order_id"]
    print(order, message.trace_id, message.meta.created_at)


@handlers.handler("urn:babel:orders:paid")
def paid(message: Message, context: Context) -> Retry | GiveUp | None:
    if context.attempt > 2:
        return GiveUp("the bank does not know this order")
    if context.is_replay:
        return None
    return Retry(delay_s=5.0)


@handlers.handler("urn:babel:orders:sent")
async def sent(message: Message) -> None:
    print(message.id)


def send(url: str) -> str:
    with Producer(url, queue="orders", strict=True) as producer:
        message: Message = producer.send("urn:babel:orders:created", {"order_id": 1}, delay_s=2.0)
        producer.send(OrderCreated(order_id=2))
    return message.id


def work(url: str) -> int:
    policy = Policy(max_attempts=5, backoff=Backoff(base_s=1.0, max_s=30.0))
    worker = Worker(url, handlers, policy=policy, concurrency=4, limits=Limits(until_empty=True))
    report = worker.run()
    return report.received + report.count("handled")


def read(body: bytes) -> Message | None:
    verdict: Verdict = judge(body)
    if verdict.accepts:
        return verdict.message
    try:
        return decode(body)
    except ContractError as exc:
        pointer: str | None = exc.pointer
        print(pointer, exc.code, exc.transient)
    except errors.BrokerUnavailable as exc:
        print(exc.broker, exc.queue)
    except ShinarError:
        raise
    return None


def look(url: str) -> None:
    broker = connect(url)
    for delivery in broker.browse("orders", 10):
        body: bytes = delivery.body
        print(len(body), delivery.headers.get("x"))
    broker.close()


def hide(registry: Registry, key: bytes) -> bytes:
    message = build("urn:babel:orders:created", {"email": "a@example.com"}, queue="orders")
    entry = registry.get(message.urn)
    if entry is not None:
        hidden = protect(entry, message.data, AesGcm(key), message_id=message.id)
        unprotect(entry, hidden, AesGcm(key), message_id=message.id)
    return encode(message)


def again(url: str) -> type[Redrive]:
    print(url)
    return Redrive
