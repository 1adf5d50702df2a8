"""librdkafka's mock cluster as a program: `kafka_mock.py FILE` writes the cluster's URL to FILE and waits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from confluent_kafka import Producer


def main(target: Path) -> None:
    holder = Producer({"test.mock.num.brokers": 1})
    (broker,) = holder.list_topics(timeout=10).brokers.values()
    fresh = target.with_suffix(".new")
    fresh.write_text(f"kafka://{broker.host}:{broker.port}")
    os.replace(fresh, target)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
