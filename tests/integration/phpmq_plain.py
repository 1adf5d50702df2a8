"""A plain PHPMQ client over a raw socket, for tests: it knows the six messages and nothing of Shinar's."""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType
from urllib.parse import urlsplit

from shinar.phpmq.protocol import Decoder, Dispatch, Limits, Message, encode


class Plain:
    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme == "phpmq+unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(parts.path)
        else:
            self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.settimeout(timeout_s)
        self._decoder = Decoder(Limits())
        self._messages: list[Message] = []

    def send(self, *messages: Message) -> None:
        self.raw(b"".join(map(encode, messages)))

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self) -> Dispatch:
        """The next dispatch; ConnectionError when the server hung up, TimeoutError when nothing comes."""
        while not self._messages:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionError("the server hung up")
            self._messages += self._decoder.feed(data)
            assert self._decoder.violation is None
        message = self._messages.pop(0)
        assert isinstance(message, Dispatch)
        return message

    def take(self, count: int) -> list[Dispatch]:
        return [self.next() for _ in range(count)]

    def silent(self, seconds: float = 0.3) -> bool:
        """Nothing came within a while."""
        self.socket.settimeout(seconds)
        try:
            self._messages.append(self.next())
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10.0)
        return False

    def hung_up(self, seconds: float = 20.0) -> bool:
        """The server ended this connection within a while."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self) -> Plain:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
