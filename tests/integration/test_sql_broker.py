"""The table queue on its real databases: what the contract suite, written for every broker, cannot ask."""

from __future__ import annotations

import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import servers
from shinar.brokers import Broker, Outgoing, connect
from shinar.brokers.registry import parse
from shinar.brokers.sql.broker import enqueue
from shinar.clock import PinnedClock
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    QueueMissing,
    StoreError,
    Unsupported,
    UsageError,
)

SQL = ["sqlite", "postgresql", "mariadb"]
SERVERS = ["postgresql", "mariadb"]


@pytest.fixture
def url_of(tmp_path: Path, live_server):
    def make(name: str, **options: object) -> str:
        base = f"sqlite://{tmp_path}/queue.db" if name == "sqlite" else live_server(name).url
        options = {"prefix": f"t{uuid.uuid4().hex[:12]}_", **options}
        return f"{base}?" + "&".join(f"{key}={value}" for key, value in options.items())

    return make


@pytest.fixture
def opened():
    """`opened(url)`: a broker that is closed when the test ends."""
    brokers: list[Broker] = []

    def open_(url: str, *clock: PinnedClock) -> Broker:
        brokers.append(connect(url, *clock))
        return brokers[-1]

    yield open_
    for broker in brokers:
        broker.close()


def raw(name: str, url: str):
    parsed = parse(url)
    if name == "sqlite":
        return sqlite3.connect(parsed.path)
    given = {"host": parsed.host, "port": parsed.port, "user": parsed.user, "password": parsed.password}
    if name == "postgresql":
        return psycopg.connect(dbname=parsed.path, **given)
    return pymysql.connect(database=parsed.path, **given)


def numbered(count: int, start: int = 0) -> list[Outgoing]:
    return [Outgoing(f"{n:06}".encode()) for n in range(start, start + count)]


# -- queues and their names


@pytest.mark.parametrize("name", SQL)
def test_names_that_look_alike_are_different_queues(name: str, url_of, opened) -> None:
    broker = opened(url_of(name))
    names = ["orders", "Orders", "orders ", " orders", "órders", "o'r\"d%s", "x" * 255]
    for index, queue in enumerate(names):
        broker.publish(queue, [Outgoing(str(index).encode())])
    for index, queue in enumerate(names):
        assert [d.body for d in broker.browse(queue)] == [str(index).encode()]
        assert broker.depth(queue).ready == 1


@pytest.mark.parametrize("queue", ["", "x" * 256, "é" * 128, "a\0b"])
def test_a_name_no_database_could_keep_is_refused(queue: str, url_of, opened) -> None:
    broker = opened(url_of("sqlite"))
    with pytest.raises(UsageError, match="1 to 255 bytes"):
        broker.publish(queue, [Outgoing(b"x")])


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (Outgoing(b"2", {"tenant": 42}), "must be text, not int"),
        (Outgoing(b"2", {42: "tenant"}), "must be text, not int"),
        (Outgoing(b"2", {"tenant": "\ud800"}), "surrogate"),
        (Outgoing(b"2", key="k"), "bytes, not str"),
        (Outgoing(b"2", key=5), "bytes, not int"),
        (Outgoing(b"2", delay_s=float("nan")), "nan"),
        (Outgoing(b"2", delay_s=float("inf")), "inf"),
        (Outgoing(b"2", delay_s=1e300), "longest delay"),
    ],
)
def test_what_could_not_be_read_again_is_refused(bad: Outgoing, text: str, url_of, opened) -> None:
    url = url_of("sqlite")
    broker = opened(url)
    with pytest.raises((ContractError, Unsupported), match=text):
        broker.publish("q", [Outgoing(b"1"), bad])
    with sqlite3.connect(parse(url).path) as mine, pytest.raises((ContractError, Unsupported), match=text):
        enqueue(mine, "q", [Outgoing(b"1"), bad], prefix=parse(url).option("prefix"))
    assert broker.depth("q").ready == 0
    broker.publish("q", [Outgoing(b"3")])
    assert [d.body for d in broker.reserve("q", 5, 0)] == [b"3"]


