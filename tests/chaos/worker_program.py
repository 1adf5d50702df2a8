"""A worker that is going to be killed: each message leaves one row, marked in the same transaction."""

from __future__ import annotations

import sys

from shinar import Limits, Policy, Worker
from shinar.idempotency import open_store
from shinar.worker import GiveUp


def main(queue_url: str, store_url: str) -> None:
    store = open_store(store_url)

    def handle(message) -> GiveUp | None:
        if message.data["n"] % 100 == 0:
            return GiveUp("every hundredth is hopeless")
        with store.once(message.id) as once:
            if once.first:
                once.cursor.execute("INSERT INTO effects (n) VALUES (?)", (message.data["n"],))
        return None

    limits = Limits(until_empty=True, empty_wait_s=2.0)
    worker = Worker(
        queue_url, {"urn:babel:orders:created": handle}, policy=Policy(), limits=limits, prefetch=50
    )
    report = worker.run()
    print(report.counts)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
