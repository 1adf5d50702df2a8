"""A blocking client of the extension: requests out, replies in, matched by tag.

Several requests may be on their way before the first reply is read (`send` and `receive`). One thread at a
time: a second one that comes in between is refused with UsageError, and the first is not disturbed. It never
tries again by itself: a broken connection raises BrokerUnavailable, and the caller knows what that means.
"""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import msgspec

from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ProtocolViolation,
    QueueMissing,
    UsageError,
)
from shinar.phpmq.protocol import Decoder, Extended, Limits, Message, Type
from shinar.phpmq.protocol import extension as ext

#: Trait name used in error texts.
NAME: Final = "phpmq"
#: A server's replies may be as long as it likes to make them, within reason.
_LIMITS: Final = Limits(max_payload_bytes=2**30, max_body_bytes=2**30)
_READ_BYTES: Final = 256 * 1024
#: Seconds without a welcome after which we look at what else may be listening there.
_PROBE_AFTER_S: Final = 1.0
#: How other servers begin their answer to a hello, and what they are.
_OTHERS: Final = {
    b"-": "a Redis server", b"+": "a Redis server", b"HTTP/": "an HTTP server", b"AMQP": "an AMQP broker",
    b"SSH-": "an SSH server", b"220": "a mail or FTP server", b"\x15\x03": "a TLS listener",
    b"ERR": "a memcached server", b"INFO": "a NATS server",
}  # fmt: skip
_HUNG_UP: Final = (
    "it hung up on our hello; a listener with TLS needs phpmqs://, and one that is full lets nobody in"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhpmqAddress:
    host: str = "127.0.0.1"
    port: int = 9100
    #: Path of a Unix socket; then host and port mean nothing.
    unix: str = ""
    tls: ssl.SSLContext | None = None
    token: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        return self.unix or f"{self.host}:{self.port}"


class Client:
    def __init__(self, address: PhpmqAddress, *, timeout_s: float = 30.0, name: str = "") -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._decoder = Decoder(_LIMITS)
        self._arrived: dict[int, ext.Reply | ext.Failure] = {}
        self._tags = itertools.count(1)
        #: Held while bytes are written or read.
        self._busy = threading.Lock()
        self.closed = False
        self._socket = _connect(address, timeout_s)
        self._greeting = True
        try:
            self.welcome = self._greet(name or f"pid {os.getpid()}")
        except BaseException:
            self.close()
            raise
        self._greeting = False

    # -- requests

    def call(self, request: msgspec.Struct, result: type[T], *, wait_s: float = 0.0) -> T:
        """One request and its reply. `wait_s` is how long the server may take beyond the usual."""
        return self.receive(self.send(request), result, wait_s=wait_s)

    def send(self, request: msgspec.Struct) -> int:
        """A request on its way; `receive` its tag later. The request must have been made with `tag()`."""
        with self._alive():
            self._socket.sendall(ext.pack(request))
        tag: int = request.tag  # type: ignore[attr-defined]  # every request begins with its tag
        return tag

    def tag(self) -> int:
        return next(self._tags)

    def receive(self, tag: int, result: type[T], *, wait_s: float = 0.0) -> T:
        while tag not in self._arrived:
            self._read(self._timeout_s + wait_s)
        reply = self._arrived.pop(tag)
        if isinstance(reply, ext.Failure):
            raise error_of(reply)
        return ext.unpack_result(reply.result, result)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._socket.close()

    # -- bytes

    def _greet(self, name: str) -> ext.Welcome:
        with self._alive():
            self._socket.sendall(ext.pack(ext.Hello(ext.EXTENSION, self._address.token, name)))
        self._await_first_bytes()
        while True:
            for message in self._messages(self._timeout_s):
                if message.type == Type.WELCOME:
                    welcome: ext.Welcome = ext.unpack(message.type, message.payload)
                    return welcome
                if message.type == Type.ERROR:
                    raise error_of(ext.unpack(message.type, message.payload))

    def _await_first_bytes(self) -> None:
        """A broker answers a hello at once; if nothing comes, something else may be listening there."""
        with self._alive():
            if self._address.tls is None:
                self._socket.settimeout(min(_PROBE_AFTER_S, self._timeout_s))
                try:
                    found = self._socket.recv(8, socket.MSG_PEEK)
                except TimeoutError:
                    found = _first_answer(self._address)
                other = _other_server(found)
                if other:
                    hint = "; use phpmqs://" if other == _OTHERS[b"\x15\x03"] else "; check host and port"
                    text = f"{self._address.shown} is {other}, not a PHPMQ broker{hint}"
                    raise ProtocolViolation(text, broker=NAME)

    def _read(self, timeout_s: float) -> None:
        for message in self._messages(timeout_s):
            value = ext.unpack(message.type, message.payload)
            if not isinstance(value, ext.Reply | ext.Failure):
                raise ProtocolViolation(f"message type {message.type:03d} is not a reply", broker=NAME)
            if isinstance(value, ext.Failure) and value.tag == 0:
                self.close()
                raise error_of(value)
            self._arrived[value.tag] = value

    def _messages(self, timeout_s: float) -> list[Extended]:
        with self._alive():
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(_HUNG_UP if self._greeting else "the broker hung up")
        found: list[Message] = self._decoder.feed(data)
        if self._decoder.violation is not None:
            self.close()
            raise self._decoder.violation
        return [message for message in found if isinstance(message, Extended)]

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Any failure in here leaves replies unread, so the connection is of no more use."""
        if not self._busy.acquire(blocking=False):
            raise UsageError(
                f"two threads use one connection to {self._address.shown} at once; open a broker for each "
                "thread, or share a Producer, which takes turns"
            )
        try:
            if self.closed:
                raise BrokerUnavailable(f"the connection to {self._address.shown} is closed", broker=NAME)
            with _mapped(self._address):
                yield
        except BaseException:
            self.close()
            raise
        finally:
            self._busy.release()


def error_of(failure: ext.Failure) -> BrokerError:
    """The server's refusal in our own error tree."""
    text = failure.text
    match failure.code:
        case "too-large" if len(failure.detail) == 2:
            return BodyTooLarge(*failure.detail, broker=NAME)
        case "full":
            return BrokerFull(text, broker=NAME)
        case "denied":
            return AccessDenied(text, broker=NAME)
        case "no-queue":
            return QueueMissing(text, broker=NAME)
        case "bad-request":
            return ProtocolViolation(text, broker=NAME)
        case "stopping":
            return BrokerUnavailable(text, broker=NAME)
        case _:
            return BrokerError(text, broker=NAME)


def _connect(address: PhpmqAddress, timeout_s: float) -> socket.socket:
    """A connected socket, with its TLS handshake done."""
    with _mapped(address):
        raw = _connect_plain(address, timeout_s)
        if address.tls is None:
            return raw
        try:
            return address.tls.wrap_socket(raw, server_hostname=address.host or "localhost")
        except ssl.SSLCertVerificationError:
            raw.close()
            raise
        except OSError as exc:
            raw.close()
            answer = _first_answer(replace(address, tls=None))
            if answer.startswith(b"H01"):
                text = f"{address.shown} is a listener without TLS; use phpmq://"
                raise ProtocolViolation(text, broker=NAME) from None
            other = _other_server(answer)
            if other and not answer.startswith(b"\x15\x03"):
                text = f"{address.shown} is {other}, not a PHPMQ broker; check host and port"
                raise ProtocolViolation(text, broker=NAME) from None
            raise exc


def _first_answer(address: PhpmqAddress) -> bytes:
    """How the server there answers a hello and a line end, which servers of text protocols wait for."""
    try:
        with _connect_plain(address, _PROBE_AFTER_S) as probe:
            probe.sendall(ext.pack(ext.Hello(ext.EXTENSION, "", "probe")) + b"\r\n")
            return probe.recv(8)
    except OSError:
        return b""


def _other_server(answer: bytes) -> str:
    """What begins an answer like this; "" for a PHPMQ broker, and for what we cannot tell."""
    if answer[3:5] == b"\0\n":
        return "a MySQL server"
    return next((what for begin, what in _OTHERS.items() if answer.startswith(begin)), "")


def _connect_plain(address: PhpmqAddress, timeout_s: float) -> socket.socket:
    if address.unix:
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(timeout_s)
        try:
            raw.connect(address.unix)
        except OSError:
            raw.close()
            raise
    else:
        raw = socket.create_connection((address.host, address.port), timeout=timeout_s)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return raw


@contextmanager
def _mapped(address: PhpmqAddress) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as exc:
        raise AccessDenied(
            f"the certificate of {address.shown} is not trusted: {exc.verify_message}; name its authority "
            "with ?tls_ca=",
            broker=NAME,
        ) from None
    except TimeoutError:
        raise BrokerUnavailable(
            f"{address.shown} does not answer; is it `shinar broker serve`, and is it overloaded?",
            broker=NAME,
        ) from None
    except OSError as exc:
        text = f"cannot reach {address.shown}: {exc}; is `shinar broker serve` running?"
        raise BrokerUnavailable(text, broker=NAME) from None


__all__ = ["NAME", "Client", "PhpmqAddress", "error_of"]
