"""Limits on one client, one frame and one queue of the embedded broker, over real sockets and files."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from live import until
from shinar.brokers import Broker, Outgoing, connect
from shinar.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ProtocolViolation,
    StoreError,
    UsageError,
)
from shinar.phpmq import maintenance
from shinar.phpmq.client import Client, PhpmqAddress
from shinar.phpmq.protocol import Consume, DeadLetter, Send
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.schema import DATA_FILE
from shinar.phpmq.server import Listener, MetricsListener, Options, Server, ServerThread, serve_in_thread
from shinar.phpmq.server.access import digest_of, from_file, from_token
from shinar.phpmq.server.events import EventLog
from shinar.phpmq.server.logins import FORGET_S, LONGEST_DELAY_S, MAX_WAITING, FailedLogins
from shinar.phpmq.store import BrokerStore

from .phpmq_plain import Plain

ALICE, BOB = "alice-token-0001", "bobby-token-0001"
Start = Callable[..., ServerThread]
Open = Callable[[str], Broker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(**settings: object) -> ServerThread:
            folder = settings.pop("folder", tmp_path / "data")
            return stack.enter_context(serve_in_thread(folder, **settings))  # type: ignore[arg-type]  # of any kind

        yield begin


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(connect(url)))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(
        "".join(
            f'[[client]]\nsha256 = "{digest_of(token)}"\nread = ["*"]\nwrite = ["*"]\nadmin = true\n'
            for token in (ALICE, BOB)
        )
    )
    return path


def port_of(server: ServerThread) -> int:
    return int(server.url.rpartition(":")[2])


def client_of(server: ServerThread, token: str = "") -> Client:
    return Client(PhpmqAddress(port=port_of(server), token=token))


def bodies(count: int) -> list[Outgoing]:
    return [Outgoing(b"%d" % number) for number in range(count)]


# -- reserved messages of one client


def test_detached_and_pipelined_leases_count_against_their_client(
    start: Start, opened: Open, rules: Path
) -> None:
    server = start(options=Options(max_held=100, max_inflight=250), access=from_file(rules))
    alice, bob = (f"phpmq://:{token}@127.0.0.1:{port_of(server)}" for token in (ALICE, BOB))
    opened(bob).publish("q", bodies(500))
    greedy = connect(f"{alice}?hold=lease&lease_s=3600")
    assert len(greedy.reserve("q", 1000, 1)) == 100
    greedy.close()
    with pytest.raises(BrokerFull, match="100 messages reserved"):
        opened(alice).reserve("q", 1, 1)
    with closing(client_of(server, BOB)) as client:
        tags = [client.send(ext.Reserve(client.tag(), "q", 60)) for _ in range(3)]
        assert [len(client.receive(tag, ext.Batch).items) for tag in tags[:2]] == [60, 40]
        with pytest.raises(BrokerFull):
            client.receive(tags[2], ext.Batch)
    limited = server.server.hub.engine.totals.limited
    assert limited["reserved_by_client"] == 2


def test_whoever_finds_the_broker_full_is_told_so(start: Start, opened: Open, rules: Path) -> None:
    server = start(options=Options(max_held=100, max_inflight=100), access=from_file(rules))
    alice, bob = (f"phpmq://:{token}@127.0.0.1:{port_of(server)}" for token in (ALICE, BOB))
    first = opened(alice)
    first.publish("q", bodies(200))
    held = first.reserve("q", 100, 1)
    second = opened(bob)
    with pytest.raises(BrokerFull, match="all clients together"):
        second.reserve("q", 1, 0.1)
    assert first.ack(held) == ()
    assert len(second.reserve("q", 1, 5)) == 1


def test_reserves_that_wait_are_limited(start: Start) -> None:
    server = start(options=Options(max_waiting=5))
    with closing(client_of(server)) as client:
        tags = [client.send(ext.Reserve(client.tag(), "q", 1, 60_000)) for _ in range(6)]
        with pytest.raises(BrokerFull, match="5 reserves"):
            client.receive(tags[-1], ext.Batch)


# -- what one request may ask for


def test_a_request_with_too_much_in_it_is_refused_before_it_is_decoded(start: Start, opened: Open) -> None:
    server = start()
    with closing(client_of(server)) as client:
        many = ext.Publish(client.tag(), "q", [ext.Item(b"")] * 300_000)
        with pytest.raises(ProtocolViolation, match="300000 messages"):
            client.call(many, int)
        note = ext.Extra({f"h{number}": "x" * 100 for number in range(100)})
        with pytest.raises(BrokerError, match="limit"):
            client.call(ext.Publish(client.tag(), "q", [ext.Item(b"", note)] * 500), int)
        copies = [ext.Copy(1, 1, ext.Item(b"", note))] * 500
        with pytest.raises(BrokerError, match="limit"):
            client.call(ext.Move(client.tag(), "q", copies), list[ext.Held])
        with pytest.raises(ProtocolViolation, match="20000 receipts"):
            client.call(ext.Ack(client.tag(), [ext.Held(7, [1] * 41_000)]), list[ext.Held])
        assert client.call(ext.Publish(client.tag(), "q", [ext.Item(b"")] * 2_000), int) == 2_000
    with closing(client_of(server)) as client, pytest.raises(ProtocolViolation, match="over the limit"):
        client.call(ext.Ack(client.tag(), [ext.Held(7, [1] * 600_000)]), list[ext.Held])
    assert opened(server.url).depth("q").ready == 2_000
    assert server.server.hub.engine.totals.limited["request_size"] == 4


def test_many_receipts_are_settled_in_steps_and_all_of_them(start: Start, opened: Open) -> None:
    broker = opened(start().url)
    broker.publish("q", bodies(12_000))
    got = []
    while len(got) < 12_000:
        got += broker.reserve("q", 12_000, 5)
    assert broker.extend(got, 60) == ()
    assert broker.release(got[:6_001]) == ()
    assert broker.ack(got) == tuple(got[:6_001])
    assert broker.depth("q").ready == 6_001


def test_replies_that_are_not_read_stop_the_requests(start: Start, opened: Open) -> None:
    """4,000 pipelined browses in 200 KB must not become gigabytes of replies."""
    server = start()
    opened(server.url).publish("big", [Outgoing(os.urandom(500_000)) for _ in range(30)])
    with Plain(server.url) as hostile:
        hostile.raw(ext.pack(ext.Hello(1)))
        hostile.socket.settimeout(1)
        with suppress(TimeoutError):
            hostile.raw(ext.pack(ext.Browse(1, "big", 0, 1000)) * 4_000)
        time.sleep(1)
        (account,) = {connection.account for connection in server.server.hub.connections}
        assert 0 < account.unsent_bytes < 20_000_000
        assert opened(server.url).depth("big").ready == 30


def test_a_browse_does_not_look_at_reserved_messages(start: Start, opened: Open) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies(30_000))
    held = []
    while len(held) < 29_999:
        held += broker.reserve("q", 29_999 - len(held), 5)
    loads = []
    store = server.server.hub.engine.store
    load, get = store.load, store.get
    store.load = lambda *words: loads.append(words) or load(*words)  # type: ignore[method-assign]  # counts
    store.get = lambda *words: loads.append(words) or get(*words)  # type: ignore[method-assign]  # counts
    assert [one.body for one in broker.browse("q", 1)] == [b"29999"]
    assert len(loads) <= 1
    broker.release(held[:2])
    assert [one.body for one in broker.browse("q", 5)] == [b"0", b"1", b"29999"]


# -- queues


def test_a_transfer_into_a_new_queue_at_the_limit_is_not_forgotten(start: Start, opened: Open) -> None:
    server = start(options=Options(max_queues=2))
    broker = opened(server.url)
    broker.publish("source", bodies(1_000))
    with closing(client_of(server)) as client:
        transfer = ext.Transfer(client.tag(), "source", "target")
        publish = ext.Publish(client.tag(), "other", [ext.Item(b"x")])
        client._socket.sendall(ext.pack(transfer) + ext.pack(publish))  # both in one read
        assert client.receive(transfer.tag, int) == 1_000
        with pytest.raises(BrokerFull):
            client.receive(publish.tag, int)
    assert broker.depth("target").ready == 1_000
    assert maintenance.check(server.server.hub.engine.store.folder) == []


def test_expiry_and_dead_letters_do_not_get_around_the_limit_on_queues(start: Start, opened: Open) -> None:
    server = start(options=Options(max_queues=3))
    broker = opened(server.url)
    with Plain(server.url) as client:
        client.send(*(Send(f"q{number}", b"x", 1) for number in range(3)))
        assert until(lambda: sum(broker.depth(f"q{n}.dlq").ready or 0 for n in range(3)) == 3, 15)
        client.send(Consume("q0.dlq", 1))
        client.send(DeadLetter("q0.dlq", client.next().id))
        assert client.next().content == b"x", "a dead letter of a dead-letter queue stays there"
    names = set(server.server.hub.engine.queues.by_name)
    assert names == {f"q{n}" for n in range(3)} | {f"q{n}.dlq" for n in range(3)}
    with pytest.raises(BrokerFull):
        broker.publish("q3", bodies(1))


def damage(folder: Path, queue: str) -> None:
    """Overwrite the leaf pages that hold messages of this queue and of no other."""
    path = folder / DATA_FILE
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    needle = f"body of {queue}".encode()
    hit = 0
    for begin in range(4096, len(data), 4096):
        page = data[begin : begin + 4096]
        if page[0] == 0x0D and page.count(needle) == page.count(b"body of ") > 0:
            data[begin : begin + 4096] = b"\xff" * 4096
            hit += 1
    assert hit
    path.write_bytes(data)


def test_a_damaged_page_closes_its_queue_and_no_other(start: Start, opened: Open, tmp_path: Path) -> None:
    server = start()
    broker = opened(server.url)
    # Pages are shared at the border of two queues, so there is a queue between those that matter.
    for queue in ("sound", "before", "broken", "behind", "other"):
        broker.publish(queue, [Outgoing(f"body of {queue} {n}".encode() + bytes(400)) for n in range(200)])
    server.stop()
    damage(tmp_path / "data", "broken")
    server = start()
    broker = opened(server.url)
    (held,) = broker.reserve("sound", 1, 1)
    with Plain(server.url) as consumer:
        consumer.send(Consume("broken", 1))
        assert consumer.hung_up()
    for attempt in (
        lambda: broker.reserve("broken", 1, 5),
        lambda: list(broker.browse("broken")),
        lambda: broker.publish("broken", bodies(1)),
    ):
        with pytest.raises(BrokerError, match="fsck"):
            attempt()
    with closing(client_of(server)) as client:
        with pytest.raises(BrokerError, match="fsck"):
            client.call(ext.Transfer(client.tag(), "broken", "sound"), int)
        assert client.call(ext.Transfer(client.tag(), "other", "sound"), int) == 200
    assert broker.ack([held]) == (), "the same connection, and its reservation, as before"
    assert len(broker.reserve("sound", 1000, 1)) == 399
    totals = server.server.hub.engine.totals
    assert (totals.damaged_queues, totals.store_failures) == (1, 0)


# -- connections and logins


def test_an_idle_connection_makes_way_for_a_new_one(start: Start, opened: Open) -> None:
    server = start(options=Options(max_connections=20))
    broker = opened(server.url)
    broker.publish("q", bodies(1))
    (held,) = broker.reserve("q", 1, 1)
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(closing(client_of(server)))
        assert opened(server.url).depth("q").reserved == 1
        assert broker.ack([held]) == (), "who has something reserved is kept"
    assert server.server.hub.engine.totals.limited["connections"] >= 20


def test_failed_logins_are_counted_logged_and_slowed_down(
    start: Start, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(listeners=(Listener(port=0, token=True),), access=from_token(ALICE))
    good = opened(f"{server.url}?token={ALICE}")
    took: list[float] = []
    with caplog.at_level(logging.WARNING, "shinar.phpmq"):
        for _ in range(4):
            started_s = time.monotonic()
            with pytest.raises(AccessDenied):
                client_of(server, "wrong-token-00001")
            took.append(time.monotonic() - started_s)
            asked_s = time.monotonic()
            good.depth("q")
            assert time.monotonic() - asked_s < took[-1] + 0.5, "others do not wait"
    assert took[3] > 0.7 > took[0]
    lines = [record.getMessage() for record in caplog.records if "login" in record.getMessage()]
    assert 1 <= len(lines) <= 4
    assert "wrong-token" not in caplog.text
    assert server.server.hub.engine.totals.failed_logins == 4


def test_guesses_wait_longer_and_longer_and_not_too_many_at_a_time() -> None:
    logins = FailedLogins()
    waits = [logins.failed("1.2.3.4", 0.0) for _ in range(MAX_WAITING + 1)]
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert waits[-2:] == [LONGEST_DELAY_S, None]
    assert logins.failed("5.6.7.8", 0.0) == 0.1, "another address has nothing to do with it"
    logins.answered("1.2.3.4")
    assert logins.failed("1.2.3.4", 1.0) == LONGEST_DELAY_S
    logins.answered("1.2.3.4")
    assert logins.failed("1.2.3.4", FORGET_S + 2.0) == 0.1


def test_a_flood_of_events_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    from shinar.clock import PinnedClock

    clock = PinnedClock(1000.0)
    events = EventLog(clock)
    with caplog.at_level(logging.WARNING, "shinar.phpmq"):
        for number in range(10_000):
            events.warn("cut", f"client {number}\x1b[2J")
        clock.advance(1.5)
        events.summarise()
    assert [record.getMessage() for record in caplog.records] == [
        "client 0\\x1b[2J",
        "cut: 9999 more like the last one",
    ]


def test_what_asyncio_reports_is_limited_too(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    hub = server.server.hub
    loop = asyncio.new_event_loop()
    with closing(loop), caplog.at_level(logging.WARNING):
        for _ in range(500):
            hub.loop_error(loop, {"message": "SSL handshake failed", "exception": OSError("no TLS")})
    assert len(caplog.records) <= 3


# -- rules, metrics, files


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[client]]\nsha256 = "{digest}"\nraed = ["*"]\n', "raed"),
        ('[[client]]\nsha256 = "{digest}"\n[plain]\nadmin = true\n', "admin"),
        ('[[client]]\nsha256 = "{digest}"\n[plian]\nread = []\n', "nothing else"),
    ],
)
def test_a_key_that_the_rules_do_not_have_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text.replace("{digest}", digest_of(ALICE)))
    with pytest.raises(ConfigError, match=problem):
        from_file(path)


def test_what_the_rules_do_not_say_is_not_allowed(start: Start, opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(f'[[client]]\nsha256 = "{digest_of(ALICE)}"\n')
    server = start(access=from_file(path))
    alice = opened(f"{server.url}?token={ALICE}")
    for forbidden in (lambda: alice.publish("q", bodies(1)), lambda: alice.reserve("q", 1, 0)):
        with pytest.raises(AccessDenied):
            forbidden()
    with Plain(server.url) as plain:
        plain.send(Send("q", b"x"))
        assert plain.hung_up(), "clients without a token have no rights either"


def test_metrics_on_a_public_address_require_a_token(tmp_path: Path) -> None:
    def make() -> Server:
        listeners = (Listener(port=0, token=True),)
        metrics = MetricsListener(token=True)
        return Server(BrokerStore(tmp_path), listeners, access=from_token(ALICE), metrics=metrics)

    with ServerThread(make) as thread:
        url = f"http://127.0.0.1:{thread.server.metrics_port}/metrics"
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {ALICE}"}):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(urllib.request.Request(url, headers=header))
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {ALICE}"})
        with urllib.request.urlopen(asked) as answer:
            first = answer.read()
            assert b"shinar_broker_failed_logins_total" in first
        with urllib.request.urlopen(asked) as answer:
            assert answer.read() == first, "a second scrape within the second costs nothing"


def test_files_can_be_read_by_their_owner_only(start: Start, opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    opened(start(folder=folder).url).publish("q", bodies(1))
    copy = tmp_path / "copy.sqlite"
    maintenance.backup(folder, copy)
    for path in (*folder.iterdir(), copy):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_backup_does_not_write_through_a_link(start: Start, opened: Open, tmp_path: Path) -> None:
    opened(start().url).publish("q", bodies(1))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("copy.sqlite", "copy.sqlite.part"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(StoreError, match="exists"):
        maintenance.backup(tmp_path / "data", tmp_path / "copy.sqlite")
    (tmp_path / "copy.sqlite").unlink()
    maintenance.backup(tmp_path / "data", tmp_path / "copy.sqlite")
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_an_empty_data_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    (tmp_path / DATA_FILE).touch()
    with pytest.raises(StoreError, match="is empty"):
        BrokerStore(tmp_path)


# -- delivery counts and lost connections


def test_a_release_that_does_not_count_leaves_no_trace(start: Start, opened: Open, tmp_path: Path) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies(3))
    for _ in range(4):
        assert broker.release(broker.reserve("q", 3, 5), count=False) == ()
    broker.release(broker.reserve("q", 1, 5))
    broker.release(broker.reserve("q", 1, 5), count=False)
    broker.release(broker.reserve("q", 2, 5)[1:], 0.01, count=False)
    assert until(lambda: broker.depth("q").delayed == 0)
    server.stop()
    server = start()
    broker = opened(server.url)
    got = broker.reserve("q", 3, 5)
    assert sorted((one.body, one.native_count) for one in got) == [(b"0", 2), (b"1", 0), (b"2", 0)]
    assert broker.ack(got) == ()
    server.stop()
    assert maintenance.check(tmp_path / "data") == [], "no count is left of a message that is gone"


HOLD = """
import os, signal, sys
from shinar.brokers import connect
broker = connect(sys.argv[1])
print([one.native_count for one in broker.reserve("q", 5, 10)], flush=True)
signal.pause()
"""


def test_counts_survive_killed_clients_and_a_killed_server(tmp_path: Path) -> None:
    """A message that kills its worker is counted each time, and so is one that dies with the broker."""
    serve = ["-m", "shinar.cli.main", "broker", "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    with begun(*serve) as (server, url):
        with closing(connect(url)) as broker:
            broker.publish("q", bodies(1))
        for count in range(3):
            with begun("-c", HOLD, url) as (_, counts):
                assert counts == f"[{count}]"
        with begun("-c", HOLD, url) as (_, counts):
            assert counts == "[3]"
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
    with begun(*serve) as (_, url), closing(connect(url)) as broker:
        assert [one.native_count for one in broker.reserve("q", 5, 10)] == [4]


@contextmanager
def begun(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python process and the first line it prints; it is killed in the end."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_receipts_of_a_lost_connection_are_lapsed_not_an_error(start: Start, opened: Open) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies(1_000))
    got = broker.reserve("q", 1_000, 5)
    commits = server.server.hub.engine.totals.commits
    for connection in list(server.server.hub.connections):
        server._loop.call_soon_threadsafe(connection.abort)
    assert until(lambda: opened(server.url).depth("q").ready == 1_000)
    assert broker.extend(got, 60) == tuple(got)
    assert broker.ack(got) == tuple(got)
    assert broker.release(got[:5], count=False) == tuple(got[:5])
    assert opened(server.url).depth("q").ready == 1_000
    assert server.server.hub.engine.totals.commits - commits < 200


# -- mistakes that have a name


def test_a_server_of_another_kind_is_named_at_once(start: Start, certificate_pair: tuple[Path, Path]) -> None:
    import ssl

    for greeting, name in ((b"-ERR unknown command\r\n", "Redis"), (b"HTTP/1.1 400 Bad\r\n\r\n", "HTTP")):
        with _line_server(greeting) as port:
            for scheme in ("phpmq", "phpmqs"):
                started_s = time.monotonic()
                with pytest.raises(ProtocolViolation, match=name):
                    connect(f"{scheme}://127.0.0.1:{port}/q")
                assert time.monotonic() - started_s < 5
    plain = start()
    with pytest.raises(ProtocolViolation, match="use phpmq://"):
        connect(plain.url.replace("phpmq://", "phpmqs://"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate_pair)
    secret = start(
        folder=plain.server.hub.engine.store.folder / "two", listeners=(Listener(port=0, tls=context),)
    )
    with pytest.raises((BrokerUnavailable, ProtocolViolation), match="phpmqs://"):
        connect(secret.url.replace("phpmqs://", "phpmq://"))


@pytest.fixture
def certificate_pair(tmp_path: Path) -> tuple[Path, Path]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


class _line_server:
    """As servers of text protocols do: it answers once it has read a whole line."""

    def __init__(self, greeting: bytes) -> None:
        self._greeting = greeting
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        got = b""
        with suppress(OSError), client:
            while b"\n" not in got:
                more = client.recv(4096)
                if not more:
                    return
                got += more
            client.sendall(self._greeting)


def test_two_threads_on_one_connection_are_refused_and_nothing_is_mixed(start: Start, opened: Open) -> None:
    broker = opened(start().url)
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(len(broker.reserve("q", 1, 3))))
    waiting.start()
    time.sleep(0.5)
    with pytest.raises(UsageError, match="two threads"):
        broker.publish("q", bodies(1))
    waiting.join()
    assert results == [0], "the first thread's request was not disturbed"
    broker.publish("q", bodies(1))
    assert broker.depth("q").ready == 1
