"""How Shinar talks to a Kafka cluster: settings from a URL, errors of librdkafka in our tree and a
confirmed send. Knows nothing of groups, tiers or envelopes."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from shinar.brokers.kafka.retry_tiers import DEFAULT_TIERS_MS, check_tiers
from shinar.brokers.url import BrokerUrl
from shinar.clock import SYSTEM
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ContractError,
    PublishFailed,
    QueueMissing,
)

#: Where librdkafka speaks.
log = logging.getLogger(__name__)
# Several lines a second while a cluster is away. The worker says it once, and errors carry the reason.
log.addFilter(lambda record: not record.getMessage().startswith("FAIL "))

BROKER: Final = "kafka"
DEFAULT_GROUP: Final = "babelqueue"
#: Largest body sent unless ?max_body_bytes= says otherwise: a fresh topic takes 1,048,588 bytes
#: with headers and framing.
DEFAULT_BODY_BYTES: Final = 1_000_000
#: A killed worker's partitions go to others after this. librdkafka beats in a thread of its own,
#: so a short session costs a slow handler nothing.
DEFAULT_SESSION_S: Final = 10.0
#: Room on top of the body: for headers, and for what a dead letter or a retry adds to a full-sized one.
_FRAMING_BYTES: Final = 48_000
#: What librdkafka may count for one header besides its name and value.
_HEADER_BYTES: Final = 10
#: A stop asked for while a cluster does not answer is noticed within this time.
_SLICE_S: Final = 1.0

OPTIONS: Final = frozenset(
    {
        "group", "retry_tiers_ms", "reinject", "declare", "partitions", "replication", "tls", "tls_ca",
        "tls_cert", "tls_key", "tls_verify", "mechanism", "protocol", "timeout_s", "max_body_bytes",
        "compression", "session_timeout_s",
    }
)  # fmt: skip

#: (topic, value, key, headers, timestamp in ms or 0 for "now")
Record = tuple[str, bytes, bytes | None, list[tuple[str, bytes | None]], int]

_UNAVAILABLE: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE,
        KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._DESTROY, KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT, KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR, KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError._WAIT_COORD,
    }
)  # fmt: skip
_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._SSL,
    }
)  # fmt: skip
MISSING: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_FULL: Final = frozenset({KafkaError.KAFKA_STORAGE_ERROR, KafkaError.THROTTLING_QUOTA_EXCEEDED})
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


def our_error(error: KafkaError, queue: str = "") -> BrokerError:
    """librdkafka's error as one of ours. Its texts name hosts and reasons, never credentials."""
    code, text = error.code(), error.str()
    if code in _UNAVAILABLE:
        return BrokerUnavailable(
            f"{text}; is the cluster up and the address right?", broker=BROKER, queue=queue
        )
    if code in _DENIED:
        return AccessDenied(
            f"{text}; check user, password, ?mechanism=, TLS and the ACLs", broker=BROKER, queue=queue
        )
    if code in MISSING:
        return QueueMissing(
            "no such topic; create it, or leave ?declare= on so that Shinar does", broker=BROKER, queue=queue
        )
    if code in _FULL:
        return BrokerFull(text, broker=BROKER, queue=queue)
    return BrokerError(f"{text} ({error.name()})", broker=BROKER, queue=queue)


@contextlib.contextmanager
def kafka_errors(queue: str = "", watch: ClusterWatch | None = None) -> Iterator[None]:
    try:
        yield
    except KafkaException as exc:
        error: KafkaError = exc.args[0]
        if watch is not None and watch.denied is not None and error.code() in _UNAVAILABLE:
            # A refused login looks like a time-out to the call; the reason came by callback.
            error = watch.denied
        raise our_error(error, queue) from None


class ClusterWatch:
    """What a client said by callback since the last success: refused logins, a cluster that is gone."""

    def __init__(self) -> None:
        self.denied: KafkaError | None = None
        self.down = False

    def note(self, error: KafkaError) -> None:
        if error.code() in _DENIED:
            self.denied = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.down = True

    def clear(self) -> None:
        self.denied, self.down = None, False


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    #: librdkafka's common configuration, credentials included: never shown.
    common: Mapping[str, Any] = field(repr=False)
    group: str
    tiers_ms: tuple[int, ...]
    reinject: bool
    declare: bool
    #: -1: the cluster's default.
    partitions: int
    replication: int
    timeout_s: float
    max_body_bytes: int
    compression: str
    #: Partitions move one by one instead of all at once (KIP-848 groups).
    incremental: bool
    session_timeout_s: float

    @property
    def max_record_bytes(self) -> int:
        """Largest record the client sends: body, key and headers."""
        return self.max_body_bytes + _FRAMING_BYTES


