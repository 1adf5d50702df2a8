"""Garbage of every kind is cut off with a reason, while others are served and the store stays intact."""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from shinar.brokers import Broker, Outgoing, connect
from shinar.phpmq import maintenance
from shinar.phpmq.protocol import Acknowledge, Consume, Dispatch, Extended, Limits, Send, Type, encode
from shinar.phpmq.protocol import extension as ext
from shinar.phpmq.server import Options, ServerThread, serve_in_thread

from .phpmq_plain import Plain

Q = b"P0100000000000000000000000000003Foo"
HELLO = ext.pack(ext.Hello(1, "", "hostile"))
SEND = encode(Send("Foo", b"fine"))


def payload(number: int, value: object) -> bytes:
    return encode(Extended(Type(number), msgspec.msgpack.encode(value)))


#: What a hostile client writes at once; it must be hung up on.
GARBAGE: dict[str, bytes] = {
    "random bytes": random.Random(1).randbytes(5000),
    "zeros": bytes(1000),
    "http get": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "http post": b"POST /q HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    "tls hello": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "amqp": b"AMQP\x00\x00\x09\x01",
    "json": b'{"job":"urn:x"}',
    "the readme's line breaks": b"H0100102\nP0100000000000000000000000000003\nFoo\n",
    "lower case": SEND.lower(),
    "version 02": b"H02" + SEND[3:],
    "version ff": b"Hff" + SEND[3:],
    "unknown type 000": b"H0100002",
    "unknown type 007": b"H0100702" + Q,
    "unknown type 999": b"H0199901",
    "a dispatch from a client": encode(Dispatch("Foo", b"x", "0" * 32)),
    "no packets": b"H0100100",
    "99 packets": b"H0100199" + Q * 99,
    "one packet too few": b"H0100101" + Q,
    "one packet too many": b"H0100203" + Q + b"P04000000000000000000000000000015",
    "the same packet twice": b"H0100102" + Q + Q,
    "a packet of another message": b"H0100102" + Q + b"P04000000000000000000000000000015",
    "unknown packet 09": b"H0100102P09" + b"0" * 29,
    "length of 29 nines": b"H0100102P01" + b"9" * 29,
    "content of 29 nines": b"H0100102" + Q + b"P02" + b"9" * 29,
    "content of 1 GB": b"H0100102" + Q + b"P02" + b"%029d" % 10**9,
    "negative length": b"H0100102P01-" + b"0" * 28,
    "hex length": b"H0100102P01" + b"%029x" % 0xABC,
    "length with spaces": b"H0100102P01" + b"%29d" % 3,
    "empty queue name": b"H0100102P01" + b"0" * 29 + b"P02" + b"0" * 29,
    "NUL in the queue name": encode(Send("a", b"")).replace(b"a", b"\0"),
    "bad UTF-8 in the queue name": encode(Send("a", b"")).replace(b"a", b"\xff"),
    "100 kB queue name": b"H0100102P01" + b"%029d" % 100_000 + b"a" * 100_000,
    "count of abc": b"H0100202" + Q + b"P04" + b"%029d" % 3 + b"abc",
    "count of -5": b"H0100202" + Q + b"P04" + b"%029d" % 2 + b"-5",
    "TTL of abc": b"H0100103" + Q + b"P02" + b"0" * 29 + b"P05" + b"%029d" % 3 + b"abc",
    "TTL of 29 digits": b"H0100103" + Q + b"P02" + b"0" * 29 + b"P05" + b"%029d" % 29 + b"9" * 29,
    "id with a quote": b"H0100402" + Q + b"P03" + b"%029d" % 2 + b"a'",
    "extension without hello": ext.pack(ext.Queues(1)),
    "hello twice": HELLO + HELLO,
    "hello after a send": SEND + HELLO,
    "hello that is no MessagePack": encode(Extended(Type.HELLO, b"\xc1")),
    "hello with wrong types": payload(100, ["one", 2, 3]),
    "hello deep as the sea": encode(Extended(Type.HELLO, b"\x91" * 100_000)),
    "hello that promises a giant array": encode(Extended(Type.HELLO, b"\xdd\xff\xff\xff\xff")),
    "publish of no list": HELLO + payload(110, [1, "q", 5]),
    "publish with a number as body": HELLO + payload(110, [1, "q", [[5]]]),
    "publish with a delay of 2^63": HELLO + payload(110, [1, "q", [[b"x", None, 2**63]]]),
    "a negative tag": HELLO + payload(120, [-1, "q"]),
    "a reply from a client": HELLO + payload(102, [1, 2]),
    "a welcome from a client": HELLO + payload(101, [1, "s", "x", 1, 1, 1]),
    "good, then garbage": SEND * 3 + b"garbage",
}

