"""A worker that is going to be killed, over any broker: writes each number it handled to a file."""

from __future__ import annotations

import os
import sys
import time

from shinar import Limits, Policy, Worker


def main(url: str, queue: str, path: str) -> None:
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    pause_s = float(os.environ.get("HANDLE_S", "0"))

    def handle(message) -> None:
        os.write(out, b"%d\n" % message.data["n"])
        if pause_s:
            time.sleep(pause_s)

    limits = Limits(until_empty=True, empty_wait_s=float(os.environ.get("EMPTY_WAIT_S", "5")))
    # More attempts than kills: what the same messages do that are lost by several kills is tested elsewhere.
    worker = Worker(
        url,
        {"urn:babel:orders:created": handle},
        queue=queue,
        policy=Policy(max_attempts=1000),
        limits=limits,
        prefetch=50,
    )
    print(worker.run().counts, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
