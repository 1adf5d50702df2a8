"""The outbox over real databases: written in the caller's transaction, sent by relays that may die."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from shinar.brokers import Outgoing, connect
from shinar.brokers.registry import parse
from shinar.clock import PinnedClock
from shinar.envelope import build, encode
from shinar.errors import (
    BodyTooLarge,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    PublishFailed,
    QueueMissing,
    Unsupported,
    UsageError,
)
from shinar.outbox import Outbox, Pass, Relay

SQL = ["sqlite", "postgresql", "mariadb"]


@dataclass(frozen=True)
class Shop:
    """A database with an outbox, and the ways its owner may be connected to it."""

    name: str
    url: str

    @property
    def outbox(self) -> Outbox:
        return Outbox(prefix=parse(self.url).option("prefix"))

    def raw(self):
        parsed = parse(self.url)
        if self.name == "sqlite":
            return sqlite3.connect(parsed.path)
        given = {"host": parsed.host, "port": parsed.port, "user": parsed.user, "password": parsed.password}
        if self.name == "postgresql":
            return psycopg.connect(dbname=parsed.path, **given)
        return pymysql.connect(database=parsed.path, **given)

    def engine(self) -> sqlalchemy.Engine:
        parsed = parse(self.url)
        if self.name == "sqlite":
            return sqlalchemy.create_engine(f"sqlite:///{parsed.path}")
        driver = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}[self.name]
        return sqlalchemy.create_engine(
            sqlalchemy.URL.create(driver, parsed.user, parsed.password, parsed.host, parsed.port, parsed.path)
        )


@pytest.fixture(params=SQL)
def shop(request: pytest.FixtureRequest, tmp_path: Path, live_server) -> Shop:
    base = f"sqlite://{tmp_path}/shop.db" if request.param == "sqlite" else live_server(request.param).url
    return Shop(request.param, f"{base}?prefix=t{uuid.uuid4().hex[:12]}_")


@pytest.fixture
def broker():
    opened = connect(f"memory://{uuid.uuid4().hex}")
    yield opened
    opened.close()


@pytest.fixture
def relay(shop: Shop, broker):
    opened = Relay(shop.url, broker)
    yield opened
    opened.close()


def order(n: int, queue: str = "orders"):
    return build("urn:babel:orders:created", {"n": n, "text": "größe ✓"}, queue=queue)


def bodies(broker, queue: str) -> list[bytes]:
    return [delivery.body for delivery in broker.browse(queue)]


def test_only_what_was_committed_is_sent_and_verbatim(shop: Shop, relay: Relay, broker) -> None:
    connection = shop.raw()
    sent = order(1)
    odd = encode(order(2)).replace(b'{"job"', b'{ "job"')
    shop.outbox.write(connection, order(99))
    connection.rollback()
    first = shop.outbox.write(connection, sent, headers={"traceparent": "00-ü"}, key=b"\xffk")
    assert relay.flush() == Pass(), "not before the commit"
    second = shop.outbox.write(connection, odd)
    connection.commit()
    connection.close()
    assert second > first
    assert relay.backlog().pending == 2
    assert relay.drain() == Pass(published=2)
    assert bodies(broker, "orders") == [encode(sent), odd]
    (delivery, plain) = broker.reserve("orders", 5, 0)
    assert (dict(delivery.headers), delivery.key) == ({"traceparent": "00-ü"}, b"\xffk")
    assert (dict(plain.headers), plain.key) == ({}, None)
    assert relay.backlog().pending == 0
    assert relay.drain() == Pass()


def test_through_sqlalchemy(shop: Shop, relay: Relay, broker) -> None:
    engine = shop.engine()
    with Session(engine) as session:
        shop.outbox.write(session, order(1))
        session.rollback()
        session.execute(sqlalchemy.text("SELECT 1"))
        shop.outbox.write(session, order(2))
        session.commit()
        shop.outbox.write(session, order(3))
    with engine.begin() as connection:
        shop.outbox.write(connection, order(4))
    with engine.connect() as connection:
        shop.outbox.write(connection, order(5))
    engine.dispose()
    assert relay.drain() == Pass(published=2)
    assert [b'"n":2' in body or b'"n":4' in body for body in bodies(broker, "orders")] == [True, True]


@dataclass(frozen=True)
class Shipped:
    parcel: str

    urn = "urn:babel:parcels:shipped"


def test_where_a_message_goes(shop: Shop, relay: Relay, broker) -> None:
    connection = shop.raw()
    shop.outbox.write(connection, order(1, queue="from-meta"))
    shop.outbox.write(connection, order(1, queue="from-meta"), queue="given")
    shop.outbox.write(connection, encode(order(1, queue="from-bytes")))
    shop.outbox.write(connection, Shipped("p-1"), queue="parcels")
    shop.outbox.write(connection, Shipped("p-2"))
    shop.outbox.write(connection, Shipped("p-3"), queue="later", delay_s=3600)
    connection.commit()
    connection.close()
    assert relay.drain().published == 6
    counts = {
        queue: len(bodies(broker, queue))
        for queue in ("from-meta", "given", "from-bytes", "parcels", "default")
    }
    assert set(counts.values()) == {1}
    assert broker.depth("later").delayed == 1


def test_a_wrong_message_is_refused_before_anything_is_written(shop: Shop, relay: Relay) -> None:
    connection = shop.raw()
    for wrong in (b"{", b'{"job":7}', object(), order(1, queue="x" * 300)):
        with pytest.raises((ContractError, UsageError)):
            shop.outbox.write(connection, wrong)
    connection.commit()
    connection.close()
    assert relay.backlog().pending == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"headers": {"tenant": 42}}, "must be text, not int"),
        ({"headers": {"tenant": "\ud800"}}, "surrogate"),
        ({"key": "k"}, "bytes, not str"),
        ({"delay_s": float("nan")}, "nan"),
        ({"delay_s": float("inf")}, "inf"),
    ],
)
def test_what_the_relay_could_not_read_is_refused(options: dict, text: str, tmp_path: Path, broker) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as mine:
        outbox = Outbox()
        outbox.create(mine)
        outbox.write(mine, order(1))
        with pytest.raises((ContractError, Unsupported), match=text):
            outbox.write(mine, order(2), **options)
    mine.close()
    relay = Relay(f"sqlite://{tmp_path}/shop.db", broker)
    assert relay.drain() == Pass(1, 0)
    relay.close()


def test_a_row_with_odd_headers_is_sent_like_the_others(shop: Shop, relay: Relay, broker) -> None:
    mine = shop.raw()
    for n in range(3):
        shop.outbox.write(mine, order(n), headers={"tenant": str(n)})
    table, mark = f"{parse(shop.url).option('prefix')}outbox", "?" if shop.name == "sqlite" else "%s"
    cursor = mine.cursor()
    cursor.execute(
        f"UPDATE {table} SET headers = {mark} WHERE headers LIKE {mark}", ('{"tenant":42}', '%"1"%')
    )
    assert cursor.rowcount == 1
    mine.commit()
    mine.close()
    assert relay.drain() == Pass(3, 0)
    assert [d.headers["tenant"] for d in broker.browse("orders")] == ["0", "42", "2"]


def test_it_says_which_connections_it_takes() -> None:
    with pytest.raises(UsageError, match="SQLAlchemy Session or Connection, or a connection of sqlite3"):
        Outbox().write(object(), order(1))


def test_the_table_can_be_made_through_the_callers_connection(shop: Shop, broker) -> None:
    connection = shop.raw()
    shop.outbox.create(connection)
    shop.outbox.create(connection)
    shop.outbox.write(connection, order(1))
    connection.commit()
    connection.close()
    relay = Relay(f"{shop.url}&declare=false", broker)
    assert relay.drain() == Pass(published=1)
    relay.close()


def test_without_declare_the_error_holds_the_sql(shop: Shop, broker) -> None:
    with pytest.raises(QueueMissing, match=r"(?s)declare=false.*CREATE TABLE IF NOT EXISTS t\w+_outbox"):
        Relay(f"{shop.url}&declare=false", broker)


class Refusing:
    """A broker that refuses as it is told and otherwise remembers what it confirmed."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.away = False
        self.too_large = b"\0"
        self.unconfirmed: tuple[int, ...] = ()

    def publish(self, queue: str, messages: list[Outgoing]) -> None:
        if self.away:
            raise BrokerUnavailable("nobody there")
        if any(self.too_large in message.body for message in messages):
            raise BodyTooLarge(2, 1)
        lost, self.unconfirmed = self.unconfirmed, ()
        self.sent += [(queue, m.body) for index, m in enumerate(messages) if index not in lost]
        if lost:
            raise PublishFailed("not confirmed", total=len(messages), unconfirmed=lost)


