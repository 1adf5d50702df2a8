"""The embedded broker over real sockets: plain PHPMQ clients and the extension side by side."""

from __future__ import annotations

import os
import random
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from live import until
from shinar.brokers import Broker, Outgoing, connect
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    PublishFailed,
    QueueMissing,
    StoreError,
)
from shinar.phpmq import archive, maintenance
from shinar.phpmq.engine import RequestRefused
from shinar.phpmq.protocol import Acknowledge, Consume, DeadLetter, Limits, Requeue, Send, encode
from shinar.phpmq.server import Access, Listener, Options, Rights, ServerThread, serve_in_thread
from shinar.phpmq.server.access import digest_of, from_file, from_token

from .phpmq_plain import Plain

LOOPBACK = Listener(port=0)
Start = Callable[..., ServerThread]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(**settings: object) -> ServerThread:
            folder = settings.pop("folder", tmp_path / "data")
            return stack.enter_context(serve_in_thread(folder, **settings))  # type: ignore[arg-type]  # of any kind

        yield begin


@pytest.fixture
def opened() -> Iterator[Callable[[str], Broker]]:
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(connect(url)))


def bodies(*texts: str) -> list[Outgoing]:
    return [Outgoing(text.encode()) for text in texts]


# -- plain PHPMQ


def test_send_consume_acknowledge_in_both_forms(start: Start, opened) -> None:
    server = start(listeners=(LOOPBACK, Listener(port=0, dispatch_form="ttl")))
    broker = opened(server.url)
    for url, ttl_s in zip(server.urls, (None, 0), strict=True):
        with Plain(url) as producer, Plain(url) as consumer:
            consumer.send(Consume("orders", 2))
            producer.send(*(Send("orders", b"%d" % n) for n in range(5)))
            first = consumer.take(2)
            assert [message.content for message in first] == [b"0", b"1"]
            assert [message.ttl_s for message in first] == [ttl_s, ttl_s]
            assert all(len(message.id) == 32 for message in first)
            assert consumer.silent(), "the count is a window"
            consumer.send(Acknowledge("orders", first[1].id), Acknowledge("orders", first[0].id))
            rest = consumer.take(2)
            consumer.send(*(Acknowledge("orders", message.id) for message in rest))
            (last,) = consumer.take(1)
            consumer.send(Acknowledge("orders", last.id))
            assert until(lambda: broker.depth("orders").ready == broker.depth("orders").reserved == 0)


def test_a_client_that_sent_shows_its_form(start: Start) -> None:
    server = start()
    with Plain(server.url) as client:
        client.send(Send("q", b"x", 3600), Consume("q", 1))
        assert client.next().ttl_s == 3600
    with Plain(start(folder=server.server.hub.engine.store.folder / "two", listeners=(
        Listener(port=0, dispatch_form="ttl"),)).url) as client:  # fmt: skip
        client.send(Send("q", b"x"), Consume("q", 1))
        assert client.next().ttl_s is None


def test_unacked_messages_come_back_in_order_with_a_count(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies("0", "1", "2", "3"))
    with Plain(server.url) as consumer:
        consumer.send(Consume("q", 3))
        got = consumer.take(3)
        consumer.send(Acknowledge("q", got[1].id))
        assert consumer.next().content == b"3"
    again = broker.reserve("q", 10, 5)
    assert len(again) == 3 or until(lambda: len(again.__iadd__(broker.reserve("q", 10, 1))) == 3)
    assert [(d.body, d.native_count) for d in again] == [(b"0", 1), (b"2", 1), (b"3", 1)]


def test_what_plain_senders_sent_before_they_hung_up_is_kept(start: Start, opened) -> None:
    """More than one slice of time allows: the rest must not be dropped with the connection."""
    server = start()
    for _ in range(6):
        with Plain(server.url) as sender:
            sender.send(*(Send(f"q{n % 7}", b"x") for n in range(3_000)))
    broker = opened(server.url)
    assert until(lambda: sum(broker.depth(f"q{n}").ready for n in range(7)) == 18_000, 30)