def settings(url: BrokerUrl) -> KafkaSettings:
    common: dict[str, Any] = {
        "bootstrap.servers": url.netloc or f"localhost:{url.usual_port}",
        "client.id": "shinar",
        "logger": log,
        # Sockets to a restarted cluster come back within a second instead of ten.
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        # We make topics ourselves; a typing error must not make one.
        "allow.auto.create.topics": False,
    }
    tls = url.flag("tls")
    if tls:
        wanted = {
            "tls_ca": "ssl.ca.location",
            "tls_cert": "ssl.certificate.location",
            "tls_key": "ssl.key.location",
        }
        common |= {name: url.option(option) for option, name in wanted.items() if url.option(option)}
        common["enable.ssl.certificate.verification"] = url.flag("tls_verify", True)
    if url.user:
        common |= {
            "sasl.mechanism": url.option("mechanism", "PLAIN").upper(),
            "sasl.username": url.user,
            "sasl.password": url.password,
        }
    common["security.protocol"] = ("SASL_" if url.user else "") + ("SSL" if tls else "PLAINTEXT")
    protocol = url.option("protocol", "classic")
    if protocol not in ("classic", "consumer"):
        raise ConfigError(f"{protocol!r} is neither classic nor consumer", setting="?protocol=")
    return KafkaSettings(
        common=common,
        group=url.option("group") or DEFAULT_GROUP,
        tiers_ms=tiers_of(url),
        reinject=url.flag("reinject", True),
        declare=url.flag("declare", True),
        partitions=int(url.number("partitions", -1, least=1)),
        replication=int(url.number("replication", -1, least=1)),
        timeout_s=url.number("timeout_s", 30.0, least=0.1),
        max_body_bytes=int(url.number("max_body_bytes", DEFAULT_BODY_BYTES, least=1)),
        compression=url.option("compression", "none"),
        incremental=protocol == "consumer",
        session_timeout_s=url.number("session_timeout_s", DEFAULT_SESSION_S, least=1),
    )


def tiers_of(url: BrokerUrl) -> tuple[int, ...]:
    text = url.options.get("retry_tiers_ms")
    if text is None:
        return DEFAULT_TIERS_MS
    if text.strip().lower() in ("", "off", "none"):
        return ()
    try:
        return check_tiers([int(part) for part in text.split(",")])
    except (ValueError, ContractError):
        raise ConfigError(
            f"{text!r} is not a list of ascending milliseconds like 5000,30000 (or off)",
            setting="?retry_tiers_ms=",
        ) from None


def group_config(settings: KafkaSettings, group: str, watch: ClusterWatch) -> dict[str, Any]:
    """A member of a group that commits by hand and starts at the oldest record."""
    config = {
        **settings.common,
        "error_cb": watch.note,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
    }
    if settings.incremental:
        return config | {"group.protocol": "consumer"}
    return config | {"session.timeout.ms": int(settings.session_timeout_s * 1000)}


def weight(record: Record) -> int:
    """Bytes of a record as librdkafka counts them against its limit, or a few more."""
    _, body, key, headers, _ = record
    beside = sum(len(name.encode()) + len(value or b"") + _HEADER_BYTES for name, value in headers)
    return len(body) + len(key or b"") + beside