@pytest.mark.parametrize("name", SQL)
def test_a_row_with_odd_headers_holds_up_nobody(name: str, url_of, opened) -> None:
    url = url_of(name)
    broker = opened(url)
    odd = {
        '{"a":"b"}': {"a": "b"},
        '{"tenant":42,"on":true,"a":"b"}': {"tenant": "42", "on": "True", "a": "b"},
        '{"a":"\\ud800"}': {"a": "?"},
        '{"a":NaN}': {"a": "nan"},
        "[1]": {},
        "42": {},
        '{"a":': {},
    }
    broker.publish("q", [Outgoing(b"%d" % n, {"x": str(n)}) for n in range(len(odd))])
    mine = raw(name, url)
    table, mark = f"{parse(url).option('prefix')}messages", "?" if name == "sqlite" else "%s"
    cursor = mine.cursor()
    for n, text in enumerate(odd):
        cursor.execute(f"UPDATE {table} SET headers = {mark} WHERE body = {mark}", (text, b"%d" % n))
        assert cursor.rowcount == 1
    mine.commit()
    mine.close()
    assert [dict(d.headers) for d in broker.browse("q")] == list(odd.values())
    got = broker.reserve("q", 20, 0)
    assert [dict(d.headers) for d in got] == list(odd.values())
    assert broker.move("q.dlq", [(d, Outgoing(d.body, d.headers)) for d in got]) == ()


def test_a_row_written_by_hand_may_hold_text_or_numbers_in_sqlite(url_of, opened) -> None:
    url = url_of("sqlite")
    broker = opened(url)
    with sqlite3.connect(parse(url).path) as mine:
        mine.execute(
            f"INSERT INTO {parse(url).option('prefix')}messages "
            "(queue, available_at, created_at, headers, ordering_key, body) VALUES ('q', 0, 0, 7, 5, 'größe')"
        )
    (got,) = broker.reserve("q", 5, 0)
    assert (got.body, got.key, got.headers) == ("größe".encode(), b"5", {})


@pytest.mark.parametrize("name", SQL)
def test_dead_letters_of_all_queues_are_in_the_failed_view(name: str, url_of, opened) -> None:
    url = url_of(name)
    broker = opened(url)
    broker.publish("orders", [Outgoing(b"alive")])
    broker.publish("orders.dlq", [Outgoing(b"dead")])
    connection = raw(name, url)
    cursor = connection.cursor()
    cursor.execute(f"SELECT body FROM {parse(url).option('prefix')}failed")
    assert [bytes(row[0]) for row in cursor.fetchall()] == [b"dead"]
    connection.close()


# -- order, pages, counts


@pytest.mark.parametrize("name", SQL)
def test_a_long_queue_is_browsed_in_order_by_pages(name: str, url_of, opened) -> None:
    broker, other = opened(url := url_of(name)), opened(url)
    broker.publish("orders", numbered(450))
    broker.publish("noise", numbered(50))
    seen = []
    for delivery in broker.browse("orders"):
        seen.append(delivery.body)
        if len(seen) == 10:
            other.publish("orders", numbered(5, start=9000))
    assert seen == [m.body for m in numbered(450)], "what came meanwhile is not chased"
    assert [d.body for d in broker.browse("orders", 201)] == seen[:201]
    assert [d.receipt for d in broker.browse("orders", 1)] == [None]


@pytest.mark.parametrize("name", SQL)
def test_depth_knows_ready_reserved_and_delayed(name: str, url_of, opened) -> None:
    broker = opened(url_of(name))
    assert broker.depth("orders").oldest_age_s is None
    broker.publish("orders", [*numbered(3), Outgoing(b"later", delay_s=600)])
    held = broker.reserve("orders", 1, 0)
    depth = broker.depth("orders")
    assert (depth.ready, depth.reserved, depth.delayed) == (2, 1, 1)
    assert depth.oldest_age_s is not None
    broker.release(held, delay_s=600)
    depth = broker.depth("orders")
    assert (depth.ready, depth.reserved, depth.delayed) == (2, 0, 2)