def fill(shop: Shop, count: int) -> None:
    connection = shop.raw()
    for n in range(count):
        shop.outbox.write(connection, order(n))
    connection.commit()
    connection.close()


def test_one_row_refused_for_good_does_not_hold_the_others(shop: Shop) -> None:
    broker = Refusing()
    broker.too_large = b'"n":1,'
    relay = Relay(shop.url, broker)
    fill(shop, 4)
    assert relay.flush() == Pass(published=3, failed=1)
    assert [body for _, body in broker.sent if b'"n":1,' in body] == []
    backlog = relay.backlog()
    assert (backlog.pending, backlog.failing) == (1, 1)
    broker.too_large = b"\0"
    while relay.backlog().pending:
        relay.flush()
    assert len(broker.sent) == 4
    relay.close()


def test_what_was_confirmed_of_a_batch_is_not_sent_again(shop: Shop) -> None:
    broker = Refusing()
    broker.unconfirmed = (0, 2)
    relay = Relay(shop.url, broker)
    fill(shop, 4)
    assert relay.flush() == Pass(published=2, failed=2)
    while relay.backlog().pending:
        relay.flush()
    assert len(broker.sent) == len(set(broker.sent)) == 4
    relay.close()


def test_a_broker_that_is_away_costs_a_growing_backoff(tmp_path: Path) -> None:
    shop = Shop("sqlite", f"sqlite://{tmp_path}/shop.db?prefix=x_")
    clock, broker = PinnedClock(time.time() + 60), Refusing()
    relay = Relay(shop.url, broker, clock=clock)
    fill(shop, 1)
    broker.away = True
    for prior, expected_s in ((0, 0.05), (1, 0.1), (2, 0.15)):
        assert relay.flush() == Pass(failed=1), prior
        assert relay.flush() == Pass()
        clock.advance(expected_s - 0.002)
        assert relay.flush() == Pass()
        clock.advance(0.004)
    for _ in range(110):
        clock.advance(5.01)
        assert relay.flush() == Pass(failed=1)
    with sqlite3.connect(parse(shop.url).path) as check:
        failures, error = check.execute("SELECT failures, error FROM x_outbox").fetchone()
    check.close()
    assert (failures, error) == (113, "BrokerUnavailable: nobody there")
    broker.away = False
    clock.advance(5.01)
    assert relay.drain() == Pass(published=1)
    relay.close()