class RecordSender:
    """Sends batches and returns when every replica that must have them has them (acks=all).

    `limit_of` asks a topic for its max.message.bytes. A `stopped` that is set ends the wait for a
    cluster that does not answer.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        watch: ClusterWatch,
        limit_of: Callable[[str], int],
        stopped: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._limit_of = limit_of
        self._stopped = stopped or threading.Event()
        self._producer: Any = None

    def send(self, queue: str, records: Iterable[Record]) -> None:
        """All confirmed, or PublishFailed with the indices that were not; when none was, the
        error that says why. Records may be made while they are sent."""
        failed: dict[int, _Failure] = {}
        self._open()
        try:
            total = self._hand_over(queue, records, failed)
            left = self._flush()
        except BaseException:
            # Whoever is told that the call failed must not see the first half of it arrive.
            self._discard()
            raise
        if left:
            failed = {index: failed.get(index) or _LATE for index in range(total)}
        if failed:
            self._discard()
            raise self._verdict(queue, total, failed)
        self._watch.clear()

    def _hand_over(self, queue: str, records: Iterable[Record], failed: dict[int, _Failure]) -> int:
        total, produce, poll = 0, self._producer.produce, self._producer.poll
        for topic, value, key, headers, stamp_ms in records:
            report = partial(_note, failed, total)
            total += 1
            while True:
                try:
                    produce(topic, value, key, -1, report, timestamp=stamp_ms, headers=headers)
                    break
                except BufferError:
                    poll(0.1)
                except KafkaException as exc:
                    if exc.args[0].code() not in _TOO_LARGE:
                        raise our_error(exc.args[0], queue) from None
                    size = weight((topic, value, key, headers, stamp_ms))
                    limit = self._settings.max_record_bytes
                    raise BodyTooLarge(size, limit, broker=BROKER, queue=queue) from None
        return total

    def _flush(self) -> int:
        """How many are still on their way at the end."""
        # The deadline of each message is the producer's; this one only guards against a hang.
        deadline_s = SYSTEM.monotonic_s() + self._settings.timeout_s + 5
        while True:
            left: int = self._producer.flush(min(_SLICE_S, max(0.0, deadline_s - SYSTEM.monotonic_s())))
            if not left or self._stopped.is_set() or SYSTEM.monotonic_s() >= deadline_s:
                return left

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(self._settings.timeout_s)
            self._producer = None

    def _open(self) -> None:
        if self._producer is None:
            with kafka_errors():
                self._producer = Producer(
                    {
                        **self._settings.common,
                        "error_cb": self._watch.note,
                        "enable.idempotence": True,
                        "acks": "all",
                        "linger.ms": 5,
                        "compression.type": self._settings.compression,
                        "delivery.timeout.ms": int(self._settings.timeout_s * 1000),
                        "message.max.bytes": self._settings.max_record_bytes,
                        "queue.buffering.max.messages": 500_000,
                        # A clean flush says that the rest was confirmed, so only failures report.
                        "delivery.report.only.error": True,
                    }
                )

    def _discard(self) -> None:
        """After a failure nothing may linger: what we called unconfirmed must not arrive later by
        itself, and a producer with a gap in its sequence refuses to go on."""
        producer, self._producer = self._producer, None
        with contextlib.suppress(KafkaException):
            producer.purge()
            producer.flush(1)

    def _verdict(self, queue: str, total: int, failed: Mapping[int, _Failure]) -> BrokerError:
        first, topic, _ = failed[min(failed)]
        if len(failed) < total:
            return PublishFailed(
                first.str(), total=total, unconfirmed=tuple(sorted(failed)), broker=BROKER, queue=queue
            )
        if first.code() in _TOO_LARGE:
            return self._oversize(queue, topic, [size for _, _, size in failed.values()])
        if self._watch.denied is not None and first.code() in _UNAVAILABLE:
            first = self._watch.denied
        return our_error(first, queue)

    def _oversize(self, queue: str, topic: str, sizes: list[int]) -> BrokerError:
        """A topic refuses a batch of the client's as it does a record; only the latter is for good."""
        limit = self._limit_of(topic)
        if len(sizes) == 1 or max(sizes) > limit:
            return BodyTooLarge(max(sizes), limit, broker=BROKER, queue=queue)
        text = (
            f"the topic's max.message.bytes ({limit}) is below this batch; raise it, or publish fewer at once"
        )
        return BrokerError(text, broker=BROKER, queue=queue)


#: What the cluster said, the topic it was said of, and the record's size.
_Failure = tuple[KafkaError, str, int]
_LATE: Final[_Failure] = (KafkaError(KafkaError._MSG_TIMED_OUT), "", 0)


def _note(failed: dict[int, _Failure], index: int, error: KafkaError | None, message: Any) -> None:
    if error is not None:
        headers = message.headers() or []
        size = weight((message.topic(), message.value() or b"", message.key(), headers, 0))
        failed[index] = error, message.topic(), size