#: What must be answered with an error while the connection goes on.
REFUSED: dict[str, object] = {
    "queue name of 300 bytes": ext.Publish(7, "q" * 300, [ext.Item(b"")]),
    "empty queue name": ext.Reserve(7, "", 1),
    "control characters in a name": ext.Publish(7, "a\nb", [ext.Item(b"")]),
    "surrogates cannot even be sent": ext.Flush(7, "nope"),
    "transfer onto itself": ext.Transfer(7, "orders", "orders"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    options = Options(
        frame_s=0.6, first_frame_s=1.5, unread_s=1.5, max_connections=40, inbound_bytes=8_000_000,
        limits=Limits(max_body_bytes=1_000_000, max_payload_bytes=4_000_000), max_queues=50,
    )  # fmt: skip
    with serve_in_thread(tmp_path, options=options) as running:
        yield running
    assert maintenance.check(tmp_path) == []


@pytest.fixture
def bystander(server: ServerThread) -> Iterator[Broker]:
    """Somebody decent, who must not notice any of this."""
    with closing(connect(server.url)) as broker:
        broker.publish("orders", [Outgoing(b"before")])
        yield broker
        broker.publish("orders", [Outgoing(b"after")])
        assert [d.body for d in broker.browse("orders")] == [b"before", b"after"]


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(
    server: ServerThread, bystander: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "shinar.phpmq"), Plain(server.url) as hostile:
        hostile.raw(GARBAGE[name])
        assert hostile.hung_up(), "still connected"
    assert any("cut off:" in record.getMessage() for record in caplog.records)
    if name == "good, then garbage":
        assert bystander.depth("Foo").ready == 3, "what was well-formed before the garbage was accepted"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_requests_do_not_end_the_connection(
    server: ServerThread, bystander: Broker, name: str
) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as raw:
        raw.sendall(HELLO + ext.pack(REFUSED[name]) + ext.pack(ext.Depth(8, "orders")))  # type: ignore[arg-type]  # bad
        from shinar.phpmq.protocol import Decoder

        decoder, got = Decoder(Limits()), []
        while len(got) < 3:
            data = raw.recv(65536)
            assert data, "hung up"
            got += decoder.feed(data)
        assert [message.type for message in got] == [Type.WELCOME, Type.ERROR, Type.REPLY]


#: name -> what a slow client does; it must be hung up on, although it never breaks a rule
def _drip(client: Plain) -> None:
    frame = encode(Send("Foo", b"x" * 200))
    for byte in frame:
        client.raw(bytes([byte]))
        time.sleep(0.05)


SLOW: dict[str, Callable[[Plain], None]] = {
    "connects and stays silent": lambda client: None,
    "three bytes of a header": lambda client: client.raw(b"H01"),
    "a header and silence": lambda client: client.raw(b"H0100102"),
    "half a packet header": lambda client: client.raw(b"H0100102P0100000"),
    "content that never comes": lambda client: client.raw(b"H0100102" + Q + b"P02" + b"%029d" % 500_000),
    "a good frame, then a partial one": lambda client: client.raw(SEND + b"H010"),
    "one byte at a time": _drip,
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_clients_are_cut_off(server: ServerThread, bystander: Broker, name: str) -> None:
    with Plain(server.url) as client:
        try:
            SLOW[name](client)
        except OSError:
            return
        assert client.hung_up()


def test_an_idle_client_that_once_spoke_is_left_alone(server: ServerThread, bystander: Broker) -> None:
    with Plain(server.url) as idle:
        idle.send(Consume("quiet", 1))
        assert idle.silent(2.5)
        bystander.publish("quiet", [Outgoing(b"x")])
        assert idle.next().content == b"x"


def test_a_flood_of_connections(server: ServerThread, bystander: Broker) -> None:
    """Silent connections make way for new ones; those that work are kept."""
    with Plain(server.url) as worker:
        worker.send(Consume("jobs", 2))
        bystander.publish("jobs", [Outgoing(b"0")])
        assert worker.next().content == b"0", "the server knows it as one that works"
        flood = [Plain(server.url) for _ in range(120)]
        with Plain(server.url) as late:
            late.send(Send("jobs", b"1"))
            assert worker.next().content == b"1"
        for client in flood:
            client.close()


def test_one_who_asks_for_everything_and_reads_nothing(server: ServerThread, bystander: Broker) -> None:
    bystander.publish("big", [Outgoing(os.urandom(200_000)) for _ in range(100)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Plain(server.url) as glutton:
        glutton.send(Consume("big", 1_000_000_000))
        with closing(connect(server.url)) as reader:
            time.sleep(0.5)
            assert reader.reserve("big", 1, 5), "what the glutton cannot take is left for others"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000, "kilobytes"


def test_pipelined_requests_whose_replies_are_never_read(server: ServerThread, bystander: Broker) -> None:
    bystander.publish("big", [Outgoing(os.urandom(500_000)) for _ in range(10)])
    with Plain(server.url) as hostile:
        hostile.raw(HELLO)
        hostile.socket.settimeout(0.5)
        try:
            for tag in range(200):
                hostile.raw(ext.pack(ext.Browse(tag, "big", 0, 10)))
        except OSError:
            pass
        time.sleep(2.5)
        assert hostile.hung_up()


def test_many_unfinished_large_frames(server: ServerThread, bystander: Broker) -> None:
    clients = [Plain(server.url) for _ in range(20)]
    try:
        for client in clients:
            client.raw(HELLO)
        started = b"H0111001P10" + b"%029d" % 3_999_999
        for client in clients:
            try:
                client.raw(started + bytes(1_500_000))
            except OSError:
                continue
        assert server.server.hub.inbound_bytes < 10_000_000
        assert bystander.depth("orders").ready == 1
    finally:
        for client in clients:
            client.close()


def test_too_many_queues(server: ServerThread, bystander: Broker) -> None:
    from shinar.errors import BrokerFull

    def make() -> None:
        for number in range(60):
            bystander.publish(f"q{number}", [Outgoing(b"x")])

    with pytest.raises(BrokerFull, match="queues already"):
        make()


def test_acks_of_other_peoples_messages_change_nothing(server: ServerThread, bystander: Broker) -> None:
    (held,) = bystander.reserve("orders", 1, 1)
    with Plain(server.url) as thief:
        ids = [f"{number:032x}" for number in range(100)] + [held.position]
        thief.send(*(Acknowledge("orders", id_) for id_ in ids), Consume("orders", 10))
        assert thief.silent()
        assert bystander.release([held]) == ()
        assert thief.next().content == b"before"


FUZZ_S = float(os.environ.get("SHINAR_FUZZ_S") or (3600.0 if os.environ.get("SHINAR_HEAVY") else 5.0))


@pytest.mark.timeout(4000)
def test_fuzzing_finds_no_crash_and_no_growth(
    server: ServerThread, bystander: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Well-formed traffic with bytes changed, cut, doubled and mixed, over many connections."""
    caplog.set_level(logging.ERROR, "shinar.phpmq")  # pytest keeps every record, and this makes many
    seed = int(os.environ.get("SHINAR_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SHINAR_SEED={seed}")
    dice = random.Random(seed)
    seeds = [*GARBAGE.values(), SEND, encode(Consume("Foo", 3)), HELLO + ext.pack(ext.Reserve(1, "Foo", 5)),
             HELLO + ext.pack(ext.Publish(1, "Foo", [ext.Item(b"x")])), HELLO + ext.pack(ext.Status(1)),
             HELLO + ext.pack(ext.Flush(1, "Foo")), HELLO + ext.pack(ext.Transfer(1, "a", "b"))]  # fmt: skip
    hub = server.server.hub
    until_s = time.monotonic() + FUZZ_S
    rounds, early_kb = 0, 0
    while time.monotonic() < until_s:
        data = bytearray(b"".join(dice.choices(seeds, k=dice.randint(1, 4))))
        for _ in range(dice.choice([0, 1, 1, 3, 20])):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            with Plain(server.url) as client:
                client.raw(bytes(data[: dice.randint(1, len(data))]))
                if dice.random() < 0.3:
                    client.socket.settimeout(0.01)
                    client.socket.recv(4096)
        except OSError:
            pass
        rounds += 1
        if rounds == 500:
            early_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert rounds > 100
    deadline_s = time.monotonic() + 10
    while len(hub.connections) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(hub.connections) == 1, "only the bystander is left"
    assert hub.inbound_bytes == 0
    assert hub.engine.leases.held == 0
    if early_kb:
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early_kb < 100_000, "kilobytes"
    assert hub.engine.totals.store_failures == 0