def test_published_rows_can_be_kept_for_a_while(tmp_path: Path, broker) -> None:
    shop = Shop("sqlite", f"sqlite://{tmp_path}/shop.db?prefix=x_")
    clock = PinnedClock(time.time() + 60)
    relay = Relay(f"{shop.url}&keep_s=100", broker, clock=clock)
    fill(shop, 3)
    assert relay.drain() == Pass(published=3)
    assert relay.backlog().pending == 0
    assert relay.drain() == Pass()
    clock.advance(101)
    fill(shop, 1)
    assert relay.drain() == Pass(published=1)
    with sqlite3.connect(parse(shop.url).path) as check:
        assert check.execute("SELECT COUNT(*) FROM x_outbox WHERE published_at > 0").fetchone() == (1,)
    check.close()
    relay.close()


def test_relays_side_by_side_send_each_row_once(shop: Shop) -> None:
    fill_relay = Relay(shop.url, Refusing())
    fill(shop, 600)
    brokers = [Refusing() for _ in range(3)]
    relays = [Relay(f"{shop.url}&batch=20", broker) for broker in brokers]
    barrier = threading.Barrier(3)

    def work(relay: Relay) -> None:
        barrier.wait()
        while relay.backlog().pending:
            relay.flush()

    threads = [threading.Thread(target=work, args=(relay,)) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for relay in [*relays, fill_relay]:
        relay.close()
    sent = [body for broker in brokers for _, body in broker.sent]
    assert len(sent) == len(set(sent)) == 600


def test_drain_has_a_ceiling(shop: Shop, broker) -> None:
    relay = Relay(f"{shop.url}&batch=1", broker)
    fill(shop, 5)
    assert relay.drain(max_passes=3) == Pass(published=3)
    relay.close()


def test_run_goes_on_until_stopped(shop: Shop, broker) -> None:
    relay = Relay(shop.url, broker)
    fill(shop, 7)
    rounds = iter([False, False, True])
    assert relay.run(lambda: next(rounds), idle_s=0.01) == Pass(published=7)
    relay.close()


def test_run_waits_longer_for_a_broker_that_stays_away(tmp_path: Path) -> None:
    shop = Shop("sqlite", f"sqlite://{tmp_path}/shop.db?prefix=x_")
    clock, broker = PinnedClock(time.time() + 60), Refusing()
    relay = Relay(shop.url, broker, clock=clock)
    fill(shop, 3)
    broker.away = True
    started_s, passes = clock.monotonic_s(), 0

    def stopped() -> bool:
        nonlocal passes
        passes += 1
        broker.away = passes < 200
        return len(broker.sent) == 3

    assert relay.run(stopped, idle_s=0.01).published == 3
    assert clock.monotonic_s() - started_s > 100, "two hundred tries at a growing pause of up to 5 s"
    relay.close()


def test_a_wrong_database_is_named() -> None:
    with pytest.raises(ConfigError, match="an outbox lives in sqlite://"):
        Relay("redis://127.0.0.1:1", Refusing())


RELAY = """
import sys
from shinar.brokers import connect
from shinar.outbox import Relay

relay = Relay(f"{sys.argv[1]}&batch=10&lease_s=1", connect(sys.argv[2]))
relay.run(lambda: False, idle_s=0.01)
"""


@pytest.mark.chaos
def test_a_killed_relay_loses_nothing_and_invents_nothing(tmp_path: Path) -> None:
    source = f"sqlite://{tmp_path}/shop.db?prefix=x_&durability=os"
    target = f"sqlite://{tmp_path}/queue.db?durability=os"
    shop, broker = Shop("sqlite", source), connect(target)
    watch = Relay(source, broker)
    connection = shop.raw()
    committed: list[bytes] = []
    chance = random.Random(3)
    for n in range(500):
        body = encode(order(n))
        shop.outbox.write(connection, body)
        if n % 5:
            connection.commit()
            committed.append(body)
        else:
            connection.rollback()
    connection.close()
    while watch.backlog().pending:
        process = subprocess.Popen([sys.executable, "-c", RELAY, source, target])
        goal = max(0, watch.backlog().pending - chance.randint(60, 150))
        while watch.backlog().pending > goal:
            time.sleep(chance.random() / 200)
        process.kill()
        process.wait()
    arrived = bodies(broker, "orders")
    watch.close()
    broker.close()
    assert set(arrived) == set(committed)
    assert len(arrived) < len(committed) + 100, "a kill may repeat one batch of ten, not the outbox"


def locked_file(path: Path) -> sqlite3.Connection:
    """As the application holds it that writes to its own tables in the old journal mode."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN IMMEDIATE")
    return holder


def test_a_relay_waits_for_a_locked_file(tmp_path: Path) -> None:
    """SQLite waits for every lock but the one it needs to change the journal."""
    holder = locked_file(tmp_path / "shop.db")
    timer = threading.Timer(0.5, holder.execute, ("ROLLBACK",))
    timer.start()
    started = time.monotonic()
    relay = Relay(f"sqlite://{tmp_path}/shop.db", connect("memory://outbox-locked"))
    assert time.monotonic() - started > 0.4
    assert relay.flush().published == 0
    timer.join()
    relay.close()
    holder.close()


def test_a_file_that_stays_locked_is_told(tmp_path: Path) -> None:
    holder = locked_file(tmp_path / "shop.db")
    with pytest.raises(BrokerUnavailable, match="locked"):
        Relay(f"sqlite://{tmp_path}/shop.db?busy_s=0.2", connect("memory://outbox-locked"))
    holder.close()
