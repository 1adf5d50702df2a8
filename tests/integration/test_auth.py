"""Every server that asks for credentials: the right ones work, wrong ones are told as such, and none is
shown in an error or a log."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis

from cases import take, with_options
from servers import Server, ServerMissing, start_private, start_with_login
from servers.process import new_home
from servers.recipes import kafka as kafka_recipe
from servers.recipes import pulsar as pulsar_recipe
from servers.recipes import servicebus as servicebus_recipe
from shinar import Limits, Worker
from shinar.brokers import Outgoing, connect
from shinar.envelope import build, encode
from shinar.errors import AccessDenied, BrokerError

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
URN = "urn:babel:orders:created"
WRONG = "wr0ng-hush-hush"

#: (the right URL, one with wrong credentials, what must appear nowhere)
Pair = tuple[str, str, tuple[str, ...]]


@contextmanager
def own(start: Callable[[], Server]) -> Iterator[Server]:
    try:
        server = start()
    except ServerMissing as exc:
        if IN_CI:
            raise
        pytest.skip(exc.reason)
    with closing(server):
        yield server


def instead(url: str, right: str, wrong: str = WRONG) -> Pair:
    """That URL, and the same with another password."""
    return url, url.replace(f":{right}@", f":{wrong}@"), (right, wrong)


@contextmanager
def redis_password(live_server: Callable[..., Server]) -> Iterator[Pair]:
    with own(lambda: start_private("redis")) as server:
        with closing(redis.Redis.from_url(server.url)) as admin:
            admin.config_set("requirepass", "right-pass")
        yield instead(server.url.replace("redis://", "redis://:right-pass@"), "right-pass")


@contextmanager
def redis_user(live_server: Callable[..., Server]) -> Iterator[Pair]:
    server = live_server("redis")
    user = f"u{uuid.uuid4().hex[:8]}"
    with closing(redis.Redis.from_url(server.url)) as admin:
        admin.acl_setuser(user, enabled=True, passwords=["+right-pass"], keys=["*"], categories=["+@all"])
        yield instead(server.url.replace("redis://", f"redis://{user}:right-pass@"), "right-pass")
        admin.acl_deluser(user)


@contextmanager
def by_url(name: str, live_server: Callable[..., Server]) -> Iterator[Pair]:
    url = live_server(name).url
    yield instead(url, urlsplit(url).password or "")


@contextmanager
def servicebus(live_server: Callable[..., Server]) -> Iterator[Pair]:
    def start() -> Server:
        home = new_home("servicebus-login")
        server = Server("servicebus", home, servicebus_recipe.plan(home, None, "--key", "right-pass"))
        server.start()
        return server

    with own(start) as server:
        yield instead(f"servicebus://me:right-pass@127.0.0.1:{server.port}?emulator=1", "right-pass")


@contextmanager
def kafka(mechanism: str, live_server: Callable[..., Server]) -> Iterator[Pair]:
    with own(lambda: start_with_login("kafka")) as server:
        url = with_options(server.url, f"mechanism={mechanism}", "timeout_s=10")
        yield instead(url, kafka_recipe.PASSWORD)


@contextmanager
def pulsar(live_server: Callable[..., Server]) -> Iterator[Pair]:
    with own(lambda: start_with_login("pulsar")) as server:
        right, wrong = pulsar_recipe.token("admin"), pulsar_recipe.token("admin", b"x" * 32)
        yield f"{server.url}?token={right}", f"{server.url}?token={wrong}", (right, wrong)


SLOW = pytest.mark.skipif(not HEAVY, reason="slow to start; with SHINAR_HEAVY=1")
WAYS = {
    "redis password": redis_password,
    "redis user": redis_user,
    "rabbitmq": partial(by_url, "rabbitmq"),
    "postgresql": partial(by_url, "postgresql"),
    "mariadb": partial(by_url, "mariadb"),
    "artemis": partial(by_url, "artemis"),
    "servicebus": servicebus,
    "kafka plain": partial(kafka, "PLAIN"),
    "kafka scram": partial(kafka, "SCRAM-SHA-256"),
    "pulsar": pulsar,
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=SLOW) if way.startswith(("kafka", "pulsar")) else way for way in WAYS]
)
def test_right_credentials_work_and_wrong_ones_are_told_but_not_shown(
    way: str,
    live_server: Callable[..., Server],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture,
) -> None:
    queue = f"auth-{uuid.uuid4().hex[:8]}"
    body = encode(build(URN, {"n": 1}))
    with WAYS[way](live_server) as (right, wrong, secrets):
        with caplog.at_level(logging.DEBUG, "shinar"), caplog.at_level(logging.INFO):
            with closing(connect(right)) as broker:
                broker.publish(queue, [Outgoing(body)])
                got = take(broker, queue, 1)
                assert [delivery.body for delivery in got] == [body]
                assert broker.ack(got) == ()
            with pytest.raises(AccessDenied) as by_producer:
                publish(wrong, queue, body)
            # A worker must not wait for a password to become right.
            with pytest.raises(AccessDenied) as by_worker:
                Worker(wrong, {URN: print}, queue=queue, limits=Limits(max_time_s=60)).run()
    shown = "".join(
        f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
        for caught in (by_producer, by_worker)
    )
    out, err = capfd.readouterr()
    for secret in secrets:
        assert secret not in shown
        assert secret not in caplog.text
        assert secret not in out + err


def publish(url: str, queue: str, body: bytes) -> None:
    broker = connect(url)
    try:
        broker.publish(queue, [Outgoing(body)])
    finally:
        with suppress(BrokerError):
            broker.close()
