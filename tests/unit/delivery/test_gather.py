"""Publishes of many threads in one batch: each caller gets its own outcome, whatever happens to the batch."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from shinar.brokers import Broker, Outgoing, connect
from shinar.brokers.memory import MemoryBroker
from shinar.delivery.gather import MAX_GATHERED, Gathering
from shinar.errors import BodyTooLarge, BrokerUnavailable, Closed, PublishFailed


class Slow:
    """A memory broker whose first publish waits until others have queued up behind it, and whose later ones
    can be made to fail as a server makes them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.traits = broker.traits
        self.entered, self.open = threading.Event(), threading.Event()
        self.batches: list[list[bytes]] = []
        self.fail: Callable[[Sequence[Outgoing]], Exception | None] = lambda _: None

    def publish(self, queue: str, messages: Sequence[Outgoing]) -> None:
        self.entered.set()
        assert self.open.wait(10)
        self.batches.append([message.body for message in messages])
        error = self.fail(messages)
        if error is not None:
            raise error
        self.broker.publish(queue, messages)

    def close(self) -> None:
        self.broker.close()


@pytest.fixture
def slow() -> Slow:
    return Slow(connect(f"memory://{uuid.uuid4().hex}"))


def gathered(slow: Slow, bodies: list[list[bytes]], queues: Sequence[str] = ()) -> list[Future[None]]:
    """One call in flight, and these behind it; their outcomes."""
    line = Gathering(lambda: slow, "producer")  # type: ignore[arg-type,return-value]  # what it needs of one
    with ThreadPoolExecutor(len(bodies) + 1) as threads:
        first = threads.submit(line.publish, "q", [Outgoing(b"first")])
        assert slow.entered.wait(10)
        rest = []
        for number, body in enumerate(bodies):
            queue = queues[number] if queues else "q"
            rest.append(threads.submit(line.publish, queue, [Outgoing(text) for text in body]))
            while len(line._waiting) < number + 1:
                pass
        slow.open.set()
        first.result(10)
    return rest


def test_what_waits_is_published_in_one_batch(slow: Slow) -> None:
    done = gathered(slow, [[b"a"], [b"b", b"c"], [b"d"]])
    assert [future.exception() for future in done] == [None] * 3
    assert slow.batches == [[b"first"], [b"a", b"b", b"c", b"d"]]


def test_batches_are_of_one_queue_and_bounded(slow: Slow) -> None:
    many = [b"x"] * (MAX_GATHERED - 1)
    gathered(slow, [[b"a"], many, [b"b"], [b"c"]], ["q", "q", "q", "other"])
    assert [len(batch) for batch in slow.batches] == [1, MAX_GATHERED, 1, 1]


def test_each_caller_learns_which_of_its_own_were_not_confirmed(slow: Slow) -> None:
    slow.fail = lambda batch: (
        PublishFailed("the server said no", total=4, unconfirmed=(2, 3)) if len(batch) == 4 else None
    )
    first, second, third = gathered(slow, [[b"a"], [b"b", b"c"], [b"d"]])
    assert first.exception() is None
    for future, total, unconfirmed in ((second, 2, (1,)), (third, 1, (0,))):
        error = future.exception()
        assert isinstance(error, PublishFailed)
        assert (error.total, error.unconfirmed) == (total, unconfirmed)


def test_a_message_that_is_refused_fails_its_caller_only(slow: Slow) -> None:
    slow.fail = lambda batch: BodyTooLarge(3, 2) if any(m.body == b"big" for m in batch) else None
    first, second, third = gathered(slow, [[b"a"], [b"big"], [b"d"]])
    assert (first.exception(), third.exception()) == (None, None)
    assert isinstance(second.exception(), BodyTooLarge)
    assert [d.body for d in slow.broker.browse("q")] == [b"first", b"a", b"d"]


def test_a_broker_that_is_gone_fails_all_of_the_batch(slow: Slow) -> None:
    slow.fail = lambda batch: BrokerUnavailable("gone") if len(batch) == 2 else None
    done = gathered(slow, [[b"a"], [b"b"]])
    assert [type(future.exception()) for future in done] == [BrokerUnavailable] * 2


def test_an_interrupted_thread_leaves_nobody_waiting(slow: Slow) -> None:
    slow.fail = lambda batch: KeyboardInterrupt() if len(batch) == 2 else None  # type: ignore[return-value]
    done = gathered(slow, [[b"a"], [b"b"]])
    kinds = sorted(type(future.exception(10)).__name__ for future in done)
    assert kinds == ["KeyboardInterrupt", "PublishFailed"]


def test_nothing_is_published_after_close() -> None:
    line = Gathering(lambda: connect(f"memory://{uuid.uuid4().hex}"), "producer")
    line.close()
    with pytest.raises(Closed):
        line.publish("q", [Outgoing(b"late")])


def test_a_forked_process_opens_a_connection_of_its_own() -> None:
    opened: list[MemoryBroker] = []

    def opener() -> Broker:
        broker = connect(f"memory://{uuid.uuid4().hex}")
        assert isinstance(broker, MemoryBroker)
        opened.append(broker)
        return broker

    line = Gathering(opener, "producer")
    line.publish("q", [Outgoing(b"parent")])
    line._talking.acquire()  # as a thread of the parent may, at the moment of the fork
    child = os.fork()
    if child == 0:
        code = 1
        try:
            line.publish("q", [Outgoing(b"child")])
            code = 0 if len(opened) == 2 and opened[1].depth("q").ready == 1 else 2
        finally:
            os._exit(code)
    line._talking.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert opened[0].depth("q").ready == 1
