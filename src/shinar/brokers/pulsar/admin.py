"""What Pulsar's client cannot tell and its REST interface can: counts, and what is not consumed yet."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote

from shinar.errors import AccessDenied, BrokerError, BrokerUnavailable, ConfigError, QueueMissing

BROKER: Final = "pulsar"
#: As the broker writes it: [(3:1..3:4],(3:6..4:0]], each open on the left.
_RANGE: Final = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")

_OLDEST: Final = "earliestMsgPublishTimeInBacklog"
#: (ledger, entry): where a message is
Position = tuple[int, int]


class Admin:
    def __init__(self, base: str, token: str, timeout_s: float) -> None:
        if not base.startswith(("http://", "https://")):
            raise ConfigError("write the web service's address, http://host:8080", setting="?admin=")
        self._base = base.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s

    def counts(self, topic: str, subscription: str) -> dict[str, Any] | None:
        """The statistics of one subscription; None when the topic has no such subscription."""
        asked = "getPreciseBacklog=true&getEarliestTimeInBacklog=true"
        if not self.partitions(topic):
            return _mine(self._get(topic, f"stats?{asked}"), subscription)
        found = self._get(topic, f"partitioned-stats?{asked}&perPartition=true")
        whole = _mine(found, subscription)
        if whole is not None:
            # The server adds the counts up, but takes an empty partition's 0 for the oldest message.
            parts = [_mine(part, subscription) or {} for part in found.get("partitions", {}).values()]
            whole[_OLDEST] = min((ms for part in parts if (ms := part.get(_OLDEST, 0)) > 0), default=0)
        return whole

    def partitions(self, topic: str) -> int:
        """0 for a topic that is not partitioned, or does not exist."""
        return int(self._get(topic, "partitions").get("partitions", 0))

    def consumed(self, topic: str, subscription: str) -> tuple[Position, list[tuple[Position, Position]]]:
        """Everything up to the first position is acknowledged, and then everything within the
        ranges, each without its first and with its last."""
        cursor = self._get(topic, "internalStats").get("cursors", {}).get(subscription)
        if cursor is None:
            return (-1, -1), []
        ledger, _, entry = cursor["markDeletePosition"].partition(":")
        ranges = [
            ((int(a), int(b)), (int(c), int(d)))
            for a, b, c, d in _RANGE.findall(cursor.get("individuallyDeletedMessages", ""))
        ]
        return (int(ledger), int(entry)), ranges

    def _get(self, topic: str, what: str) -> dict[str, Any]:
        path = topic.replace("://", "/", 1)
        request = urllib.request.Request(f"{self._base}/admin/v2/{quote(path)}/{what}")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                found: dict[str, Any] = json.load(reply)
                return found
        except urllib.error.HTTPError as exc:
            raise _refused(exc.code, topic) from None
        except (OSError, ValueError) as exc:
            raise BrokerUnavailable(
                f"no usable answer from ?admin=: {exc}", broker=BROKER, queue=topic
            ) from None


def _mine(stats: dict[str, Any], subscription: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = stats.get("subscriptions", {}).get(subscription)
    return found


def _refused(status: int, topic: str) -> BrokerError:
    if status in (401, 403):
        return AccessDenied("the admin address refuses us; check ?token=", broker=BROKER, queue=topic)
    if status == 404:
        return QueueMissing("no such topic", broker=BROKER, queue=topic)
    return BrokerUnavailable(f"the admin address answers {status}", broker=BROKER, queue=topic)