def test_requeue_goes_to_the_end_with_a_new_ttl(start: Start, opened) -> None:
    server = start()
    opened(server.url).publish("q", bodies("a", "b"))
    with Plain(server.url) as consumer:
        consumer.send(Send("other", b"", 0), Consume("q", 1))
        first = consumer.next()
        assert (first.content, first.ttl_s) == (b"a", 0)
        consumer.send(Requeue("q", first.id, 500))
        second = consumer.next()
        assert second.content == b"b"
        consumer.send(Acknowledge("q", second.id))
        third = consumer.next()
        assert third.content == b"a"
        assert third.ttl_s is not None
        assert 495 <= third.ttl_s <= 500


def test_dead_letter_goes_to_the_dlq_whatever_its_ttl(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    with Plain(server.url) as consumer:
        consumer.send(Send("q", b"poison", 3600), Send("q", b"good", 0), Consume("q", 1))
        consumer.send(DeadLetter("q", consumer.next().id))
        good = consumer.next()
        assert good.content == b"good", "a dead letter makes room for the next message"
        consumer.send(Acknowledge("q", good.id))
        (dead,) = broker.reserve("q.dlq", 5, 5)
    assert dead.body == b"poison"
    assert dict(dead.headers) == {"phpmq-reason": "dead-letter", "phpmq-queue": "q"}
    assert until(lambda: broker.depth("q").reserved == broker.depth("q").ready == 0)


def test_only_the_holder_may_settle(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies("mine"))
    with Plain(server.url) as holder, Plain(server.url) as thief:
        holder.send(Consume("q", 1))
        held = holder.next()
        thief.send(
            Acknowledge("q", held.id), DeadLetter("q", held.id), Requeue("q", held.id, 1), Consume("q", 5)
        )
        assert thief.silent()
        assert broker.depth("q").reserved == 1
        holder.send(Acknowledge("x", held.id), Acknowledge("q", "0" * 32), Acknowledge("q", "z" * 32))
        assert holder.silent(), "unknown ids are ignored, as php-mq's server does"
        holder.send(Acknowledge("q", held.id))
        assert until(lambda: broker.depth("q").reserved == 0)
    assert broker.depth("q.dlq").ready == 0


def test_a_new_consume_replaces_the_old_one(start: Start, opened) -> None:
    server = start()
    opened(server.url).publish("q", bodies("0", "1", "2"))
    with Plain(server.url) as consumer:
        consumer.send(Consume("q", 1))
        first = consumer.next()
        consumer.send(Consume("q", 2))
        assert consumer.take(2)[0].id == first.id
        consumer.send(Consume("q", 0))
        assert consumer.silent()


def test_consumers_share_fairly(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    with Plain(server.url) as one, Plain(server.url) as other:
        one.send(Consume("q", 100))
        other.send(Consume("q", 100))
        queues = server.server.hub.engine.queues.by_name
        assert until(lambda: "q" in queues and len(queues["q"].consumers) == 2)
        broker.publish("q", [Outgoing(b"%d" % n) for n in range(40)])
        assert len(one.take(20)) == len(other.take(20)) == 20
        assert one.silent()


def test_expired_messages_are_kept_as_dead_letters(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    with Plain(server.url) as client:
        client.send(Send("q", b"short", 1), Send("q", b"long", 3600))
        (dead,) = broker.reserve("q.dlq", 5, 10)
        assert (dead.body, dead.headers["phpmq-reason"]) == (b"short", "expired")
        client.send(Consume("q", 5))
        assert client.next().content == b"long"
    figures = {one.name: one for one in _figures(server)}
    assert figures["q"].expired == 1


def _figures(server: ServerThread):
    from shinar.phpmq.server.metrics import of_queues

    return list(of_queues(server.server.hub.engine, lambda _: True))


def test_a_hung_plain_consumer_loses_its_messages_when_its_lease_ends(start: Start, opened) -> None:
    server = start(options=Options(plain_lease_s=0.5))
    broker = opened(server.url)
    broker.publish("q", bodies("x"))
    with Plain(server.url) as hung:
        hung.send(Consume("q", 1))
        held = hung.next()
        (again,) = broker.reserve("q", 1, 10)
        assert again.native_count == 1
        hung.send(Acknowledge("q", held.id))
        assert broker.ack([again]) == ()


def test_a_large_window_of_large_bodies_arrives_whole(start: Start, opened) -> None:
    """More than the kernel's buffers hold: the server waits, and no frame is torn."""
    server = start()
    sent = [os.urandom(200_000) for _ in range(60)]
    opened(server.url).publish("q", [Outgoing(body) for body in sent])
    with Plain(server.url) as consumer:
        consumer.send(Consume("q", 1000))
        time.sleep(0.5)
        got = consumer.take(60)
        assert [message.content for message in got] == sent


def test_no_header_is_ever_seen_in_part(start: Start, opened) -> None:
    """As php-mq reads: whenever a header is due and the socket is readable, one read gives all 8 bytes."""
    server = start()
    dice = random.Random(3)
    sent = [bytes(dice.choice([10, 50, 77, 120])) for _ in range(5000)]
    sent[1000:1000] = sent[3000:3000] = [bytes(70_000)] * 3
    opened(server.url).publish("q", [Outgoing(body) for body in sent])
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        raw.sendall(encode(Consume("q", 100_000)))
        for number, body in enumerate(sent):
            if number % 40 == 0:
                time.sleep(0.005)  # fall behind, so that every buffer on the way is full
            assert select.select([raw], [], [], 10)[0]
            header = raw.recv(8, socket.MSG_DONTWAIT)
            assert header == b"H0100303", f"message {number}: {header!r}"
            for _ in range(3):
                packet = raw.recv(32, socket.MSG_WAITALL)
                content = raw.recv(int(packet[3:]), socket.MSG_WAITALL) if int(packet[3:]) else b""
                if packet.startswith(b"P02"):
                    assert content == body


# -- the extension


def test_confirmed_means_on_disk(start: Start, opened, tmp_path: Path) -> None:
    server = start()
    opened(server.url).publish("q", bodies("kept"))
    copy = tmp_path / "copy.sqlite"
    assert maintenance.backup(tmp_path / "data", copy) > 0
    restored = tmp_path / "restored"
    restored.mkdir()
    copy.rename(restored / "broker.sqlite")
    again = opened(start(folder=restored).url)
    assert [d.body for d in again.browse("q")] == [b"kept"]


def test_a_restart_keeps_messages_delays_headers_and_counts(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", [Outgoing(b"a", {"h": "1"}, b"k"), Outgoing(b"late", delay_s=2.0), Outgoing(b"b")])
    broker.release(broker.reserve("q", 1, 1))
    held = broker.reserve("q", 2, 1)
    assert [d.native_count for d in held] == [1, 0]
    server.stop()
    broker = opened(start().url)
    again = broker.reserve("q", 5, 1)
    assert [(d.body, dict(d.headers), d.key, d.native_count) for d in again[:2]] == [
        (b"a", {"h": "1"}, b"k", 2),
        (b"b", {}, None, 1),
    ]
    late = again[2:] or broker.reserve("q", 1, 10)
    assert [d.body for d in late] == [b"late"]


def test_receipts_end_with_their_connection_unless_detached(start: Start, opened) -> None:
    url = start().url
    reader = connect(url)
    keeper = connect(url + "?hold=lease&lease_s=1.5")
    broker = opened(url)
    broker.publish("q", bodies("a", "b"))
    (gone,), (kept,) = reader.reserve("q", 1, 1), keeper.reserve("q", 1, 1)
    reader.close()
    keeper.close()
    (back,) = broker.reserve("q", 5, 5)
    assert (back.body, back.native_count) == (b"a", 1)
    assert broker.ack([gone]) == (gone,)
    assert broker.extend([kept], 30) == ()
    time.sleep(1.6)
    assert broker.reserve("q", 5, 0) == []
    assert broker.ack([kept]) == ()


def test_a_queue_that_must_exist(start: Start, opened) -> None:
    url = start().url
    strict = opened(url + "?declare=false")
    with pytest.raises(QueueMissing):
        strict.publish("nope", bodies("x"))
    with pytest.raises(QueueMissing):
        strict.reserve("nope", 1, 0)
    opened(url).publish("yes", bodies("x"))
    strict.publish("yes", bodies("y"))
    assert strict.depth("yes").ready == 2


def test_bodies_over_the_limit_are_refused_before_anything_is_sent(start: Start, opened) -> None:
    broker = opened(start(options=Options(limits=Limits(max_body_bytes=1000))).url)
    with pytest.raises(BodyTooLarge) as caught:
        broker.publish("q", [Outgoing(b"ok"), Outgoing(b"x" * 1001)])
    assert caught.value.limit_bytes == 1000
    assert broker.depth("q").ready == 0
    with pytest.raises(BodyTooLarge):
        broker.publish("q", [Outgoing(b"", {"h": "x" * 70_000})])
    broker.publish("q", [Outgoing(b"x" * 1000)])


def test_a_refused_publish_leaves_the_connection_and_its_reservations(start: Start, opened) -> None:
    broker = opened(start(options=Options(max_queues=2)).url)
    broker.publish("q", bodies("held"))
    (held,) = broker.reserve("q", 1, 1)
    broker.publish("r", bodies("x"))
    with pytest.raises(BrokerFull):
        broker.publish("s", bodies("y"))
    assert broker.ack([held]) == (), "the reservation is still ours"


def test_part_of_a_large_publish_may_be_refused_and_it_says_which(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    intake = server.server.hub.engine.intake
    original = intake.publish
    calls = []

    def second_chunk_is_refused(name, items, create=True):
        calls.append(len(items))
        if len(calls) == 2:
            raise RequestRefused("full", "no room for these")
        original(name, items, create)

    intake.publish = second_chunk_is_refused  # type: ignore[method-assign]  # the fault to be survived
    sent = [Outgoing(b"%d" % n) for n in range(5000)]
    with pytest.raises(PublishFailed) as caught:
        broker.publish("q", sent)
    assert calls == [2000, 2000, 1000]
    assert caught.value.unconfirmed == tuple(range(2000, 4000))
    assert broker.depth("q").ready == 3000


def test_queues_that_were_only_waited_for_make_room(start: Start, opened) -> None:
    broker = opened(start(options=Options(max_queues=3)).url)
    for number in range(10):
        assert broker.reserve(f"nobody-sends-here-{number}", 1, 0) == []
    broker.publish("a", bodies("x"))
    broker.publish("b", bodies("x"))
    broker.publish("c", bodies("x"))
    with pytest.raises(BrokerFull):
        broker.publish("d", bodies("x"))


def test_a_fault_of_ours_leaves_nothing_half_done(start: Start, opened, monkeypatch, caplog) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies("before"))
    intake = server.server.hub.engine.intake
    original = intake.insert

    def faulty(*arguments: object) -> None:
        original(*arguments)
        raise KeyError("a bug")

    monkeypatch.setattr(intake, "insert", faulty)
    with pytest.raises(BrokerUnavailable):
        broker.publish("q", bodies("half"))
    monkeypatch.undo()
    broker.publish("q", bodies("after"))
    assert [d.body for d in broker.browse("q")] == [b"before", b"after"]
    assert "internal error" in caplog.text


def test_a_file_that_cannot_be_opened_again_ends_the_server(start: Start, opened, monkeypatch) -> None:
    server = start()
    broker = opened(server.url)
    store = server.server.hub.engine.store

    def broken(*_: object) -> None:
        raise StoreError("disk I/O error")

    monkeypatch.setattr(store, "commit", broken)
    monkeypatch.setattr(store, "queues", broken)
    with pytest.raises(BrokerUnavailable):
        broker.publish("q", bodies("x"))
    assert server.server.hub.failed.is_set()
    monkeypatch.undo()


def test_reserving_nothing_gives_nothing(start: Start, opened) -> None:
    broker = opened(start().url)
    broker.publish("q", bodies("x"))
    assert broker.reserve("q", 0, 0) == []
    assert broker.depth("q").ready == 1


def test_a_payload_must_hold_the_longest_body() -> None:
    with pytest.raises(ConfigError):
        Options(limits=Limits(max_body_bytes=1000, max_payload_bytes=1000))


def test_a_full_disk_refuses_publishes_but_lets_consumers_drain(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies("a"))
    intake = server.server.hub.engine.intake
    intake._options = replace(intake._options, min_free_bytes=2**62)
    intake._disk_checked_s = float("-inf")
    with pytest.raises(BrokerFull, match="disk"):
        broker.publish("q", bodies("b"))
    with Plain(server.url) as plain:
        plain.send(Send("q", b"c"))
        assert plain.hung_up(), "a plain client cannot be told, so it is cut off instead of ignored"
    assert broker.ack(broker.reserve("q", 5, 1)) == ()
    assert broker.depth("q").ready == 0


def test_a_failing_store_promises_nothing_and_recovers(start: Start, opened, monkeypatch) -> None:
    server = start()
    broker = opened(server.url)
    broker.publish("q", bodies("before"))
    store = server.server.hub.engine.store

    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise StoreError("disk I/O error")

    monkeypatch.setattr(store, "commit", broken)
    with pytest.raises(BrokerUnavailable):
        broker.publish("q", bodies("never"))
    broker.publish("q", bodies("after"))
    assert [d.body for d in broker.browse("q")] == [b"before", b"after"]
    assert server.server.hub.engine.totals.store_failures == 1


def test_a_stopping_server_says_so(start: Start, opened) -> None:
    server = start()
    broker = opened(server.url)
    timer = threading.Timer(0.3, server.stop)
    timer.start()
    with pytest.raises(BrokerUnavailable):
        broker.reserve("q", 1, 30)
    timer.join()


def test_a_reserve_survives_a_restart_of_the_server(start: Start, opened, tmp_path: Path) -> None:
    server = start()
    port = int(server.url.rpartition(":")[2])
    broker = opened(server.url)
    broker.publish("q", bodies("x"))
    server.stop()
    with pytest.raises(BrokerUnavailable):
        broker.reserve("q", 1, 0)
    start(listeners=(Listener(port=port),))
    assert [d.body for d in broker.reserve("q", 1, 1)] == [b"x"]


def test_acked_messages_can_be_read_again_from_the_archive(start: Start, opened, tmp_path: Path) -> None:
    broker = opened(start(archive=True).url)
    folder = tmp_path / "data"
    assert archive.bounds(folder) == (1, 1)
    broker.publish("q", [Outgoing(b"%d" % n, {"n": str(n)}, b"k") for n in range(10)])
    got = broker.reserve("q", 10, 1)
    broker.ack(got[:4])
    broker.move("other", [(got[4], Outgoing(b"moved"))])
    broker.release(got[5:])
    first, end = archive.bounds(folder)
    rows = list(archive.read(folder, first, end))
    assert [(row.body, row.headers["n"], row.key) for row in rows] == [
        (b"%d" % n, str(n), b"k") for n in range(5)
    ]
    assert [row.body for row in archive.read(folder, first + 1, first + 3)] == [b"1", b"2"]
    assert list(archive.read(folder, first, end, ["other"])) == []
    broker.ack(broker.reserve("q", 2, 1))
    assert list(archive.read(folder, first, end)) == rows, "a range is the same rows whenever it is read"


def test_flush_and_transfer(start: Start, opened) -> None:
    from shinar.phpmq.client import Client, PhpmqAddress
    from shinar.phpmq.protocol import extension as ext

    server = start()
    broker = opened(server.url)
    broker.publish("q", [Outgoing(b"%d" % n) for n in range(5000)])
    broker.publish("q", [Outgoing(b"late", delay_s=60)])
    held = broker.reserve("q", 3, 1)
    client = Client(PhpmqAddress(port=int(server.url.rpartition(":")[2])))
    with closing(client):
        assert client.call(ext.Transfer(client.tag(), "q", "other", 1000), int) == 1000
        assert [d.body for d in broker.browse("other", 2)] == [b"3", b"4"]
        assert broker.depth("other").ready == 1000
        assert client.call(ext.Flush(client.tag(), "q"), int) == 5000 - 1000 - 3 + 1
        depth = broker.depth("q")
        assert (depth.ready, depth.reserved, depth.delayed) == (0, 3, 0)
        assert broker.release(held) == ()
        assert [d.body for d in broker.reserve("q", 9, 1)] == [b"0", b"1", b"2"]
        with pytest.raises(QueueMissing):
            client.call(ext.Flush(client.tag(), "nope"), int)
    server.stop()
    assert maintenance.check(server.server.hub.engine.store.folder) == []


# -- listening


def test_unix_socket(start: Start, opened, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    server = start(listeners=(Listener(unix=path),))
    assert path.stat().st_mode & 0o077 == 0
    broker = opened(f"{server.url}?queue=q")
    broker.publish("q", bodies("x"))
    with Plain(server.url) as consumer:
        consumer.send(Consume("q", 1))
        assert consumer.next().content == b"x"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_tls(start: Start, opened, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = start(listeners=(Listener(port=0, tls=context),))
    broker = opened(f"{server.url}/q?tls_ca={certificate[0]}")
    broker.publish("q", [Outgoing(os.urandom(300_000)) for _ in range(5)])
    assert len(broker.reserve("q", 5, 1)) == 5
    with pytest.raises(AccessDenied, match="not trusted"):
        connect(f"{server.url}/q")
    with pytest.raises(BrokerUnavailable):
        connect(server.url.replace("phpmqs", "phpmq") + "/q?timeout_s=2")


def test_clients_can_be_asked_for_a_certificate(start: Start, opened, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.load_verify_locations(cert)
    context.verify_mode = ssl.CERT_REQUIRED
    server = start(listeners=(Listener(port=0, tls=context),))
    with pytest.raises(BrokerUnavailable):
        connect(f"{server.url}/q?tls_ca={cert}")
    opened(f"{server.url}/q?tls_ca={cert}&tls_cert={cert}&tls_key={key}").publish("q", bodies("x"))
    with pytest.raises(ConfigError, match="certificate"):
        connect(f"{server.url}/q?tls_ca=missing.pem")


TOKEN = "correct horse battery"


def test_a_token_is_asked_for_and_plain_clients_are_not_served(start: Start, opened) -> None:
    server = start(listeners=(Listener(port=0, token=True), LOOPBACK), access=from_token(TOKEN))
    opened(f"{server.urls[0]}/q?token={TOKEN.replace(' ', '+')}").publish("q", bodies("x"))
    for wrong in ("", "?token=wrong"):
        with pytest.raises(AccessDenied) as caught:
            connect(f"{server.urls[0]}/q{wrong}")
        assert "wrong" not in str(caught.value).replace("a wrong one", "")
    with Plain(server.urls[0]) as plain:
        plain.send(Send("q", b"y"))
        assert plain.hung_up()
    with Plain(server.urls[0]) as stranger:
        stranger.raw(b"H0110001P10" + b"%029d" % 65_537)
        assert stranger.hung_up(5), "a stranger's frame is not even collected"
    known = opened(f"{server.urls[0]}/q?token={TOKEN.replace(' ', '+')}")
    known.publish("big", [Outgoing(bytes(5_000_000))])
    with Plain(server.urls[1]) as plain:
        plain.send(Consume("q", 1))
        assert plain.next().content == b"x"


def test_rules_per_queue(start: Start, opened, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'[[client]]\nname = "spark"\nsha256 = "{digest_of("spark-token-0001")}"\n'
        'read = ["orders*"]\nwrite = []\n[plain]\nread = []\nwrite = ["orders"]\n'
    )
    server = start(access=from_file(rules))
    with Plain(server.url) as plain:
        plain.send(Send("orders", b"x"))
        plain.send(Consume("orders", 1))
        assert plain.hung_up()
    spark = opened(f"{server.url}?token=spark-token-0001")
    assert [d.body for d in spark.reserve("orders", 1, 1)] == [b"x"]
    for forbidden in (
        lambda: spark.publish("orders", bodies("y")),
        lambda: spark.reserve("other", 1, 0),
        lambda: spark.depth("other"),
        lambda: list(spark.browse("other")),
    ):
        with pytest.raises(AccessDenied):
            forbidden()
    rules.write_text('[[client]]\nname = "x"\n')
    with pytest.raises(ConfigError, match="sha256"):
        from_file(rules)


def test_rights_are_shell_patterns() -> None:
    rights = Rights("x", read=("orders*",), write=("a", "b"))
    assert rights.may_read("orders.dlq")
    assert not rights.may_read("Orders")
    assert rights.may_write("b")
    assert not rights.may_write("ab")
    assert Access().rights_of("anything") is None


def test_metrics_over_http(tmp_path: Path, opened) -> None:
    from shinar.phpmq.server import MetricsListener, Server
    from shinar.phpmq.store import BrokerStore

    def make() -> Server:
        return Server(BrokerStore(tmp_path), (LOOPBACK,), metrics=MetricsListener())

    with ServerThread(make) as thread:
        opened(thread.url).publish('q"1', bodies("a", "b"))
        port = thread.server.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert 'shinar_broker_queue_ready{queue="q\\"1"} 2' in text
        assert "shinar_broker_published_total 2" in text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")


def test_a_port_in_use_is_named_and_the_folder_is_free_again(start: Start, tmp_path: Path) -> None:
    taken = int(start(folder=tmp_path / "other").url.rpartition(":")[2])
    with pytest.raises(ConfigError, match="cannot listen"):
        start(listeners=(Listener(port=taken),))
    start()


def test_pipelined_reserves_of_large_bodies_are_all_answered(start: Start, opened) -> None:
    """The first reply alone fills the connection's buffer; the others must follow once it is out."""
    from shinar.phpmq.protocol import Decoder
    from shinar.phpmq.protocol import extension as ext

    server = start()
    for number in range(4):
        opened(server.url).publish(f"q{number}", [Outgoing(os.urandom(1_000_000)) for _ in range(6)])
    with Plain(server.url) as client:
        reserves = [ext.pack(ext.Reserve(n + 1, f"q{n}", 6, 60_000)) for n in range(4)]
        client.raw(ext.pack(ext.Hello(1)) + b"".join(reserves))
        decoder, got = Decoder(Limits(max_payload_bytes=2**30)), []
        while len(got) < 5:
            got += decoder.feed(client.socket.recv(262_144))
    assert sorted(msgspec.msgpack.decode(one.payload)[0] for one in got[1:]) == [1, 2, 3, 4]


def test_a_hello_that_is_refused_is_answered_even_with_requests_behind_it(start: Start) -> None:
    from shinar.phpmq.protocol import Decoder, Type
    from shinar.phpmq.protocol import extension as ext

    server = start(listeners=(Listener(port=0, token=True),), access=from_token(TOKEN))
    with Plain(server.url) as client:
        client.raw(ext.pack(ext.Hello(1, "wrong")) + ext.pack(ext.Queues(1)))
        data = b""
        while more := client.socket.recv(4096):
            data += more
    (only,) = Decoder(Limits()).feed(data)
    assert only.type == Type.ERROR
    assert ext.unpack(only.type, only.payload).code == "denied"


def test_one_folder_one_server(start: Start, tmp_path: Path) -> None:
    start()
    with pytest.raises(StoreError, match="in use"):
        start()