def test_time_is_the_clocks_on_sqlite(url_of, opened) -> None:
    clock = PinnedClock(2_000_000_000)
    broker = opened(url_of("sqlite", lease_s=30), clock)
    broker.publish("orders", [Outgoing(b"now"), Outgoing(b"late", delay_s=7.5)])
    (first,) = broker.reserve("orders", 9, 0)
    assert first.lease_until_ms == 2_000_000_030_000
    clock.advance(7.4)
    assert broker.reserve("orders", 9, 0) == []
    clock.advance(0.1)
    assert [d.body for d in broker.reserve("orders", 9, 0)] == [b"late"]
    clock.advance(22.4)
    assert broker.reserve("orders", 9, 0) == []
    clock.advance(0.1)
    (again,) = broker.reserve("orders", 9, 0)
    assert (again.body, again.native_count, again.position) == (b"now", 1, first.position)
    assert broker.extend([first], 5) == (first,)
    assert broker.release([first]) == (first,)
    assert broker.move("orders.dlq", [(first, Outgoing(b"copy"))]) == (first,)
    assert broker.depth("orders.dlq").ready == 0
    assert broker.ack([first, again]) == (first,)


def test_order_survives_a_clock_that_is_set_back(url_of, opened) -> None:
    clock = PinnedClock(2_000_000_000)
    broker = opened(url_of("sqlite"), clock)
    broker.publish("orders", numbered(1))
    clock.pin(1_999_999_000)
    broker.publish("orders", numbered(1, start=1))
    clock.pin(2_000_000_001)
    assert [d.body for d in broker.reserve("orders", 9, 0)] == [b"000000", b"000001"]


def test_a_late_ack_of_a_message_nobody_else_took_still_counts(url_of, opened) -> None:
    clock = PinnedClock()
    broker = opened(url_of("sqlite", lease_s=1), clock)
    broker.publish("orders", numbered(1))
    held = broker.reserve("orders", 1, 0)
    clock.advance(5)
    assert broker.ack(held) == ()
    assert broker.reserve("orders", 1, 0) == []


@pytest.mark.parametrize("name", SQL)
def test_deliveries_of_many_reservations_settle_in_one_call(name: str, url_of, opened) -> None:
    broker = opened(url_of(name))
    broker.publish("orders", numbered(30))
    held = [broker.reserve("orders", 1, 0)[0] for _ in range(30)]
    assert broker.ack(held[:20]) == ()
    assert broker.ack(held[:25]) == ()
    assert broker.release(held[24:]) == (held[24],)
    assert [d.body for d in broker.reserve("orders", 99, 0)] == [d.body for d in held[25:]]


def test_a_browsed_message_cannot_be_settled(url_of, opened) -> None:
    broker = opened(url_of("sqlite"))
    broker.publish("orders", numbered(1))
    (seen,) = broker.browse("orders")
    for settle in (broker.ack, broker.release):
        with pytest.raises(UsageError, match="was only browsed; reserve it"):
            settle([seen])


# -- many hands


