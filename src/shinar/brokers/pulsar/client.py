"""How Shinar talks to Pulsar: a client from a URL, its errors in our tree, and a confirmed send."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pulsar

from shinar.brokers.url import BrokerUrl
from shinar.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ProtocolViolation,
    PublishFailed,
    QueueMissing,
)

BROKER: Final = "pulsar"

_UNAVAILABLE: Final = frozenset(
    {
        "Timeout", "ConnectError", "NotConnected", "AlreadyClosed", "ServiceUnitNotReady", "LookupError",
        "BrokerMetadataError", "BrokerPersistenceError", "TooManyLookupRequestException", "Interrupted",
        "ProducerBusy", "Disconnected", "Retryable", "ReadError", "UnknownError",
    }
)  # fmt: skip
_DENIED: Final = frozenset({"AuthenticationError", "AuthorizationError", "ErrorGettingAuthenticationData"})
_MISSING: Final = frozenset({"TopicNotFound", "SubscriptionNotFound"})
_FULL: Final = frozenset(
    {
        "ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException", "ProducerQueueIsFull",
        "MemoryBufferIsFull",
    }
)  # fmt: skip


def our_error(name: str, text: str, queue: str = "") -> BrokerError:
    """A result of the client, by its name, as one of ours."""
    if name in _UNAVAILABLE:
        return BrokerUnavailable(f"{text}; is it up and the address right?", broker=BROKER, queue=queue)
    if name in _DENIED:
        return AccessDenied(f"{text}; check ?token=, TLS and the permissions", broker=BROKER, queue=queue)
    if name in _MISSING:
        return QueueMissing(f"{text}; create the topic first", broker=BROKER, queue=queue)
    if name in _FULL:
        return BrokerFull(
            f"{text}; the backlog quota or the send queue is used up", broker=BROKER, queue=queue
        )
    if name == "MessageTooBig":
        text = "body and headers together are over the server's maxMessageSize"
    if name in ("UnsupportedVersionError", "ChecksumError", "InvalidMessage"):
        return ProtocolViolation(text, broker=BROKER, queue=queue)
    return BrokerError(f"{text} ({name})", broker=BROKER, queue=queue)


@contextlib.contextmanager
def pulsar_errors(queue: str = "") -> Iterator[None]:
    try:
        yield
    except pulsar.PulsarException as exc:
        name = type(exc).__name__
        raise our_error(name, _text(str(exc), name), queue) from None


def open_client(url: BrokerUrl, timeout_s: float) -> Any:
    authentication = None
    if url.option("token"):
        authentication = pulsar.AuthenticationToken(url.option("token"))
    elif url.option("tls_cert"):
        authentication = pulsar.AuthenticationTLS(url.option("tls_cert"), url.option("tls_key"))
    verify = url.flag("tls_verify", True)
    try:
        with pulsar_errors():
            return pulsar.Client(
                f"{url.scheme}://{url.netloc or 'localhost:6650'}",
                authentication=authentication,
                operation_timeout_seconds=max(1, round(timeout_s)),
                connection_timeout_ms=int(timeout_s * 1000),
                tls_trust_certs_file_path=url.option("tls_ca") or None,
                tls_allow_insecure_connection=not verify,
                tls_validate_hostname=verify,
                # What matters is raised; the client's own lines would go to the user's terminal.
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            )
    except (ValueError, RuntimeError) as exc:
        raise ConfigError(f"pulsar: {exc}", setting="url") from None


class Parcel:
    """One message as the client takes it."""

    __slots__ = ("body", "delay_s", "key", "properties")

    def __init__(self, body: bytes, properties: Mapping[str, str], key: str | None, delay_s: float) -> None:
        self.body = body
        self.properties = properties
        self.key = key
        self.delay_s = delay_s


def send_all(producer: Any, queue: str, parcels: Iterable[Parcel], total: int, timeout_s: float) -> None:
    """Send without waiting in between, then wait for every confirmation. Parcels may be made on the way:
    the client sends the first while the last is not there yet."""
    watch = _Watch(total)
    with pulsar_errors(queue):
        for index, parcel in enumerate(parcels):
            producer.send_async(
                parcel.body,
                partial(watch.note, index),
                properties=parcel.properties,
                partition_key=parcel.key,
                deliver_after=timedelta(seconds=parcel.delay_s) if parcel.delay_s > 0 else None,
            )
    # Each message has the producer's own deadline; this one only guards against a lost callback.
    watch.finished.wait(timeout_s + 10)
    failed = watch.failures()
    if not failed:
        return
    first = failed[min(failed)]
    if len(failed) == total:
        raise our_error(first, _text(first, first), queue)
    raise PublishFailed(
        _text(first, first), total=total, unconfirmed=tuple(sorted(failed)), broker=BROKER, queue=queue
    )


class _Watch:
    """Collects confirmations, which come in threads of the client."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = 0
        self._failed: dict[int, str] = {}
        self._lock = threading.Lock()
        self.finished = threading.Event()
        if not total:
            self.finished.set()

    def note(self, index: int, result: Any, _message_id: Any) -> None:
        with self._lock:
            if result != pulsar.Result.Ok:
                self._failed[index] = result.name
            self._seen += 1
            if self._seen == self._total:
                self.finished.set()

    def failures(self) -> dict[int, str]:
        with self._lock:
            if self._seen < self._total:
                return dict.fromkeys(range(self._total), "Timeout")
            return dict(self._failed)


def _text(text: str, name: str) -> str:
    said = text.removeprefix("Pulsar error: ").strip()
    return {"Timeout": "no answer in time", "TimeOut": "no answer in time"}.get(said, said or name)
