"""Every store gives the same answers; the SQL ones commit mark and effect together."""

from __future__ import annotations

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

from shinar.brokers.registry import parse
from shinar.clock import PinnedClock
from shinar.errors import AccessDenied, BrokerError, BrokerUnavailable, ConfigError, QueueMissing, UsageError
from shinar.idempotency import SqlStore, claim, open_store

STORES = ["memory", "sqlite", "postgresql", "mariadb", "redis"]
SQL = ["sqlite", "postgresql", "mariadb"]
ODD_IDS = [
    "a",
    "A",
    "a ",
    " a",
    "é",
    "e\u0301",
    "\0x",
    "\ud800",
    "x" * 5000,
    "y" * 200,
    "=a",
    "#a",
    "'\"\\%s",
    "1",
]


@pytest.fixture
def url_of(tmp_path: Path, live_server):
    def make(name: str, **options: object) -> str:
        base = {"memory": "memory://", "sqlite": f"sqlite://{tmp_path}/marks.db"}.get(name)
        if name != "memory":
            options = {"prefix": f"t{uuid.uuid4().hex[:12]}_", **options}
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"{base or live_server(name).url}?{query}"

    return make


@pytest.mark.parametrize("name", STORES)
def test_one_text_is_not_a_list_of_ids(name: str, url_of) -> None:
    """Its characters would be marked, and every message with such an id skipped."""
    store = open_store(url_of(name))
    for call in (store.seen, store.remember, store.forget):
        with pytest.raises(UsageError, match="as a list"):
            call("abc")
    assert store.seen(["a", "b", "c", "abc"]) == set()
    store.close()


@pytest.mark.parametrize("name", STORES)
def test_marks_are_exact(name: str, url_of) -> None:
    store = open_store(url_of(name))
    try:
        assert store.seen(ODD_IDS) == set()
        store.remember(ODD_IDS[::2])
        store.remember(ODD_IDS[:1])
        assert store.seen(ODD_IDS) == set(ODD_IDS[::2])
        store.forget([ODD_IDS[0], "nobody"])
        assert store.seen(ODD_IDS) == set(ODD_IDS[2::2])
        store.remember([])
        store.forget([])
        assert store.seen([]) == set()
    finally:
        store.close()


@pytest.mark.parametrize("name", STORES)
def test_batches_larger_than_a_statement(name: str, url_of) -> None:
    store = open_store(url_of(name))
    try:
        ids = [f"id-{n}" for n in range(1234)]
        store.remember(ids)
        assert store.seen([*ids, "other"]) == set(ids)
    finally:
        store.close()


def test_marks_end_and_are_swept(url_of) -> None:
    clock = PinnedClock()
    url = url_of("sqlite", ttl_s=100)
    store = open_store(url, clock)
    try:
        store.remember(["old"])
        clock.advance(99)
        assert store.seen(["old"]) == {"old"}
        clock.advance(2)
        assert store.seen(["old"]) == set()
        store.remember(["new"])
        with sqlite3.connect(parse(url).path) as check:
            table = parse(url).option("prefix") + "idempotency"
            assert check.execute(f"SELECT id FROM {table}").fetchall() == [("=new",)]
        check.close()
    finally:
        store.close()


@pytest.mark.parametrize("name", SQL)
def test_an_expired_mark_is_taken_again_and_once(name: str, url_of) -> None:
    store = open_store(url_of(name, ttl_s=0.2))
    longer = open_store(url_of(name))
    try:
        store.remember(["old"])
        while store.seen(["old"]):
            time.sleep(0.02)
        with store.once("old") as once:
            assert once.first
        assert longer.seen(["old"]) == set()
    finally:
        store.close()
        longer.close()


@pytest.mark.live("redis")
def test_redis_marks_carry_their_expiry(server) -> None:
    import redis

    prefix = uuid.uuid4().hex
    store = open_store(f"{server.url}?prefix={prefix}:&ttl_s=100&scope=billing")
    store.remember(["m-1"])
    parsed = parse(server.url)
    with redis.Redis(host=parsed.host, port=parsed.port, password=parsed.password or None) as client:
        left_ms = client.pttl(f"{prefix}:billing:m-1")
    store.close()
    assert 0 < left_ms <= 100_000


