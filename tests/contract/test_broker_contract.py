"""The broker contract, once for every broker, written against Traits and nothing else.

A broker that needs another test here, or a changed one, does not fulfil the contract.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cases import Case, nothing_left, take, with_options
from shinar.brokers import Broker, Delivery, Outgoing
from shinar.envelope import build, encode
from shinar.errors import ShinarError, Unsupported

TESTS = str(Path(__file__).parents[1])
#: A delay of two seconds, where the broker counts in whole ones; and a little for its clock.
LEAST_OF_TWO_S = 0.9


def body(n: int = 0) -> bytes:
    return encode(build("urn:babel:orders:created", {"n": n, "text": "größe/✓"}, queue="orders"))


def outgoing(count: int) -> list[Outgoing]:
    return [Outgoing(body(n)) for n in range(count)]


def test_bytes_arrive_as_they_were_sent(case: Case) -> None:
    broker = case.connect()
    sent = outgoing(20)
    broker.publish(case.queue, sent)
    got = take(broker, case.queue, 20)
    assert sorted(d.body for d in got) == sorted(m.body for m in sent)
    if broker.traits.ordered:
        assert [d.body for d in got] == [m.body for m in sent]
    assert {d.queue for d in got} == {case.queue}
    assert broker.ack(got) == ()
    assert nothing_left(broker, case.queue)


def test_any_bytes_can_be_a_body(case: Case) -> None:
    broker = case.connect()
    odd = [Outgoing(b"\xff\xfe\x00raw"), Outgoing(b'{"a":"\\ud800"}'), Outgoing(b" ")]
    if not broker.traits.binary:
        with pytest.raises(ShinarError):
            broker.publish(case.queue, odd[:1])
        return
    broker.publish(case.queue, odd)
    got = take(broker, case.queue, len(odd))
    assert sorted(d.body for d in got) == sorted(m.body for m in odd)
    broker.ack(got)


def test_an_empty_queue_is_empty_at_once(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, [Outgoing(body())])
    broker.ack(take(broker, case.queue, 1))
    started = time.monotonic()
    assert broker.reserve(case.queue, 5, 0.0) == []
    assert time.monotonic() - started < 5.0


def test_limit_is_kept_and_publishing_nothing_is_fine(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, [])
    broker.publish(case.queue, outgoing(7))
    first = take(broker, case.queue, 3)
    assert len(first) == 3
    rest = take(broker, case.queue, 4)
    assert len({d.body for d in first + rest}) == 7
    broker.ack(first + rest)
    assert nothing_left(broker, case.queue)


def test_what_is_reserved_is_not_handed_to_another(case: Case) -> None:
    if case.traits.replayable:
        pytest.skip("consumers of a log share partitions, not messages")
    one, other = case.connect(), case.connect()
    one.publish(case.queue, outgoing(4))
    held = take(one, case.queue, 4)
    assert nothing_left(other, case.queue)
    one.ack(held)
    assert nothing_left(other, case.queue)


def test_ack_is_idempotent(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, outgoing(2))
    got = take(broker, case.queue, 2)
    assert broker.ack(got) == ()
    broker.ack(got)
    assert nothing_left(broker, case.queue)


def test_acks_out_of_order_settle_exactly_their_own(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, outgoing(5))
    got = take(broker, case.queue, 5)
    assert broker.ack([got[3], got[1]]) == ()
    broker.release([got[0], got[2], got[4]])
    again = take(broker, case.queue, 3)
    assert sorted(d.body for d in again) == sorted(got[i].body for i in (0, 2, 4))
    broker.ack(again)
    assert nothing_left(broker, case.queue)


def test_release_hands_back_the_same_bytes_and_headers(case: Case) -> None:
    broker = case.connect()
    headers = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"} if broker.traits.headers else {}
    message = Outgoing(body(), headers=headers)
    broker.publish(case.queue, [message])
    (first,) = take(broker, case.queue, 1)
    assert dict(first.headers) == headers
    assert broker.release([first]) == ()
    (second,) = take(broker, case.queue, 1)
    assert second.body == message.body
    assert dict(second.headers) == headers
    base = broker.traits.count_base
    if base is not None and broker.traits.release_counts:
        assert (first.native_count, second.native_count) == (base, base + 1)
    broker.ack([second])
    assert nothing_left(broker, case.queue)


def test_what_nobody_began_to_handle_goes_back_as_if_it_had_never_been_handed_out(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, outgoing(2))
    held = take(broker, case.queue, 2)
    assert broker.release(held, count=False) == ()
    again = take(broker, case.queue, 2)
    assert sorted(d.body for d in again) == sorted(d.body for d in held)
    if broker.traits.release_uncounted:
        assert {d.native_count for d in again} == {broker.traits.count_base}
    elif broker.traits.count_base is not None:
        counts = {d.native_count for d in again}
        assert counts == {broker.traits.count_base + 1}, "the trait says that it cannot be taken back"
    broker.ack(again)
    assert nothing_left(broker, case.queue)


def test_a_delayed_message_comes_late_but_comes(case: Case) -> None:
    if not case.traits.delay:
        pytest.skip("no delay")
    broker = case.connect(*(("retry_tiers_ms=2000,4000",) if case.traits.replayable else ()))
    started = time.monotonic()
    broker.publish(case.queue, [Outgoing(body(1), delay_s=2.0), Outgoing(body(2))])
    seen: dict[bool, float] = {}
    for _ in range(2):
        (one,) = take(broker, case.queue, 1)
        seen[b'"n":1' in one.body] = time.monotonic() - started
        broker.ack([one])
    assert seen[False] < seen[True]
    assert seen[True] > LEAST_OF_TWO_S
    assert nothing_left(broker, case.queue)


def test_a_delayed_release_comes_back_later(case: Case) -> None:
    if not case.traits.release_delay:
        pytest.skip("no delayed release")
    broker = case.connect(*(("retry_tiers_ms=2000,4000",) if case.traits.replayable else ()))
    broker.publish(case.queue, [Outgoing(body())])
    (first,) = take(broker, case.queue, 1)
    started = time.monotonic()
    assert broker.release([first], delay_s=2.0) == ()
    (again,) = take(broker, case.queue, 1)
    assert time.monotonic() - started > LEAST_OF_TWO_S
    assert again.body == first.body
    broker.ack([again])
    assert nothing_left(broker, case.queue)


def test_an_unsettled_message_comes_back_after_its_lease(case: Case) -> None:
    if case.traits.lease_s is None:
        pytest.skip("reservations last as long as the connection")
    broker = case.connect("lease_s=2")
    assert broker.traits.lease_s == 2
    broker.publish(case.queue, [Outgoing(body())])
    (lost,) = take(broker, case.queue, 1)
    assert lost.lease_until_ms is not None
    (again,) = take(broker, case.queue, 1)
    assert time.time() * 1000 > lost.lease_until_ms - 100, "no sooner than its lease ended"
    counted = lost.body.replace(b'"attempts":0', b'"attempts":1')
    assert again.body == (counted if broker.traits.lapse_counts else lost.body)
    assert broker.ack([lost]) == (lost,), "a late ack is told apart and touches nothing"
    assert broker.ack([again]) == ()
    assert nothing_left(broker, case.queue)


def test_an_unsettled_message_comes_back_when_the_connection_ends(case: Case) -> None:
    if case.traits.lease_s is not None:
        pytest.skip("reservations end with their lease")
    crashed, heir = case.connect(), case.connect()
    crashed.publish(case.queue, outgoing(3))
    held = take(crashed, case.queue, 3)
    crashed.ack(held[:1])
    crashed.close()
    again = take(heir, case.queue, 2)
    assert sorted(d.body for d in again) == sorted(d.body for d in held[1:])
    heir.ack(again)


#: Reserves everything, then dies without a word, as a worker does whose handler ends the process.
KILLED_CONSUMER = """
import os, signal, sys
from cases import take
from shinar.brokers import connect
broker = connect(sys.argv[1])
held = take(broker, sys.argv[2], 2)
print(len(held), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_native_count_has_grown_after_a_consumer_was_killed(case: Case) -> None:
    """What bounds a message that kills every worker: the count is right before a handler is called."""
    if case.traits.count_base is None or not case.traits.shared:
        pytest.skip("the broker does not count deliveries, or serves one process only")
    short = ("lease_s=2",) if case.traits.lease_s is not None else ()
    broker = case.connect(*short)
    broker.publish(case.queue, outgoing(2))
    for kills in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", KILLED_CONSUMER, with_options(case.url, *short), case.queue],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((TESTS, os.environ["PYTHONPATH"]))},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (done.stdout.strip(), done.returncode) == ("2", -signal.SIGKILL), done.stderr
        if kills == 2:
            again = take(broker, case.queue, 2)
            counts, most = {d.native_count for d in again}, case.traits.count_base + kills
            if case.traits.crash_counts:
                assert counts == {most}
            else:
                assert counts <= set(range(case.traits.count_base, most + 1))
            broker.ack(again)


def test_after_a_restart_a_receipt_either_settles_its_message_or_has_lapsed(case: Case) -> None:
    """One cheap call tells which deliveries are still ours: the worker drops the others unstarted."""
    if case.server is None or not case.server.durable:
        pytest.skip("no server whose queues outlive a restart")
    broker = case.connect()
    broker.publish(case.queue, outgoing(3))
    held = take(broker, case.queue, 3)
    case.server.stop()
    with contextlib.suppress(ShinarError):
        broker.reserve(case.queue, 1, 0.5)
    case.server.start()
    fresh = [] if case.traits.lasting_lease else _until_it_answers(broker, case.queue, 3)
    lapsed = _until_it_answers(broker, case.queue, 0, lambda: broker.extend(held, 30.0))
    assert sorted(d.body for d in lapsed) == sorted(d.body for d in fresh)
    if case.traits.lasting_lease:
        assert lapsed == []
    assert {d.body for d in broker.ack(held)} == {d.body for d in lapsed}
    assert broker.ack(fresh) == ()
    assert nothing_left(broker, case.queue)


def _until_it_answers(
    broker: Broker, queue: str, count: int, call: Callable[[], Iterable[Delivery]] | None = None
) -> list[Delivery]:
    """Deliveries of a broker that reconnects by being asked again."""
    found: list[Delivery] = []
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        try:
            if call is not None:
                return list(call())
            found += broker.reserve(queue, count - len(found), 4.0)
            if not found and broker.traits.replayable:
                return found  # the group's membership survived, and with it the receipts
            if len(found) >= count:
                return found
        except ShinarError:
            time.sleep(0.5)
    return found


def test_an_extended_lease_lasts_longer(case: Case) -> None:
    if case.traits.lease_s is None:
        pytest.skip("reservations last as long as the connection")
    broker = case.connect("lease_s=2")
    broker.publish(case.queue, [Outgoing(body())])
    (held,) = take(broker, case.queue, 1)
    assert broker.extend([held], 20) == ()
    assert broker.reserve(case.queue, 1, 3.5) == []
    assert broker.ack([held]) == ()
    assert nothing_left(broker, case.queue)


def test_move_puts_the_copy_there_and_settles_the_original(case: Case) -> None:
    broker = case.connect()
    target = case.queue + broker.traits.dlq_suffix
    headers = {"x-why": "because"} if broker.traits.headers else {}
    broker.publish(case.queue, outgoing(3))
    got = take(broker, case.queue, 3)
    copies = [(d, Outgoing(d.body.replace(b'"n"', b'"moved"'), headers=headers)) for d in got]
    assert broker.move(target, copies) == ()
    moved = take(broker, target, 3)
    assert sorted(d.body for d in moved) == sorted(copy.body for _, copy in copies)
    assert all(dict(d.headers) == headers for d in moved)
    broker.ack(moved)
    assert nothing_left(broker, case.queue)


def test_a_lapsed_delivery_is_not_moved_twice(case: Case) -> None:
    if not case.traits.atomic_move:
        pytest.skip("copy and settle are two steps here")
    broker = case.connect()
    target = case.queue + broker.traits.dlq_suffix
    broker.publish(case.queue, [Outgoing(body())])
    (held,) = take(broker, case.queue, 1)
    assert broker.move(target, [(held, Outgoing(held.body))]) == ()
    assert broker.move(target, [(held, Outgoing(held.body))]) == (held,)
    assert len(take(broker, target, 2, timeout_s=1.5)) == 1


def test_browse_consumes_nothing(case: Case) -> None:
    broker = case.connect()
    sent = outgoing(5)
    broker.publish(case.queue, sent)
    if not broker.traits.browse:
        with pytest.raises(Unsupported):
            list(broker.browse(case.queue))
        return
    for _ in range(2):
        assert [d.body for d in broker.browse(case.queue)] == [m.body for m in sent]
    assert len(list(broker.browse(case.queue, 2))) == 2
    got = take(broker, case.queue, 5)
    assert sorted(d.body for d in got) == sorted(m.body for m in sent)
    base = broker.traits.count_base
    if base is not None:
        assert {d.native_count for d in got} == {base}, "looking does not age a message"
    broker.ack(got)


def test_depth_tells_what_the_broker_knows_and_no_more(case: Case) -> None:
    broker = case.connect()
    broker.publish(case.queue, outgoing(3))
    if not broker.traits.depth:
        assert broker.depth(case.queue).ready is None
        return
    assert _settles_at(broker, case.queue, "ready", 3)
    got = take(broker, case.queue, 3)
    broker.ack(got)
    assert _settles_at(broker, case.queue, "ready", 0)


def test_depth_shows_what_lapsed_or_fell_due_though_nobody_reserves(case: Case) -> None:
    """The pipeline plans by it, and reserves only when there is something."""
    if case.traits.lease_s is None or not case.traits.depth:
        pytest.skip("no lease, or no depth")
    broker = case.connect("lease_s=2")
    broker.publish(case.queue, [Outgoing(body(1))])
    take(broker, case.queue, 1)
    late = [Outgoing(body(2), delay_s=2.0)] if broker.traits.delay else []
    broker.publish(case.queue, late)
    assert _settles_at(broker, case.queue, "ready", 1 + len(late))


def _settles_at(broker: object, queue: str, name: str, value: int) -> bool:
    """Several brokers count in the background, so give them a moment."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if getattr(broker.depth(queue), name) == value:  # type: ignore[attr-defined]  # by name
            return True
        time.sleep(0.1)
    return False


def test_a_waiting_reserve_is_woken_by_a_publish(case: Case) -> None:
    consumer, producer = case.connect(), case.connect()
    producer.publish(case.queue, [Outgoing(body())])
    consumer.ack(take(consumer, case.queue, 1))  # joined, declared, warm

    timer = threading.Timer(0.5, producer.publish, (case.queue, [Outgoing(body(9))]))
    timer.start()
    started = time.monotonic()
    got = consumer.reserve(case.queue, 1, 20.0)
    waited_s = time.monotonic() - started
    timer.join()
    assert len(got) == 1
    assert waited_s < 15.0
    consumer.ack(got)


def test_a_pickled_receipt_settles_from_elsewhere(case: Case) -> None:
    if not case.traits.portable_receipts:
        pytest.skip("receipts belong to their connection")
    reader, settler = case.connect(), case.connect()
    reader.publish(case.queue, outgoing(2))
    held = pickle.loads(pickle.dumps(take(reader, case.queue, 2)))
    assert settler.ack(held[:1]) == ()
    assert settler.release(held[1:]) == ()
    (again,) = take(settler, case.queue, 1)
    assert again.body == held[1].body
    settler.ack([again])
    assert nothing_left(reader, case.queue)


def test_a_thousand_arrive_once_each(case: Case) -> None:
    broker = case.connect()
    sent = outgoing(1000)
    broker.publish(case.queue, sent)
    got = []
    while len(got) < 1000:
        batch = broker.reserve(case.queue, 100, 20.0)
        assert batch, f"only {len(got)} came"
        assert broker.ack(batch) == ()
        got += batch
    assert sorted(d.body for d in got) == sorted(m.body for m in sent)
    assert nothing_left(broker, case.queue)


def test_a_large_body_and_an_odd_queue_name(case: Case) -> None:
    broker = case.connect()
    queue = f"{case.queue}_Big-1"
    message = Outgoing(encode(build("urn:babel:files:stored", {"text": "é" * 60_000})))
    broker.publish(queue, [message])
    (got,) = take(broker, queue, 1)
    assert got.body == message.body
    broker.ack([got])


def test_a_key_travels_with_its_message(case: Case) -> None:
    if not case.traits.key:
        pytest.skip("no keys")
    broker = case.connect()
    broker.publish(case.queue, [Outgoing(body(), key=b"customer-42")])
    (got,) = take(broker, case.queue, 1)
    assert got.key == b"customer-42"
    broker.ack([got])
