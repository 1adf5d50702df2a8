"""Redis against a real server: what the contract suite cannot ask of every broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from babelqueue import BabelQueue
from babelqueue.redis_transport import RedisTransport

import servers
from shinar.brokers import Outgoing, connect
from shinar.brokers.redis.queue import RedisSettings, Reservation, open_queue
from shinar.clock import PinnedClock
from shinar.envelope import build, encode, retry_copy
from shinar.errors import (
    AccessDenied,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ProtocolViolation,
    ShinarError,
    Unsupported,
)
from shinar.idempotency import open_store

URN = "urn:babel:orders:created"
LAYOUTS = ["processing", "laravel"]
pytestmark = pytest.mark.live("redis")


@pytest.fixture
def queue() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def raw(server: servers.Server) -> Iterator[redis.Redis]:
    with closing(redis.Redis.from_url(server.url)) as client:
        yield client


def ready_key(queue: str, layout: str) -> str:
    return f"queues:{queue}" if layout == "laravel" else queue


def outgoing(n: int = 0) -> Outgoing:
    return Outgoing(encode(build(URN, {"n": n, "empty": [], "text": "a/b ☃", "big": 12345678901234567})))


# -- other people's code on the same queue


def php_moves_due(raw: redis.Redis, queue: str) -> int:
    """As InitPHP/Queue does it: a due member of `<queue>:delayed` is the body, whole."""
    due = raw.zrangebyscore(f"{queue}:delayed", "-inf", int(time.time()))
    for member in due:
        if raw.zrem(f"{queue}:delayed", member):
            raw.rpush(queue, member)
    return len(due)


def old_member(body: bytes) -> bytes:
    """How Shinar wrote a delayed message before it stored the bare value."""
    return uuid.uuid4().hex.encode() + b":" + body


def test_delayed_messages_of_other_libraries_and_of_earlier_versions_arrive_whole(server, raw, queue):
    bodies = [outgoing(n).body for n in range(6)]
    theirs = b'{"job":"urn:babel:orders:created","data":{},"attempts":0,"x":"' + b"y" * 40 + b'"}'
    hex_but_upper = b"0123456789ABCDEF0123456789abcdef:not a token"
    with closing(connect(server.url)) as broker:
        now_s = time.time()
        for body in (theirs, hex_but_upper, b"short", old_member(bodies[0]), old_member(bodies[1])):
            raw.zadd(f"{queue}:delayed", {body: int(now_s)})
        broker.publish(queue, [Outgoing(body, delay_s=0.2) for body in bodies[2:]])
        wanted = sorted([theirs, hex_but_upper, b"short", *bodies])
        got = []
        while len(got) < len(wanted):
            batch = broker.reserve(queue, 20, 3.0)
            assert batch, f"only {len(got)} came"
            got += batch
        assert sorted(d.body for d in got) == wanted
        assert broker.ack(got) == ()
        assert broker.reserve(queue, 1, 0.3) == []


def test_other_libraries_find_the_bare_body_in_our_delayed_messages(server, raw, queue):
    messages = [outgoing(n) for n in range(3)]
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [Outgoing(m.body, delay_s=0.1) for m in messages[:2]])
        (held,) = _one(broker, queue, messages[2])
        broker.release([held], 0.1)
        assert sorted(raw.zrange(f"{queue}:delayed", 0, -1)) == sorted(m.body for m in messages)
        time.sleep(1.2)
        assert php_moves_due(raw, queue) == 3
        assert sorted(raw.lrange(queue, 0, -1)) == sorted(m.body for m in messages)


def _one(broker, queue, message):
    broker.publish(queue, [message])
    return broker.reserve(queue, 1, 1.0)


def test_equal_bodies_delayed_together_all_arrive_and_none_early(server, raw, queue):
    """A sorted set holds a member once: the second copy waits beside it."""
    message = outgoing()
    like_a_token = b"0123456789abcdef0123456789abcdef:a body that looks like an old member"
    with closing(connect(server.url)) as broker:
        started = time.monotonic()
        broker.publish(queue, [Outgoing(message.body, delay_s=1.0), Outgoing(message.body, delay_s=1.0)])
        broker.publish(queue, [Outgoing(message.body, delay_s=2.0), Outgoing(like_a_token, delay_s=1.0)])
        assert raw.zrange(f"{queue}:delayed", 0, -1) == [message.body]
        assert (broker.depth(queue).ready, broker.depth(queue).delayed) == (0, 4)
        got = []
        while len(got) < 4:
            batch = broker.reserve(queue, 4, 5.0)
            assert batch, f"only {len(got)} came"
            assert time.monotonic() - started > (1.9 if len(got) + len(batch) == 4 else 0.95)
            got += batch
        assert sorted(d.body for d in got) == sorted([message.body] * 3 + [like_a_token])
        assert broker.ack(got) == ()
        assert raw.exists(f"{queue}:delayed", f"{queue}:delayed:twins") == 0


def test_a_pool_of_both_libraries_loses_and_truncates_nothing_though_workers_die(server, raw, queue):
    """They delay bare bodies, we retry with a delay, both move what is due, and some of ours are killed."""
    bodies = {outgoing(n).body for n in range(200)}
    ours = [body for n, body in enumerate(sorted(bodies)) if n % 2]
    for body in bodies - set(ours):
        raw.zadd(f"{queue}:delayed", {body: int(time.time()) + 1})
    with closing(connect(f"{server.url}?lease_s=1")) as broker:
        broker.publish(queue, [Outgoing(body) for body in ours])
    killed = """