@pytest.mark.live("redis")
def test_timeout_s_is_the_limit(server) -> None:
    store = open_store(f"{server.url}?timeout_s=0.5")
    server.pause()
    try:
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            store.seen(["a"])
        assert time.monotonic() - begun < 2
    finally:
        server.resume()
        store.close()


@pytest.mark.live("redis", tls=True)
@pytest.mark.parametrize("option", ["tls_ca", "ssl_ca"])
def test_redis_marks_over_tls(server, option: str) -> None:
    store = open_store(f"{server.url}?{option}={server.tls.ca}")
    assert store.seen(["a"]) == set()
    store.close()
    with pytest.raises(BrokerUnavailable):
        open_store(server.url)


@pytest.mark.parametrize("url", ["rediss://127.0.0.1:1?tls_ca=no-such-file", "redis://127.0.0.1:1?tls_ca=x"])
def test_a_certificate_that_cannot_be_used_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"no file|needs rediss"):
        open_store(url)


@pytest.mark.parametrize("name", SQL)
def test_scopes_do_not_meet(name: str, url_of) -> None:
    base = url_of(name)
    billing, shipping = open_store(f"{base}&scope=billing"), open_store(f"{base}&scope=shipping")
    try:
        billing.remember(["a"])
        assert billing.seen(["a"]) == {"a"}
        assert shipping.seen(["a"]) == set()
        shipping.forget(["a"])
        assert billing.seen(["a"]) == {"a"}
    finally:
        billing.close()
        shipping.close()


@pytest.mark.parametrize("name", SQL)
def test_effect_and_mark_commit_together_or_not_at_all(name: str, url_of) -> None:
    url = url_of(name)
    store = open_store(url)
    assert isinstance(store, SqlStore)
    table = parse(url).option("prefix") + "effects"
    try:
        with store.once("setup") as once:
            once.cursor.execute(f"CREATE TABLE {table} (n INT)")
        with pytest.raises(ZeroDivisionError):
            _fail_after(store, f"INSERT INTO {table} VALUES (1)")
        assert store.seen(["a"]) == set()
        for expected in (True, False, False):
            with store.once("a") as once:
                assert once.first is expected
                if once.first:
                    once.cursor.execute(f"INSERT INTO {table} VALUES (2)")
        with store.once("b") as once:
            once.cursor.execute(f"SELECT n FROM {table}")
            assert [row[0] for row in once.cursor.fetchall()] == [2]
        with pytest.raises(BrokerError), store.once("c") as once:
            once.cursor.execute("SELECT * FROM there_is_no_such_table")
        assert store.seen(["a", "b", "c"]) == {"a", "b"}
    finally:
        store.close()


def _fail_after(store: SqlStore, statement: str) -> None:
    with store.once("a") as once:
        assert once.first
        once.cursor.execute(statement)
        1 / 0  # noqa: B018  # raises