@pytest.mark.parametrize("name", SQL)
def test_consumers_side_by_side_share_without_overlap(name: str, url_of, opened) -> None:
    url = url_of(name)
    opened(url).publish("orders", numbered(600))
    taken: list[bytes] = []
    failures: list[BaseException] = []

    def consume(broker: Broker) -> None:
        try:
            while found := broker.reserve("orders", 7, 0):
                taken.extend(d.body for d in found)
                assert broker.ack(found) == ()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=consume, args=(opened(url),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    rest = opened(url).reserve("orders", 600, 1)
    assert sorted([*taken, *(d.body for d in rest)]) == [m.body for m in numbered(600)]


@pytest.mark.parametrize("name", SQL)
def test_many_first_users_at_once(name: str, url_of) -> None:
    url = url_of(name)
    barrier = threading.Barrier(6)
    failures: list[BaseException] = []

    def begin() -> None:
        barrier.wait()
        try:
            broker = connect(url)
            broker.publish("orders", numbered(1))
            broker.close()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    broker = connect(url)
    assert broker.depth("orders").ready == 6
    broker.close()


# -- inside the caller's transaction


@pytest.mark.parametrize("name", SQL)
def test_enqueue_commits_and_rolls_back_with_the_caller(name: str, url_of, opened) -> None:
    url = url_of(name)
    prefix = parse(url).option("prefix")
    broker = opened(url)
    connection = raw(name, url)
    enqueue(connection, "orders", numbered(3), prefix=prefix)
    assert broker.reserve("orders", 9, 0) == []
    connection.rollback()
    enqueue(
        connection,
        "orders",
        [Outgoing(b"x", headers={"a": "ü"}, key=b"k"), Outgoing(b"y", delay_s=60)],
        prefix=prefix,
    )
    connection.commit()
    connection.close()
    (got,) = broker.reserve("orders", 9, 5)
    assert (got.body, dict(got.headers), got.key) == (b"x", {"a": "ü"}, b"k")
    assert broker.depth("orders").delayed == 1


@pytest.mark.parametrize("name", SQL)
def test_enqueue_through_sqlalchemy(name: str, url_of, opened) -> None:
    url = url_of(name)
    parsed = parse(url)
    broker = opened(url)
    if name == "sqlite":
        engine = sqlalchemy.create_engine(f"sqlite:///{parsed.path}")
    else:
        driver = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}[name]
        engine = sqlalchemy.create_engine(
            sqlalchemy.URL.create(driver, parsed.user, parsed.password, parsed.host, parsed.port, parsed.path)
        )
    with Session(engine) as session:
        enqueue(session, "orders", [Outgoing(b"rolled back")], prefix=parsed.option("prefix"))
        session.rollback()
        enqueue(session, "orders", [Outgoing(b"committed")], prefix=parsed.option("prefix"))
        session.commit()
    engine.dispose()
    assert [d.body for d in broker.reserve("orders", 9, 5)] == [b"committed"]


# -- what goes wrong


@pytest.mark.parametrize("name", SERVERS)
def test_a_restart_of_the_server_is_an_error_once_and_then_over(name: str) -> None:
    server = servers.start_private(name)
    try:
        broker = connect(server.url)
        broker.publish("orders", numbered(3))
        held = broker.reserve("orders", 1, 0)
        server.stop()
        for call in (
            lambda: broker.publish("orders", numbered(1)),
            lambda: broker.reserve("orders", 1, 0.1),
            lambda: broker.ack(held),
        ):
            with pytest.raises(BrokerUnavailable):
                call()
        server.start()
        assert broker.ack(held) == ()
        assert [d.body for d in broker.reserve("orders", 9, 0)] == [b"000001", b"000002"]
        broker.close()
    finally:
        server.stop()


@pytest.mark.parametrize("name", SERVERS)
def test_a_connection_cut_while_idle_is_not_noticed(name: str, url_of, opened) -> None:
    url = url_of(name)
    broker = opened(url)
    broker.publish("orders", numbered(1))
    admin = raw(name, url)
    cursor = admin.cursor()
    if name == "postgresql":
        cursor.execute("SELECT pg_terminate_backend(%s)", (broker._database.raw.info.backend_pid,))
    else:
        cursor.execute(f"KILL {broker._database.raw.thread_id()}")
    admin.commit()
    admin.close()
    broker.publish("orders", numbered(1, start=1))
    assert [d.body for d in broker.reserve("orders", 9, 0)] == [b"000000", b"000001"]


