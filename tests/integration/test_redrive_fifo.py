"""SQS FIFO queues: groups and their order survive a redrive, and what SQS would swallow is told before."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from redrive_letters import body, with_queue
from servers import Server
from shinar.brokers import Broker, Delivery, Outgoing, connect
from shinar.envelope import DeadReason, build, dead_letter, dead_letter_copy, encode, judge, redrive_copy
from shinar.redrive import JobState, Ledger, Redrive, Spec

Live = Callable[..., Server]

GROUPS = (b"customer-1", b"customer-2", b"customer-3")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


@pytest.fixture
def name() -> str:
    return f"o-{uuid.uuid4().hex[:8]}"


def died(broker: Broker, queue: str, dead: str, count: int) -> list[bytes]:
    """Messages that were sent a moment ago, taken, and put aside: their ids are inside the window."""
    bodies = [encode(build("urn:babel:orders:created", {"n": n}, queue=queue)) for n in range(count)]
    broker.publish(queue, [Outgoing(one, key=GROUPS[n % 3]) for n, one in enumerate(bodies)])
    block = dead_letter(DeadReason.FAILED, queue=queue, attempts=3, failed_ms=1_763_172_600_000, error="504")
    taken = 0
    while taken < count:
        batch = broker.reserve(queue, 10, 5.0)
        assert batch, "the planted messages did not come"
        copies = [Outgoing(dead_letter_copy(one.body, block), key=one.key) for one in batch]
        assert broker.move(dead, list(zip(batch, copies, strict=True))) == ()
        taken += len(batch)
    return bodies


def consumed(broker: Broker, queue: str, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        batch = broker.reserve(queue, 10, 5.0)
        assert batch, f"{len(found)} of {count} came"
        broker.ack(batch)
        found += batch
    return found


def numbers(found: list[Delivery], key: bytes) -> list[int]:
    messages = [judge(one.body).message for one in found if one.key == key]
    return [message.data["n"] for message in messages if message is not None]


@pytest.mark.timeout(120)
def test_groups_and_their_order_come_back(live_server: Live, ledger: Ledger, name: str) -> None:
    queue, dead = f"{name}.fifo", f"{name}-dlq.fifo"
    url = with_queue(live_server("elasticmq").url, dead)
    broker = connect(url)
    bodies = died(broker, queue, dead, 30)
    redrive = Redrive(url, ledger=ledger)
    plan = redrive.dry_run(reserve=True)
    # Reserved messages hide those behind them in their group, so a look may see fewer, never others.
    assert plan.why_skipped == {}, "copies within one broker have an id of their own"
    receipt = redrive.run()
    assert (receipt.published, receipt.adds_up) == (30, True)
    back = consumed(broker, queue, 30)
    broker.close()
    assert sorted(one.body for one in back) == sorted(bodies)
    for at, key in enumerate(GROUPS):
        assert numbers(back, key) == list(range(at, 30, 3))


@pytest.mark.timeout(120)
def test_what_is_behind_others_of_its_group_is_told(live_server: Live, ledger: Ledger, name: str) -> None:
    """Only every other message is meant; SQS does not hand out what is behind one that is held."""
    queue, dead = f"{name}.fifo", f"{name}-dlq.fifo"
    url = with_queue(live_server("elasticmq").url, dead) + "&lease_s=5"
    broker = connect(url)
    bodies = died(broker, queue, dead, 60)
    receipt = Redrive(url, Spec(where="data.n % 2 = 1"), ledger=ledger).run()
    if receipt.adds_up:
        assert receipt.published == 30  # all of them came at once
    else:
        assert receipt.state == JobState.PAUSED
        assert "behind others" in ledger.job(receipt.job).note
    sent = consumed(broker, queue, receipt.published)
    left = consumed(broker, dead, 60 - receipt.published)
    broker.close()
    assert all(n % 2 for key in GROUPS for n in numbers(sent, key))
    assert sorted([one.body for one in sent] + [redrive_copy(one.body) for one in left]) == sorted(bodies)
    for key in GROUPS:
        assert numbers(left, key) == sorted(numbers(left, key))


def test_a_second_redrive_inside_the_window_is_told(
    tmp_path: Path, live_server: Live, ledger: Ledger, name: str
) -> None:
    """From another broker a copy travels under meta.id: the first is taken, a second one would vanish."""
    source = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    target = with_queue(live_server("elasticmq").url, f"{name}.fifo")
    old = [_old(body(n, "orders")) for n in range(3)]
    broker = connect(source)

    def die() -> None:
        broker.publish("orders.dlq", [Outgoing(one, key=b"k") for one in old])

    die()
    assert Redrive(source, to=target, ledger=ledger).run().published == 3
    fifo = connect(target)
    consumed(fifo, f"{name}.fifo", 3)
    die()
    again = Redrive(source, to=target, ledger=ledger)
    assert again.dry_run().why_skipped == {"dedup window": 3}
    receipt = again.run()
    assert (receipt.published, receipt.why_skipped) == (0, {"dedup window": 3})
    assert len(list(broker.browse("orders.dlq"))) == 3, "they stay where they are"
    mended = Redrive(source, Spec(sets=("data.again = true",)), to=target, ledger=ledger).run()
    assert mended.published == 3
    assert len(consumed(fifo, f"{name}.fifo", 3)) == 3, "a new id is not swallowed"
    fifo.close()
    broker.close()


def test_the_window_is_known_by_the_queue_each_goes_to(
    tmp_path: Path, live_server: Live, ledger: Ledger, name: str
) -> None:
    """`--to` names a broker only: each message goes to the queue it came from, and some of those are FIFO."""
    source = f"sqlite://{tmp_path}/q.db?queue=orders.dlq"
    broker = connect(source)
    fresh = [body(n, f"{name}{ending}") for n, ending in ((0, ".fifo"), (1, ""))]
    broker.publish("orders.dlq", [Outgoing(one) for one in fresh])
    plan = Redrive(source, Spec(any_target=True), to=live_server("elasticmq").url, ledger=ledger).dry_run()
    broker.close()
    assert plan.targets == {name: 1}
    assert plan.why_skipped == {"dedup window": 1}


def _old(dead: bytes) -> bytes:
    """As if it had been made long before any window."""
    document = msgspec.json.decode(dead)
    document["meta"]["created_at"] = 1_700_000_000_000
    return msgspec.json.encode(document)