@pytest.mark.parametrize("name", SQL)
def test_two_first_deliveries_at_once_have_one_effect(name: str, url_of) -> None:
    url = url_of(name)
    stores = [open_store(url) for _ in range(4)]
    firsts: list[bool] = []
    barrier = threading.Barrier(len(stores))

    def deliver(store: SqlStore) -> None:
        barrier.wait()
        for n in range(20):
            with store.once(f"m-{n}") as once:
                firsts.append(once.first)

    threads = [threading.Thread(target=deliver, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()
    assert len(firsts) == 80
    assert sum(firsts) == 20


def _raw(name: str, url: str):
    parsed = parse(url)
    if name == "sqlite":
        return sqlite3.connect(parsed.path)
    given = {"host": parsed.host, "port": parsed.port, "user": parsed.user, "password": parsed.password}
    if name == "postgresql":
        return psycopg.connect(dbname=parsed.path, **given)
    return pymysql.connect(database=parsed.path, **given)


@pytest.mark.parametrize("name", SQL)
def test_claim_lives_in_the_callers_transaction(name: str, url_of) -> None:
    url = url_of(name)
    prefix = parse(url).option("prefix")
    store = open_store(url)
    connection = _raw(name, url)
    try:
        assert claim(connection, "a", prefix=prefix)
        connection.rollback()
        assert store.seen(["a"]) == set()
        assert claim(connection, "a", prefix=prefix)
        connection.commit()
        assert store.seen(["a"]) == {"a"}
        assert not claim(connection, "a", prefix=prefix)
        assert claim(connection, "a", prefix=prefix, scope="other")
        connection.commit()
    finally:
        connection.close()
        store.close()


@pytest.mark.parametrize("name", SQL)
def test_claim_through_sqlalchemy(name: str, url_of) -> None:
    url = url_of(name)
    parsed = parse(url)
    store = open_store(url)
    engine = _engine(name, parsed)
    try:
        with Session(engine) as session:
            assert claim(session, "a", prefix=parsed.option("prefix"))
            session.rollback()
            assert claim(session, "a", prefix=parsed.option("prefix"))
            session.commit()
        with engine.connect() as connection:
            assert not claim(connection, "a", prefix=parsed.option("prefix"))
            assert claim(connection, "b", prefix=parsed.option("prefix"))
            connection.rollback()
        assert store.seen(["a", "b"]) == {"a"}
    finally:
        engine.dispose()
        store.close()


def _engine(name: str, parsed) -> sqlalchemy.Engine:
    if name == "sqlite":
        return sqlalchemy.create_engine(f"sqlite:///{parsed.path}")
    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mysql+pymysql"}[name]
    return sqlalchemy.create_engine(
        sqlalchemy.URL.create(driver, parsed.user, parsed.password, parsed.host, parsed.port, parsed.path)
    )


@pytest.mark.parametrize("name", SQL)
def test_without_declare_the_error_holds_the_sql(name: str, url_of) -> None:
    with pytest.raises(QueueMissing, match=r"(?s)declare=false.*CREATE TABLE IF NOT EXISTS t\w+_idempotency"):
        open_store(url_of(name, declare="false"))


def test_nobody_there() -> None:
    for url in ("redis://127.0.0.1:1", "postgresql://127.0.0.1:1/x", "mysql://127.0.0.1:1/x"):
        with pytest.raises(BrokerUnavailable):
            open_store(url)


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_wrong_password_is_named_and_not_shown(name: str, live_server) -> None:
    url = live_server(name).url
    parsed = parse(url)
    wrong = url.replace(f":{parsed.password}@", ":hunter2-wrong@")
    with pytest.raises(AccessDenied) as caught:
        open_store(wrong)
    assert "hunter2" not in str(caught.value)


#: A consumer that is given every message again after each crash.
APPLY = """
import sys
from shinar.idempotency import open_store

store = open_store(f"sqlite://{sys.argv[1]}?durability=os")
for n in range(int(sys.argv[2])):
    with store.once(f"m-{n}") as once:
        if once.first:
            once.cursor.execute("UPDATE account SET total = total + 1")
"""


@pytest.mark.chaos
def test_each_effect_happens_once_whatever_is_killed(tmp_path: Path) -> None:
    path = f"{tmp_path}/bank.db"
    open_store(f"sqlite://{path}").close()
    with sqlite3.connect(path) as setup:
        setup.execute("CREATE TABLE account (name TEXT PRIMARY KEY, total INT)")
        setup.execute("INSERT INTO account VALUES ('m', 0)")
    setup.close()
    messages, chance = 500, random.Random(7)
    command = [sys.executable, "-c", APPLY, path, str(messages)]
    for _ in range(4):
        process = subprocess.Popen(command)
        goal = _count(path) + chance.randint(1, 90)
        while _count(path) < goal:
            time.sleep(chance.random() / 500)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was done before the kill: nothing is proved"
    subprocess.run(command, check=True)
    with sqlite3.connect(path) as check:
        total = check.execute("SELECT total FROM account").fetchone()[0]
    check.close()
    assert (total, _count(path)) == (messages, messages)


def _count(path: str) -> int:
    with sqlite3.connect(path) as check:
        found: int = check.execute("SELECT COUNT(*) FROM shinar_idempotency").fetchone()[0]
    check.close()
    return found