@pytest.mark.live("postgresql")
def test_a_stricter_isolation_by_default_does_not_disturb(server, url_of, opened) -> None:
    admin = raw("postgresql", server.url)
    admin.autocommit = True
    admin.execute("ALTER ROLE shinar SET default_transaction_isolation = 'serializable'")
    try:
        one, other = opened(url := url_of("postgresql", notify="false")), opened(url)
        one.publish("orders", numbered(40))
        for _ in range(10):
            assert one.ack(one.reserve("orders", 2, 1)) == ()
            assert other.ack(other.reserve("orders", 2, 1)) == ()
        assert one.depth("orders").ready == 0
        assert [
            row[0] for row in one._database.raw.execute("SELECT COUNT(*) FROM pg_prepared_statements")
        ] == [0]
    finally:
        admin.execute("ALTER ROLE shinar RESET default_transaction_isolation")
        admin.close()


@pytest.mark.parametrize("name", SERVERS)
def test_a_wrong_password_or_database_is_named_without_secrets(name: str, live_server) -> None:
    url = live_server(name).url
    parsed = parse(url)
    with pytest.raises(AccessDenied) as denied:
        connect(url.replace(f":{parsed.password}@", ":hunter2-wrong@"))
    assert "hunter2" not in str(denied.value)
    with pytest.raises(QueueMissing) as missing:
        connect(url.removesuffix(parsed.path) + "nowhere")
    assert parsed.password not in str(missing.value)


@pytest.mark.parametrize("name", SERVERS)
def test_over_tls(name: str, live_server) -> None:
    server = live_server(name, tls=True)
    plain = server.url.partition("?")[0]
    option = "sslmode=verify-full&sslrootcert" if name == "postgresql" else "ssl_ca"
    broker = connect(f"{plain}?{option}={server.tls.ca}")
    broker.publish("tls", numbered(1))
    broker.close()


@pytest.mark.parametrize("name", SQL)
def test_without_declare_the_error_holds_the_sql_and_the_sql_works(name: str, url_of, opened) -> None:
    url = url_of(name)
    with pytest.raises(QueueMissing) as caught:
        connect(f"{url}&declare=false")
    script = str(caught.value).partition("run\n")[2]
    assert script.startswith("CREATE TABLE")
    connection = raw(name, url)
    cursor = connection.cursor()
    for statement in script.split(";\n"):
        cursor.execute(statement.rstrip(";"))
    connection.commit()
    connection.close()
    broker = opened(f"{url}&declare=false")
    broker.publish("orders", numbered(1))
    assert len(broker.reserve("orders", 1, 0)) == 1


