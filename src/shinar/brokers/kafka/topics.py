"""Which topics a Kafka cluster has, how long it keeps their records, and new ones made on first use."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # not in its stubs
from confluent_kafka.cimpl import NewTopic

from shinar.brokers.kafka.client import BROKER, MISSING, ClusterWatch, KafkaSettings, kafka_errors, our_error
from shinar.clock import SYSTEM
from shinar.errors import BrokerUnavailable, ConfigError, QueueMissing

log = logging.getLogger(__name__)

#: A refused login is told by callback only, while the call waits on: so it waits this long at a time.
_SLICE_S: Final = 2.0
#: How long a freshly made topic may take until it has a leader.
_LEADER_WAIT_S: Final = 10.0
#: What a cluster does by its own default, for where it does not tell us: how long it keeps records, and
#: the largest it takes.
_RETENTION_MS: Final = 7 * 24 * 3_600_000
_RECORD_BYTES: Final = 1_048_588
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic(name: str) -> bool:
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class Topics:
    """Knows which topics exist, and makes those that do not unless told otherwise."""

    def __init__(self, settings: KafkaSettings, watch: ClusterWatch) -> None:
        self._settings = settings
        self._watch = watch
        self._known: set[str] = set()
        self._retention_ms: dict[str, int] = {}
        self._admin: AdminClient | None = None

    def ensure(self, topic: str) -> None:
        if topic in self._known:
            return
        if not is_topic(topic):
            raise ConfigError(
                f"{topic!r} is not a Kafka topic; use 1 to 249 of letters, digits, dot, dash, underscore"
            )
        if not self.exists(topic):
            if not self._settings.declare:
                raise QueueMissing(
                    "no such topic and ?declare=false; create it first", broker=BROKER, queue=topic
                )
            self._create(topic)
        self._known.add(topic)

    def exists(self, topic: str) -> bool:
        found = self._describe(topic)
        return found.error is None or found.error.code() not in MISSING

    def partitions(self, topic: str) -> list[int]:
        found = self._describe(topic)
        if found.error is not None:
            raise our_error(found.error, topic)
        return sorted(found.partitions)

    def forget(self, topic: str) -> None:
        self._known.discard(topic)

    def oldest_stamp_ms(self, topic: str, now_ms: int) -> int:
        """Retention goes by a record's own timestamp: one older than this would be deleted soon, or
        at once, read or not."""
        if topic not in self._retention_ms:
            self._retention_ms[topic] = self._ask(topic, "retention.ms", _RETENTION_MS)
        retention_ms = self._retention_ms[topic]
        return 0 if retention_ms < 0 else now_ms - retention_ms // 2

    def limit_bytes(self, topic: str) -> int:
        return self._ask(topic, "max.message.bytes", _RECORD_BYTES)

    def _ask(self, topic: str, name: str, default: int) -> int:
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            answer = self._client().describe_configs([asked], request_timeout=self._settings.timeout_s)
            return int(answer[asked].result()[name].value)
        except (KafkaException, KeyError, TypeError, ValueError) as exc:
            log.info("kafka %s: %s not told, taking %d: %s", topic, name, default, exc)
            return default

    def _client(self) -> AdminClient:
        if self._admin is None:
            with kafka_errors():
                config: dict[str, Any] = {**self._settings.common, "error_cb": self._watch.note}
                self._admin = AdminClient(config)
        return self._admin

    def _describe(self, topic: str) -> Any:
        client = self._client()
        deadline_s = SYSTEM.monotonic_s() + self._settings.timeout_s
        while True:
            left_s = max(0.1, deadline_s - SYSTEM.monotonic_s())
            try:
                with kafka_errors(topic, self._watch):
                    try:
                        found = client.list_topics(topic, timeout=min(left_s, _SLICE_S)).topics[topic]
                    finally:
                        client.poll(0)
            except BrokerUnavailable:
                if SYSTEM.monotonic_s() >= deadline_s:
                    raise
                SYSTEM.sleep(0.1)
                continue
            self._watch.clear()
            return found

    def _create(self, topic: str) -> None:
        new = NewTopic(topic, self._settings.partitions, self._settings.replication)
        made = self._client().create_topics([new], operation_timeout=self._settings.timeout_s)[topic]
        with kafka_errors(topic, self._watch):
            try:
                made.result(self._settings.timeout_s + 5)
            except KafkaException as exc:
                if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        deadline = SYSTEM.monotonic_s() + _LEADER_WAIT_S
        while SYSTEM.monotonic_s() < deadline:
            found = self._describe(topic)
            if found.error is None and all(part.leader >= 0 for part in found.partitions.values()):
                return
            SYSTEM.sleep(0.05)
        raise BrokerUnavailable(
            "the new topic has no leader yet; check the cluster's health", broker=BROKER, queue=topic
        )
