from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from shinar.brokers.pulsar.handshake import _addresses, greet
from shinar.brokers.registry import parse
from shinar.errors import AccessDenied, BrokerUnavailable, ProtocolViolation

#: As Pulsar 4.2 answered them.
WELCOME = (
    bytes.fromhex("0000002d00000029") + b'\x08\x03\x1a%\n\x12Pulsar Server4.2.4\x10\x13\x18\x80\x80\xc0\x02"'
)
WELCOME += b"\x08 \x01(\x010\x018\x01"
REFUSED = (
    b"\x00\x00\x00-\x00\x00\x00)\x08\x0er%\x08" + b"\xff" * 9 + b"\x01\x10\x03\x1a\x16Failed to authenticate"
)


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives each caller the next answer, a byte at a time, and keeps what it heard."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                link, _ = listening.accept()
                with link, suppress(ConnectionError):  # the caller may hang up at the first byte
                    heard.append(link.recv(10_000))
                    for byte in answer:
                        link.sendall(bytes([byte]))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(10)


def test_a_server_that_lets_us_in_hears_the_token() -> None:
    with answering(WELCOME) as (port, heard):
        assert greet(parse(f"pulsar://127.0.0.1:{port}?token=" + "t" * 300), 5) == 5 * 1024 * 1024
    assert b"t" * 300 in heard[0]
    assert int.from_bytes(heard[0][:4], "big") == len(heard[0]) - 4


def test_a_refusal_is_told_without_the_token() -> None:
    with (
        answering(REFUSED) as (port, _),
        pytest.raises(AccessDenied, match="Failed to authenticate") as caught,
    ):
        greet(parse(f"pulsar://127.0.0.1:{port}?token=hush-hush"), 5)
    assert "hush" not in str(caught.value)


def test_one_of_several_hosts_is_enough_and_a_refusal_says_more_than_silence() -> None:
    with answering(WELCOME) as (port, _):
        greet(parse(f"pulsar://127.0.0.1:1,127.0.0.1:{port}"), 5)
    for order in ("127.0.0.1:{port},127.0.0.1:1", "127.0.0.1:1,127.0.0.1:{port}"):
        with answering(REFUSED) as (port, _), pytest.raises(AccessDenied):
            greet(parse("pulsar://" + order.format(port=port)), 5)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff"]
)
def test_somebody_else_at_the_address(answer: bytes) -> None:
    with answering(answer) as (port, _), pytest.raises(ProtocolViolation, match="something else"):
        greet(parse(f"pulsar://127.0.0.1:{port}"), 5)


def test_nobody_or_silence_or_half_an_answer() -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        greet(parse("pulsar://127.0.0.1:1"), 5)
    with answering(WELCOME[:20]) as (port, _), pytest.raises(BrokerUnavailable):
        greet(parse(f"pulsar://127.0.0.1:{port}"), 5)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokerUnavailable):
        greet(parse(f"pulsar://127.0.0.1:{silent.getsockname()[1]}"), 0.2)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://", [("localhost", 6650)]),
        ("pulsar://h/q", [("h", 6650)]),
        ("pulsar+ssl://h/q", [("h", 6651)]),
        ("pulsar://a:1,b:2/q", [("a", 1), ("b", 2)]),
        ("pulsar://[::1]:7/q", [("::1", 7)]),
        ("pulsar://[::1]/q", [("::1", 6650)]),
    ],
)
def test_addresses(url: str, expected: list[tuple[str, int]]) -> None:
    assert _addresses(parse(url)) == expected