import os, sys
from shinar.brokers import connect
broker = connect(sys.argv[1])
held = broker.reserve(sys.argv[2], 40, 5.0)
broker.release(held[:20], 1.5)
os.kill(os.getpid(), 9)
"""
    seen: list[bytes] = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", killed, f"{server.url}?lease_s=1", queue], check=False)
        assert done.returncode == -signal.SIGKILL
        php_moves_due(raw, queue)
    deadline = time.monotonic() + 30
    with closing(connect(f"{server.url}?lease_s=30")) as broker:
        while len(seen) < len(bodies) and time.monotonic() < deadline:
            php_moves_due(raw, queue)
            got = broker.reserve(queue, 50, 0.2)
            broker.ack(got)
            seen += [d.body for d in got]
    assert sorted(seen) == sorted(bodies)


def test_without_headers_every_stored_value_is_a_bare_body(server, raw, queue):
    message = Outgoing(outgoing().body, headers={"traceparent": "x"})
    with closing(connect(f"{server.url}?headers=off")) as plain, closing(connect(server.url)) as other:
        assert plain.traits.headers is False
        plain.publish(queue, [message])
        assert raw.lrange(queue, 0, -1) == [message.body]
        with pytest.raises(Unsupported):
            plain.publish(queue, [Outgoing(message.body, headers={"bq-replay-bypass": "1"})])
        plain.ack(plain.reserve(queue, 1, 1.0))
        # What others wrote with headers is still read, and keeps them when it is retried.
        other.publish(queue, [message])
        (framed,) = plain.reserve(queue, 1, 1.0)
        assert (framed.body, dict(framed.headers)) == (message.body, {"traceparent": "x"})
        plain.move(queue, [(framed, Outgoing(retry_copy(framed.body), headers=framed.headers))])
        (again,) = plain.reserve(queue, 1, 1.0)
        assert dict(again.headers) == {"traceparent": "x"}
        plain.ack([again])


def test_messages_without_a_deadline_are_told_once_at_the_start(server, raw, queue, caplog):
    raw.rpush(f"{queue}:processing", outgoing(1).body, outgoing(2).body)
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(3)])
        mine = broker.reserve(queue, 1, 1.0)
        broker.reserve(queue, 1, 0.0)
        broker.ack(mine)
    (told,) = [r.getMessage() for r in caplog.records if "no deadline" in r.getMessage()]
    assert "2 messages" in told
    for name in ("?adopt_s=", "InitPHP", "Node", "Go", "Java"):
        assert name in told
    caplog.clear()
    raw.delete(f"{queue}:processing")
    with closing(connect(server.url)) as broker:
        broker.publish(queue, [outgoing(3)])
        broker.ack(broker.reserve(queue, 1, 1.0))
    assert not caplog.records


def test_an_adopted_message_is_counted_when_asked(server, raw, queue):
    body = outgoing().body
    poison = b"not an envelope"
    raw.rpush(f"{queue}:processing", body, poison)
    with closing(connect(f"{server.url}?adopt_s=1&adopt_counts=1&lease_s=1")) as broker:
        got = []
        while len(got) < 2:
            batch = broker.reserve(queue, 2, 5.0)
            assert batch
            got += batch
        assert sorted(d.body for d in got) == sorted([retry_copy(body), poison])
        # A reservation of our own that lapses is not an adoption.
        again = broker.reserve(queue, 2, 5.0)
        assert {d.body for d in again} <= {retry_copy(body), poison}
    with pytest.raises(ConfigError):
        connect(f"{server.url}?adopt_counts=1")


def test_browse_shows_what_lapsed_or_fell_due_though_nobody_reserves(server, raw, queue):
    for layout in LAYOUTS:
        with closing(connect(f"{server.url}?lease_s=1&layout={layout}")) as broker:
            broker.publish(queue, [outgoing(0)])
            assert len(broker.reserve(queue, 1, 1.0)) == 1
            broker.publish(queue, [outgoing(1), Outgoing(outgoing(2).body, delay_s=1)])
            time.sleep(2.1)
            found = list(broker.browse(queue))
            assert [json.loads(d.body)["data"]["n"] for d in found] == [1, 0, 2]
            assert json.loads(found[1].body)["attempts"] == (1 if layout == "laravel" else 0)
            assert len(list(broker.browse(queue, 2))) == 2
            assert broker.depth(queue).ready == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_public_sdk_sends_and_we_consume(server, raw, queue, layout):
    theirs = BabelQueue(transport=RedisTransport(server.url, laravel_compat=layout == "laravel"), queue=queue)
    for n in range(5):
        theirs.publish(URN, {"n": n, "text": "größe/✓"})
    stored = raw.lrange(ready_key(queue, layout), 0, -1)
    with closing(connect(f"{server.url}?layout={layout}")) as ours:
        got = ours.reserve(queue, 10, 0.0)
        assert [d.body for d in got] == stored
        assert ours.ack(got) == ()
        assert (ours.depth(queue).ready, ours.depth(queue).reserved) == (0, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_send_and_the_public_sdk_consumes(server, raw, queue, layout):
    with closing(connect(f"{server.url}?layout={layout}")) as ours:
        ours.publish(queue, [outgoing(n) for n in range(5)])
        theirs = BabelQueue(
            transport=RedisTransport(server.url, laravel_compat=layout == "laravel"), queue=queue
        )
        seen: list[int] = []
        theirs.handler(URN)(lambda data, meta: seen.append(data["n"]))
        theirs.consume(max_messages=5, timeout=0.1)
        assert seen == [0, 1, 2, 3, 4]
        assert ours.depth(queue).ready == ours.depth(queue).reserved == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_message_the_public_sdk_left_behind_is_recovered_by_us(server, queue, layout):
    transport = RedisTransport(server.url, laravel_compat=layout == "laravel", retry_after=0)
    with closing(connect(f"{server.url}?layout={layout}")) as ours:
        message = outgoing()
        ours.publish(queue, [message])
        assert transport.pop(queue, 0.0) is not None  # and it dies with it
        (got,) = ours.reserve(queue, 1, 5.0)
        assert json.loads(got.body)["data"]["n"] == 0
        ours.ack([got])


def test_what_a_consumer_without_deadlines_holds_is_seen_and_adopted_when_asked(server, raw, queue):
    """As the Go and Java SDKs reserve: a move, and nothing else is written."""
    with closing(connect(server.url)) as ours, closing(connect(f"{server.url}?adopt_s=2")) as adopting:
        ours.publish(queue, [outgoing(0), *[outgoing(1)] * 2])
        (mine,) = ours.reserve(queue, 1, 1.0)
        alive, dead = (raw.lmove(queue, f"{queue}:processing", "LEFT", "RIGHT") for _ in range(2))
        assert alive == dead
        assert ours.depth(queue).reserved == 3
        assert adopting.reserve(queue, 3, 0.0) == []
        raw.lrem(f"{queue}:processing", 1, alive)  # its ack
        (got,) = adopting.reserve(queue, 3, 10.0)
        assert got.body == dead
        assert adopting.reserve(queue, 3, 2.5) == []
        assert (ours.ack([mine]), adopting.ack([got])) == ((), ())
        depth = ours.depth(queue)
        assert (depth.ready, depth.reserved) == (0, 0)


def test_who_only_looks_adopts_too(server, raw, queue):
    with closing(connect(f"{server.url}?adopt_s=1")) as adopting:
        adopting.publish(queue, [outgoing()])
        raw.lmove(queue, f"{queue}:processing", "LEFT", "RIGHT")
        assert adopting.depth(queue).reserved == 1
        deadline = time.monotonic() + 10
        while adopting.depth(queue).ready == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert adopting.depth(queue).ready == 1


def test_adopting_is_for_the_processing_layout():
    with pytest.raises(ConfigError, match="deadlines for all"):
        connect("redis://127.0.0.1:1?layout=laravel&adopt_s=60")


def test_headers_travel_both_ways_in_the_shared_frame(server, queue):
    transport = RedisTransport(server.url)
    headers = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "x-note": "größe"}
    message = outgoing()
    with closing(connect(server.url)) as ours:
        ours.publish(queue, [Outgoing(message.body, headers=headers)])
        theirs = transport.pop(queue, 0.0)
        assert theirs.body.encode() == message.body
        assert theirs.headers == headers
        transport.ack(theirs)
        transport.publish_with_headers(queue, message.body.decode(), headers)
        (got,) = ours.reserve(queue, 1, 0.0)
        assert (got.body, dict(got.headers)) == (message.body, headers)
        assert ours.ack([got]) == ()


def test_a_dead_letter_of_ours_is_read_by_the_public_sdk(server, queue):
    with closing(connect(server.url)) as ours:
        ours.publish(queue, [outgoing()])
        (got,) = ours.reserve(queue, 1, 0.0)
        ours.move(f"{queue}.dlq", [(got, Outgoing(got.body))])
    assert RedisTransport(server.url).pop(f"{queue}.dlq", 0.0).body.encode() == got.body


# -- the laravel layout keeps bytes


@pytest.mark.parametrize(
    ("stored", "reserved"),
    [
        (b'{"a":[],"n":12345678901234567,"u":"x\\/y","attempts":0}', b"1}"),
        (b'{"attempts": 9 ,"a":{}}', None),
        (b'{"data":{"attempts":5},"attempts":1,"z":[{"attempts":7}]}', None),
        (b'{"s":"\\"attempts\\":3","attempts":2}', None),
        (b'{"\\u0061ttempts":4,"x":"}{]["}', None),
        (b'{"attempts":1,"attempts":6}', None),
        (b'{"e":"\\\\","attempts":0}', None),
        (b'{"k\\"attempts":1,"attempts":0,"t":1}', None),
        (b'{"attempts":8,"k\\"attempts":1}', None),
    ],
)
def test_counting_changes_the_digits_and_nothing_else(server, raw, queue, stored, reserved):
    subject = open_queue(raw, queue, PinnedClock(), RedisSettings(layout="laravel"))
    subject.push([stored])
    found = subject.reserve_one()
    assert found.raw == stored
    before, after = json.loads(stored), json.loads(found.handle)
    assert after["attempts"] == before["attempts"] + 1
    assert {**after, "attempts": 0} == {**before, "attempts": 0}
    assert len(found.handle) - len(stored) in (0, 1)
    assert found.counted


@pytest.mark.parametrize(
    "stored", [b"", b"nonsense", b"[]", b"7", b'{"attempts":"1"}', b'{"attempts":0,"n":1e400}', b"\xff"]
)
def test_what_cannot_be_counted_is_reserved_as_it_is_and_marked(server, queue, stored):
    with closing(connect(f"{server.url}?layout=laravel")) as broker:
        broker.publish(queue, [Outgoing(stored)])
        (got,) = broker.reserve(queue, 1, 0.0)
        assert got.body == stored
        assert got.refused
        assert broker.ack([got]) == ()


def test_identical_messages_are_all_delivered(server, queue):
    """The sorted set holds a member once; the second copy waits until the first is settled."""
    with closing(connect(f"{server.url}?layout=laravel")) as broker:
        message = outgoing()
        broker.publish(queue, [message] * 3)
        for left in (2, 1, 0):
            got = broker.reserve(queue, 3, 1.0)
            assert [d.body for d in got] == [message.body]
            assert broker.depth(queue).ready == left
            assert broker.ack(got) == ()
        broker.publish(queue, [Outgoing(message.body, delay_s=60)] * 2)
        assert (broker.depth(queue).ready, broker.depth(queue).delayed) == (1, 1)


def test_a_twin_that_waits_hides_nothing_behind_it(server, queue):
    with closing(connect(f"{server.url}?layout=laravel")) as broker:
        twin, other = outgoing(1), outgoing(2)
        broker.publish(queue, [twin, twin, twin, other])
        for message in (twin, other):
            assert [d.body for d in broker.reserve(queue, 1, 0.0)] == [message.body]
        assert broker.reserve(queue, 1, 0.0) == []
        assert broker.depth(queue).ready == 2


def test_a_waiting_reserve_does_not_spin_while_a_twin_is_out(server, raw, queue):
    with closing(connect(f"{server.url}?layout=laravel")) as broker:
        broker.publish(queue, [outgoing()] * 1)
        (held,) = broker.reserve(queue, 1, 0.0)
        broker.publish(queue, [Outgoing(held.body)])
        before = raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        assert broker.reserve(queue, 1, 1.0) == []
        after = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert after - before < 30
        broker.ack([held])


def test_a_late_release_touches_nothing(server, raw, queue):
    clock = PinnedClock(1000.0)
    for layout in LAYOUTS:
        subject = open_queue(raw, queue, clock, RedisSettings(layout=layout, retry_after_s=10))
        subject.push([outgoing().body])
        late = subject.reserve_one()
        clock.advance(11)
        current = subject.reserve_one()
        assert subject.release(late, 5.0, retry_copy(late.raw)) is False
        assert subject.dead_letter(late, b"record") is False
        assert subject.depth() == (0, 1, 0)
        assert subject.ack(current) is True
        assert subject.depth() == (0, 0, 0)


def test_laravel_headers_are_dropped_but_never_the_replay_mark(server, queue):
    with closing(connect(f"{server.url}?layout=laravel")) as broker:
        broker.publish(queue, [Outgoing(outgoing().body, headers={"traceparent": "x"})])
        with pytest.raises(Unsupported):
            broker.publish(queue, [Outgoing(outgoing().body, headers={"bq-replay-bypass": "1"})])
        assert len(broker.reserve(queue, 5, 0.0)) == 1


# -- dead workers

WORKER = """
import os, signal, sys
from shinar.brokers import connect
broker = connect(sys.argv[1])
got = broker.reserve(sys.argv[2], 7, 5.0)
broker.ack(got[:2])
print(len(got), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_killed_worker_held_goes_to_the_next(server, queue, layout):
    url = f"{server.url}?layout={layout}&lease_s=2"
    with closing(connect(url)) as broker:
        sent = [outgoing(n) for n in range(10)]
        broker.publish(queue, sent)
        done = subprocess.run([sys.executable, "-c", WORKER, url, queue], stdout=subprocess.PIPE, check=False)
        assert done.returncode == -signal.SIGKILL
        assert done.stdout.strip() == b"7"
        seen: list[int] = []
        while len(seen) < 8 and (got := broker.reserve(queue, 10, 6.0)):
            seen += [json.loads(d.body)["data"]["n"] for d in got]
            broker.ack(got)
        assert sorted(seen) == list(range(2, 10))
        assert broker.depth(queue).reserved == 0


# -- waiting


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plain_push_by_anybody_wakes_a_waiting_reserve(server, raw, queue, layout):
    """No token, no cooperation: just RPUSH, as any other SDK or a shell would."""
    with closing(connect(f"{server.url}?layout={layout}")) as broker:
        broker.reserve(queue, 1, 0.1)
        before = raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        timer = threading.Timer(0.4, raw.rpush, (ready_key(queue, layout), outgoing().body))
        timer.start()
        (got,) = broker.reserve(queue, 1, 20.0)
        timer.join()
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 4, "woken, not polling"
        broker.ack([got])


@pytest.mark.parametrize("tracking", [True, False])
def test_a_delayed_message_is_on_time_for_who_waits_already(server, raw, queue, tracking):
    with closing(connect(server.url)) as broker, closing(connect(server.url)) as sender:
        broker._watch._tracking = tracking
        broker.reserve(queue, 1, 0.05)
        sent: list[float] = []

        def send() -> None:
            sent.append(time.monotonic())
            sender.publish(queue, [Outgoing(outgoing().body, delay_s=0.2)])

        timer = threading.Timer(0.1, send)
        timer.start()
        (got,) = broker.reserve(queue, 1, 20.0)
        took_s = time.monotonic() - sent[0]
        timer.join()
        broker.ack([got])
        assert 0.2 <= took_s < 0.6, "the slices of a wait are a second long"


def test_who_waits_is_not_busy_with_messages_for_later(server, raw, queue):
    with closing(connect(server.url)) as broker, closing(connect(server.url)) as sender:
        broker.reserve(queue, 1, 0.05)
        before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        later = [Outgoing(outgoing().body, delay_s=60)]
        timer = threading.Timer(0.1, lambda: [sender.publish(queue, later) for _ in range(100)])
        timer.start()
        assert broker.reserve(queue, 1, 0.8) == []
        timer.join()
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 105


def test_without_the_right_to_track_it_still_waits(server, raw, queue):
    user = f"u{uuid.uuid4().hex[:8]}"
    raw.acl_setuser(
        user, enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-client"]
    )
    try:
        url = server.url.replace("redis://", f"redis://{user}:secret@")
        with closing(connect(url)) as broker:
            timer = threading.Timer(0.4, raw.rpush, (queue, b"x"))
            timer.start()
            assert [d.body for d in broker.reserve(queue, 1, 20.0)] == [b"x"]
            timer.join()
    finally:
        raw.acl_deluser(user)


# -- trouble


def test_a_wrong_password_is_told_and_not_shown(server, raw):
    user = f"u{uuid.uuid4().hex[:8]}"
    raw.acl_setuser(user, enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
    try:
        with pytest.raises(AccessDenied) as caught:
            connect(server.url.replace("redis://", f"redis://{user}:wr0ng-secret@"))
        assert "wr0ng-secret" not in f"{caught.value!r} {caught.value.__cause__!r}"
    finally:
        raw.acl_deluser(user)


def test_a_user_without_rights_is_told(server, raw, queue):
    user = f"u{uuid.uuid4().hex[:8]}"
    raw.acl_setuser(user, enabled=True, passwords=["+x"], keys=["other*"], categories=["+@all"])
    try:
        with closing(connect(server.url.replace("redis://", f"redis://{user}:x@"))) as broker:
            with pytest.raises(AccessDenied):
                broker.publish(queue, [outgoing()])
    finally:
        raw.acl_deluser(user)


def test_nobody_there():
    with pytest.raises(BrokerUnavailable):
        connect("redis://127.0.0.1:1/0/orders")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_key_of_another_type_loses_nothing(server, raw, queue, layout):
    with closing(connect(f"{server.url}?layout={layout}")) as broker:
        broker.publish(queue, [outgoing(n) for n in range(3)])
        suffix = ":reserved" if layout == "laravel" else ":processing"
        raw.set(ready_key(queue, layout) + suffix, "mine")
        with pytest.raises(ProtocolViolation):
            broker.reserve(queue, 3, 0.0)
        assert raw.llen(ready_key(queue, layout)) == 3
        raw.delete(ready_key(queue, layout) + suffix)
        assert len(broker.reserve(queue, 3, 0.0)) == 3


def test_a_push_whose_answer_is_late_is_not_sent_twice(server, raw, queue):
    with closing(connect(f"{server.url}?timeout_s=0.3")) as broker:
        server.pause()
        try:
            with pytest.raises(BrokerUnavailable):
                broker.publish(queue, [outgoing()])
        finally:
            server.resume()
        # What was on the wire is read now; a second try of the client's would be, too.
        broker.publish(queue, [outgoing()])
        assert raw.llen(queue) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_memory_is_told_and_consuming_goes_on(layout, queue):
    own = private()
    try:
        client = redis.Redis.from_url(own.url)
        with closing(client), closing(connect(f"{own.url}?layout={layout}")) as broker:
            broker.publish(queue, [outgoing(n) for n in range(50)])
            client.config_set("maxmemory", "1mb")
            with pytest.raises(BrokerFull):
                broker.publish(queue, [outgoing(n) for n in range(50)])
            got = broker.reserve(queue, 100, 0.0)
            assert len(got) == 50
            assert broker.ack(got) == ()
            client.config_set("maxmemory", "0")
            broker.publish(queue, [outgoing()])
            assert broker.depth(queue).ready == 1
    finally:
        own.stop()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["delayed", "lapsed", "extend", "adopt"])
def test_full_memory_stops_no_recovery(layout, what, queue):
    """One due or lapsed entry would keep everybody from draining the server."""
    if what == "adopt" and layout == "laravel":
        return
    own = private()
    option = {"lapsed": "&lease_s=1", "adopt": "&adopt_s=1"}.get(what, "")
    try:
        client = redis.Redis.from_url(own.url)
        with closing(client), closing(connect(f"{own.url}?layout={layout}{option}")) as broker:
            broker.publish(queue, [outgoing(n) for n in range(3)])
            held = broker.reserve(queue, 1, 0.0)
            if what == "delayed":
                broker.publish(queue, [Outgoing(outgoing(9).body, delay_s=0.1)])
            if what == "adopt":
                client.lmove(queue, f"{queue}:processing", "LEFT", "RIGHT")
            if what != "extend":
                time.sleep(1.1 if what != "lapsed" else 2.1)
            client.config_set("maxmemory", "1")
            if what == "extend":
                assert broker.extend(held, 90) == ()
            found = broker.reserve(queue, 10, 0.0)
            assert len(found) == {"delayed": 3, "lapsed": 3, "extend": 2, "adopt": 1}[what]
            assert broker.ack(found) == ()
            if what == "adopt":
                assert len(broker.reserve(queue, 10, 5.0)) == 1
    finally:
        own.stop()


def test_a_server_that_misses_its_replicas_is_away_for_a_while(queue):
    own = private()
    try:
        client = redis.Redis.from_url(own.url)
        with closing(client), closing(connect(own.url)) as broker:
            broker.publish(queue, [outgoing()])
            client.config_set("min-replicas-to-write", 1)
            for call in (lambda: broker.publish(queue, [outgoing()]), lambda: broker.reserve(queue, 1, 0.0)):
                with pytest.raises(BrokerUnavailable, match="NOREPLICAS"):
                    call()
            client.config_set("min-replicas-to-write", 0)
            assert len(broker.reserve(queue, 5, 0.0)) == 1
    finally:
        own.stop()


def test_after_a_restart_the_next_call_works_and_nothing_is_lost(queue):
    own = private()
    try:
        with closing(connect(own.url)) as broker:
            broker.publish(queue, [outgoing(n) for n in range(5)])
            held = broker.reserve(queue, 2, 0.0)
            own.stop()
            with pytest.raises(BrokerUnavailable):
                broker.publish(queue, [outgoing()])
            with pytest.raises(BrokerUnavailable):
                broker.reserve(queue, 1, 1.0)
            own.start()
            assert broker.ack(held) == (), "the reservation outlived the connection"
            assert len(broker.reserve(queue, 9, 1.0)) == 3
    finally:
        own.stop()


def test_a_server_that_goes_away_ends_the_wait(queue):
    own = private()
    try:
        with closing(connect(own.url)) as broker:
            broker.reserve(queue, 1, 0.1)
            timer = threading.Timer(0.4, own.kill)
            timer.start()
            with pytest.raises(BrokerUnavailable):
                broker.reserve(queue, 1, 60.0)
            timer.join()
    finally:
        own.stop()


def private() -> servers.Server:
    try:
        return servers.start_private("redis")
    except servers.ServerMissing as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(exc.reason)


@pytest.mark.live("redis", tls=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tls(server, queue, layout):
    options = f"layout={layout}&tls_ca={server.tls.ca}"
    with closing(connect(f"{server.url}?{options}")) as broker:
        broker.publish(queue, [outgoing()])
        (got,) = broker.reserve(queue, 1, 2.0)
        assert broker.ack([got]) == ()
        assert broker.reserve(queue, 1, 0.3) == []
    with pytest.raises(BrokerUnavailable):
        connect(f"{server.url}?layout={layout}")


# -- cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    """A real cluster of one node: it owns every slot and still refuses to mix them."""
    program = servers.process.find_program("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    port, home = servers.process.free_port(), tmp_path_factory.mktemp("cluster")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", ""]
    node = subprocess.Popen([program, *options, "--cluster-enabled", "yes"], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    try:
        until(lambda: client.ping())
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        yield f"redis://127.0.0.1:{port}/"
    finally:
        client.close()
        node.terminate()
        node.wait()


def until(check, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if check():
                return
        except redis.RedisError:
            pass
        time.sleep(0.05)
    raise AssertionError("the cluster does not come up")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", ["cluster=1", "hash_tags=1"])
def test_a_cluster(cluster, queue, layout, option):
    with closing(connect(f"{cluster}?{option}&layout={layout}")) as broker:
        broker.publish(queue, [outgoing(n) for n in range(1500)])
        got = broker.reserve(queue, 4, 0.0)
        assert len(got) == 4
        assert broker.move(f"{queue}.dlq", [(got[0], Outgoing(b'{"attempts":1}'))]) == ()
        assert broker.move(f"{queue}-other", [(got[1], Outgoing(b'{"attempts":2}'))]) == ()
        assert broker.move(f"{queue}-other", [(got[1], Outgoing(b'{"attempts":2}'))]) == (got[1],)
        assert broker.release(got[2:3], 60.0) == ()
        assert broker.ack(got[3:]) == ()
        assert broker.depth(queue).ready == 1496
        assert [broker.depth(f"{queue}{s}").ready for s in (".dlq", "-other")] == [1, 1]


def test_without_hash_tags_a_cluster_refuses_and_says_so(cluster, queue):
    with closing(connect(cluster)) as broker, pytest.raises(ShinarError, match=r"add \?cluster=1.*slot"):
        broker.reserve(queue, 1, 0.0)


def test_a_wrong_password_for_a_cluster_is_no_outage(cluster):
    for opened in (connect, open_store):
        with pytest.raises(AccessDenied):
            opened(cluster.replace("redis://", "redis://nobody:wrong@") + "?cluster=1")


def test_a_server_that_is_no_cluster_is_told(server):
    with pytest.raises(ConfigError, match="does not run as a cluster"):
        connect(f"{server.url}?cluster=1")


@pytest.mark.parametrize("name", ["x{", "{}y", ".dlq"])
def test_a_name_whose_keys_no_slot_holds_is_refused(cluster, name):
    with closing(connect(f"{cluster}?cluster=1")) as broker, pytest.raises(Unsupported, match="slot"):
        broker.publish(name, [outgoing()])


def test_marks_in_a_cluster(cluster):
    with closing(open_store(f"{cluster}?cluster=1")) as store:
        ids = [f"m-{n}" for n in range(50)]
        store.remember(ids)
        store.forget(ids[:20])
        assert store.seen(ids) == set(ids[20:])


def test_receipts_are_plain_values():
    import pickle

    assert pickle.loads(pickle.dumps(Reservation(b"raw", b"handle", 5))) == Reservation(b"raw", b"handle", 5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_ack_tells_who_had_lapsed_among_those_who_had_not(server, queue, layout):
    with closing(connect(f"{server.url}?layout={layout}")) as broker:
        broker.publish(queue, [outgoing() for _ in range(5)])
        found = []
        while len(found) < 5:
            found += broker.reserve(queue, 5, 5)
        broker.ack([found[1]])
        broker.release([found[3]])
        lapsed = broker.ack(found)
        # What this connection settled itself is no lapsed lease, what somebody else may have by now is.
        assert found[3] in lapsed
        assert not {id(found[n]) for n in (0, 2, 4)} & {id(delivery) for delivery in lapsed}
        depth = broker.depth(queue)
        assert (depth.ready, depth.reserved) == (1, 0)