@pytest.mark.live("mariadb")
def test_a_body_over_the_packet_limit_is_refused_before_it_cuts_the_connection(
    server, url_of, opened
) -> None:
    admin = raw("mariadb", server.url)
    cursor = admin.cursor()
    cursor.execute("SELECT @@global.max_allowed_packet")
    (before,) = cursor.fetchone()
    cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        broker = opened(url_of("mariadb"))
        limit = broker.traits.max_body_bytes
        assert limit == (1048576 - 65536) // 2
        broker.publish("orders", [Outgoing(b"'" * limit)])
        with pytest.raises(BodyTooLarge, match=f"over the limit of {limit}"):
            broker.publish("orders", [Outgoing(b"small"), Outgoing(b"x" * (limit + 1))])
        assert broker.depth("orders").ready == 1
        (got,) = broker.reserve("orders", 1, 0)
        assert len(got.body) == limit
    finally:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {before}")
        admin.close()


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("sqlite://", ConfigError, "name a file"),
        ("sqlite:///nowhere/at/all.db", ConfigError, "no folder /nowhere/at"),
        ("sqlite:///tmp/x.db?prefix=a-b", ConfigError, r"\?prefix=: 'a-b' is not a table prefix"),
        ("sqlite:///tmp/x.db?prefix=a;DROP", ConfigError, "not a table prefix"),
        ("sqlite:///tmp/x.db?durability=maybe", ConfigError, "neither fsync nor os"),
        ("sqlite:///tmp/x.db?lease_s=0", ConfigError, "lease_s"),
        ("sqlite:///tmp/x.db?sslmode=require", ConfigError, "sqlite:// has no such option"),
        ("sqlite:///tmp/x.db?notify=true", ConfigError, "only PostgreSQL can notify"),
        ("sqlite:///tmp/x.db?leases=3", ConfigError, "did you mean lease_s"),
        ("mysql://127.0.0.1:1", ConfigError, "name a database"),
        ("mysql://127.0.0.1:1/x", BrokerUnavailable, "once the database answers"),
        ("postgresql://127.0.0.1:1/x", BrokerUnavailable, "once the database answers"),
    ],
)
def test_a_wrong_url_says_what_to_do(url: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        connect(url)


def test_a_file_that_is_no_database_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        connect(f"sqlite://{path}")


def test_a_lock_that_lasts_too_long_is_transient(url_of, opened) -> None:
    url = url_of("sqlite", busy_s=0.05)
    broker = opened(url)
    holder = raw("sqlite", url)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(BrokerUnavailable, match="locked"):
        broker.publish("orders", numbered(1))
    holder.rollback()
    holder.close()
    broker.publish("orders", numbered(1))
    assert broker.depth("orders").ready == 1


def test_a_reservation_leaves_the_file_durable(url_of, opened) -> None:
    for durability, level in (("fsync", 2), ("os", 1)):
        broker = opened(url_of("sqlite", durability=durability))
        broker.publish("orders", numbered(2))
        broker.reserve("orders", 1, 0)
        with broker._database.statement() as cursor:
            cursor.execute("PRAGMA synchronous")
            assert cursor.fetchone() == (level,)


def test_a_relative_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    connect("sqlite://queue.db").close()
    assert (tmp_path / "queue.db").exists()


# -- crashes


PUBLISH = """
import sys
from pathlib import Path
from shinar.brokers import Outgoing, connect

url, log = sys.argv[1:]
broker = connect(url)
start = len(Path(log).read_text().splitlines())
with open(log, "a") as confirmed:
    while True:
        numbers = [f"{n:06}" for n in range(start, start + 5)]
        broker.publish("orders", [Outgoing(number.encode()) for number in numbers])
        confirmed.write("".join(f"{number}\\n" for number in numbers))
        confirmed.flush()
        start += 5
"""


@pytest.mark.chaos
def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    url, log = f"sqlite://{tmp_path}/queue.db?durability=os", tmp_path / "confirmed"
    connect(url).close()
    log.touch()
    chance = random.Random(11)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", PUBLISH, url, str(log)])
        goal = log.stat().st_size + 7 * chance.randint(1, 120)
        while log.stat().st_size < goal:
            time.sleep(chance.random() / 100)
        process.kill()
        process.wait()
    broker = connect(url)
    there = {d.body for d in broker.browse("orders")}
    broker.close()
    confirmed = {line.encode() for line in log.read_text().splitlines() if len(line) == 6}
    assert len(confirmed) >= 20
    assert confirmed <= there


HOLD_AND_DIE = """
import os, pickle, signal, sys
from pathlib import Path
from shinar.brokers import connect

held = connect(sys.argv[1]).reserve("orders", 2, 0)
Path(sys.argv[2]).write_bytes(pickle.dumps(held))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", SQL)
def test_a_dead_consumers_messages_come_back_or_are_settled_for_it(
    name: str, url_of, opened, tmp_path
) -> None:
    url = url_of(name, lease_s=2)
    broker = opened(url)
    broker.publish("orders", numbered(2))
    died = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, url, f"{tmp_path}/held"], check=False)
    assert died.returncode == -signal.SIGKILL
    held = pickle.loads((tmp_path / "held").read_bytes())
    assert broker.ack(held[:1]) == ()
    (back,) = broker.reserve("orders", 9, 30)
    assert (back.body, back.native_count) == (b"000001", 1)
    assert broker.ack(held[1:]) == (held[1],)
    assert broker.ack([back]) == ()
