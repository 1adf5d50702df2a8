"""The parts an Artemis connection is made of: its address, its links, its socket, its errors."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from proton import SSLDomain, symbol

from shinar.errors import AccessDenied, BrokerError, BrokerFull, BrokerUnavailable, QueueMissing

BROKER: Final = "artemis"
_DENIED: Final = frozenset({"amqp:unauthorized-access", "amqp:not-allowed"})
_FULL: Final = frozenset({"amqp:resource-limit-exceeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtemisAddress:
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_verify: bool = True
    timeout_s: float = 30.0


def our_error(name: str, text: str, queue: str = "") -> BrokerError:
    """An AMQP condition as one of ours."""
    if name in _DENIED or "uthenticat" in text:
        return AccessDenied(f"{text or name}; check user, password and the roles", broker=BROKER, queue=queue)
    if name == "amqp:not-found":
        return QueueMissing(
            f"{text or name}; create the queue, or let the server auto-create it", broker=BROKER, queue=queue
        )
    if name in _FULL:
        return BrokerFull(f"{text or name}", broker=BROKER, queue=queue)
    if name in ("amqp:connection:forced", "amqp:internal-error", "amqp:connection:framing-error", ""):
        return BrokerUnavailable(text or "connection closed by the server", broker=BROKER, queue=queue)
    return BrokerError(f"{text} ({name})", broker=BROKER, queue=queue)


class SendLink:
    """A sending link and what is on its way over it."""

    def __init__(self, queue: str, link: Any) -> None:
        self.queue = queue
        self.link = link
        self.tag = 0
        #: tag -> index in the batch
        self.pending: dict[str, int] = {}
        #: index in the batch -> why not
        self.failed: dict[int, BrokerError] = {}
        self.fault: BrokerError | None = None


class ReceiveLink:
    """A receiving link and what has arrived over it and is not taken yet."""

    def __init__(self, queue: str, link: Any) -> None:
        self.queue = queue
        self.link = link
        self.arrived: deque[tuple[int, bytes]] = deque()
        self.fault: BrokerError | None = None


def ask_for_queue(terminus: Any) -> None:
    """Anycast: without it Artemis makes a topic of an address it has not seen, and drops what
    nobody is subscribed to."""
    terminus.capabilities.put_object(symbol("queue"))


def dial(address: ArtemisAddress) -> socket.socket:
    try:
        sock = socket.create_connection((address.host, address.port), timeout=address.timeout_s)
    except OSError as exc:
        raise BrokerUnavailable(
            f"cannot reach {address.host}:{address.port}: {exc.strerror or exc}", broker=BROKER
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def tls_domain(address: ArtemisAddress) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    authorities = address.tls_ca or ssl.get_default_verify_paths().cafile or ""
    if address.tls_cert:
        domain.set_credentials(address.tls_cert, address.tls_key or address.tls_cert, None)
    if authorities:
        domain.set_trusted_ca_db(authorities)
    if address.tls_verify:
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, authorities or None)
    else:
        domain.set_peer_authentication(SSLDomain.ANONYMOUS_PEER)
    return domain
