"""The first words of Pulsar's protocol, spoken by hand before the client library does; knows no more of it.

The library takes a refused login for a server that is silent and tries on until its time is up; what the
server said is lost. Asked here, a wrong token is told at once, and so is an address where nobody is. The
answer also tells how large a message may be: one that is larger jams the library's producer for good.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from shinar.brokers.tls import tls_context
from shinar.brokers.url import BrokerUrl
from shinar.errors import AccessDenied, BrokerError, BrokerUnavailable, ProtocolViolation

BROKER: Final = "pulsar"
PORT: Final = 6650
TLS_PORT: Final = 6651
#: Any version a server has known for years: we only ask who is there.
_PROTOCOL: Final = 12
#: Types of commands, which are also their field numbers in the frame.
_CONNECT, _CONNECTED, _ERROR, _CHALLENGE = 2, 3, 14, 36
#: Server errors: AuthenticationError, AuthorizationError.
_DENIED: Final = frozenset({3, 4})
_MOST_BYTES: Final = 64 * 1024


def greet(url: BrokerUrl, timeout_s: float) -> int | None:
    """The largest message of the first host that lets us in, in bytes (None: it does not say); when none
    does, the error that says why not."""
    hello = _frame(url.option("token"), "tls" if url.option("tls_cert") else "")
    failure: BrokerError | None = None
    for host, port in _addresses(url):
        try:
            return _ask(url, host, port, hello, timeout_s)
        except BrokerError as exc:
            # A refusal says more than the silence of another host.
            failure = exc if failure is None or not exc.transient else failure
    assert failure is not None
    raise failure


def _ask(url: BrokerUrl, host: str, port: int, hello: bytes, timeout_s: float) -> int | None:
    try:
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(socket.create_connection((host, port), timeout_s))
            if url.scheme.endswith("+ssl"):
                link = stack.enter_context(tls_context(url).wrap_socket(link, server_hostname=host))
            link.sendall(hello)
            size = int.from_bytes(_exactly(link, 4), "big")
            if not 8 <= size <= _MOST_BYTES:
                raise ProtocolViolation(f"{host}:{port} speaks something else than Pulsar", broker=BROKER)
            answer = _exactly(link, size)[4:]
    except ssl.SSLError as exc:
        raise BrokerUnavailable(
            f"no TLS with {host}:{port}: {exc.reason or exc}; check ?tls_ca= and the name in the certificate",
            broker=BROKER,
        ) from None
    except OSError as exc:
        raise BrokerUnavailable(
            f"{host}:{port} does not answer: {exc}; is it up and the address right?", broker=BROKER
        ) from None
    return _judge(dict(_fields(answer)), f"{host}:{port}")


def _judge(answer: dict[int, int | bytes], place: str) -> int | None:
    kind = answer.get(1)
    if kind in (_CONNECTED, _CHALLENGE):
        welcome = answer.get(_CONNECTED)
        most = dict(_fields(welcome)).get(3) if isinstance(welcome, bytes) else None
        return most if isinstance(most, int) else None
    said = answer.get(_ERROR)
    if kind != _ERROR or not isinstance(said, bytes):
        raise ProtocolViolation(f"{place} speaks something else than Pulsar", broker=BROKER)
    error = dict(_fields(said))
    words = error.get(3, b"")
    text = words.decode("utf-8", "replace") if isinstance(words, bytes) else ""
    if error.get(2) in _DENIED:
        raise AccessDenied(f"{text}; check ?token=, TLS and the permissions", broker=BROKER)
    raise BrokerUnavailable(f"{place} says: {text}", broker=BROKER)


def _addresses(url: BrokerUrl) -> list[tuple[str, int]]:
    default = TLS_PORT if url.scheme.endswith("+ssl") else PORT
    found = []
    for part in (url.netloc or "localhost").split(","):
        host, _, port = part.rpartition(":") if not part.endswith("]") else (part, "", "")
        if not port.isdecimal():
            host, port = part, str(default)
        found.append((host.strip("[]"), int(port)))
    return found


def _exactly(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = link.recv(count - len(found))
        if not part:
            raise ConnectionResetError("it hung up")
        found += part
    return found


# -- the little of protobuf it takes


def _frame(token: str, method: str) -> bytes:
    connect = _bytes(1, b"shinar") + _number(4, _PROTOCOL)
    if token:
        connect += _bytes(3, token.encode()) + _bytes(5, b"token")
    elif method:
        connect += _bytes(5, method.encode())
    command = _number(1, _CONNECT) + _bytes(_CONNECT, connect)
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and byte strings; anything else, or a cut, ends it: then the rest is not what we look for."""
    at = 0
    with contextlib.suppress(IndexError):
        while at < len(data):
            tag, at = _read_varint(data, at)
            value, at = _read_varint(data, at)
            if tag & 7 == 0:
                yield tag >> 3, value
            elif tag & 7 == 2:
                yield tag >> 3, data[at : at + value]
                at += value
            else:
                return


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
