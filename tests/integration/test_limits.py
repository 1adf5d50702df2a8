"""What servers refuse: a body too large, a queue that is not there, no room left. Each is told as what it
is, nothing is lost, and it goes on when there is room. (What the brokers' own tests have is not repeated.)"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from cases import take
from servers import Server, ServerMissing, start_private
from servers.process import clean_env, new_home
from servers.recipes.rabbitmq import find_script
from shinar.brokers import Broker, Outgoing, connect
from shinar.errors import BodyTooLarge, BrokerFull, QueueMissing

HEAVY = bool(os.environ.get("SHINAR_HEAVY"))
BODY = b'{"x":"' + b"y" * 20_000 + b'"}'


def publish_until_refused(broker: Broker, queue: str, most: int = 200) -> int:
    """How many were confirmed before the server said that it is full."""
    for count in range(most):
        try:
            broker.publish(queue, [Outgoing(BODY)])
        except BrokerFull:
            return count
    raise AssertionError(f"{most} messages and never full")


@pytest.mark.live("artemis")
def test_an_artemis_address_without_room(server: Server) -> None:
    queue = f"small.{os.getpid()}"
    with closing(connect(server.url)) as broker:
        sent = publish_until_refused(broker, queue)
        assert sent > 0
        got = take(broker, queue, sent)
        assert len(got) == sent
        assert broker.ack(got) == ()
        wait_for_room(broker, queue)
        assert len(take(broker, queue, 1)) == 1


@pytest.mark.live("artemis")
def test_a_queue_that_artemis_may_not_make(server: Server) -> None:
    with closing(connect(server.url)) as broker:
        for call in (
            lambda: broker.publish("fixed.nowhere", [Outgoing(BODY)]),
            lambda: broker.reserve("fixed.nowhere", 1, 1.0),
        ):
            with pytest.raises(QueueMissing, match="create the queue"):
                call()
        broker.publish(f"made-{os.getpid()}", [Outgoing(BODY)])


@pytest.mark.live("redis")
def test_a_body_over_the_limit_of_redis_is_not_sent(server: Server) -> None:
    with closing(connect(server.url)) as broker:
        with pytest.raises(BodyTooLarge, match="reference"):
            broker.publish(f"q-{os.getpid()}", [Outgoing(bytes(512 * 1024 * 1024 + 1))])
        assert broker.depth(f"q-{os.getpid()}").ready == 0


def test_a_full_sqlite_file(tmp_path: Path) -> None:
    with closing(connect(f"sqlite://{tmp_path}/q.db")) as broker:
        broker.publish("q", [Outgoing(BODY) for _ in range(5)])
        raw = broker._database.raw  # type: ignore[attr-defined]  # the limit is the connection's
        (pages,) = raw.execute("PRAGMA page_count").fetchone()
        raw.execute(f"PRAGMA max_page_count = {pages + 20}").fetchone()
        sent = 5 + publish_until_refused(broker, "q")
        # A reservation is written, too: without any room there is none.
        raw.execute(f"PRAGMA max_page_count = {pages + 100}").fetchone()
        got = take(broker, "q", sent)
        assert len(got) == sent
        assert broker.ack(got) == ()
        broker.publish("q", [Outgoing(BODY)])
        assert len(take(broker, "q", 1)) == 1


@pytest.mark.parametrize("name", ["redis", "postgresql"])
def test_a_full_disk(name: str) -> None:
    with small_disk(name) as home, started(name, home) as server, closing(connect(server.url)) as broker:
        broker.publish("q", [Outgoing(BODY)])
        ballast = home / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(65_536)):
                pass
        sent = 1 + publish_until_refused(broker, "q")
        ballast.unlink()
        wait_for_room(broker)
        got = take(broker, "q", sent + 1)
        assert len(got) == sent + 1
        assert broker.ack(got) == ()


@pytest.mark.skipif(not HEAVY, reason="slow to start; with SHINAR_HEAVY=1")
def test_rabbitmq_without_disk_and_with_a_small_limit() -> None:
    with private("rabbitmq") as server:
        with closing(connect(f"{server.url}?timeout_s=5")) as broker:
            broker.publish("q", [Outgoing(BODY)])
            control(server, "set_disk_free_limit", "900GB")
            with pytest.raises(BrokerFull, match="disk"):
                broker.publish("q", [Outgoing(BODY)])
            control(server, "set_disk_free_limit", "50MB")
            wait_for_room(broker)
        control(server, "eval", "application:set_env(rabbit, max_message_size, 30000).")
        with closing(connect(server.url)) as broker:
            with pytest.raises(BodyTooLarge) as caught:
                broker.publish("q", [Outgoing(BODY * 2)])
            assert caught.value.limit_bytes == 30_000
            broker.publish("q", [Outgoing(BODY)])
            # What was refused for want of room may or may not have arrived.
            assert 3 <= len(take(broker, "q", 4, timeout_s=5)) <= 4


# --


def wait_for_room(broker: Broker, queue: str = "q") -> None:
    """Publish one more, as soon as the server has noticed that there is room again."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(BrokerFull):
            broker.publish(queue, [Outgoing(BODY)])
            return
        time.sleep(0.1)
    raise AssertionError("still full")


@contextmanager
def private(name: str) -> Iterator[Server]:
    with missing_is_skipped():
        server = start_private(name)
    with closing(server):
        yield server


@contextmanager
def started(name: str, home: Path) -> Iterator[Server]:
    with missing_is_skipped():
        server = Server(name, home, importlib.import_module(f"servers.recipes.{name}").plan(home, None))
        server.start()
    with closing(server):
        yield server


@contextmanager
def missing_is_skipped() -> Iterator[None]:
    try:
        yield
    except ServerMissing as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(exc.reason)


@contextmanager
def small_disk(name: str) -> Iterator[Path]:
    """A directory that is a file system of its own; only root may make one, and not everywhere."""
    home = new_home(f"full-{name}")
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,mode=0755", "tmpfs", str(home)]
    if (
        not sys.platform.startswith("linux")
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("no file system of a chosen size can be made here (needs root)")
    try:
        yield home
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


def control(server: Server, *words: str) -> None:
    script = find_script()
    assert script is not None
    environment = {**clean_env(server.home), **server._plan.env}
    environment.pop("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS")
    command = [str(script.with_name("rabbitmqctl")), *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
