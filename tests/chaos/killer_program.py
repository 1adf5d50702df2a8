"""A worker with one message that ends its process, as the kernel does when memory is short."""

from __future__ import annotations

import os
import sys

from shinar import Limits, Policy, Worker


def main(url: str, queue: str, path: str) -> None:
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def kill(message) -> None:
        os.write(out, b"kill\n")
        os._exit(9)

    def handle(message) -> None:
        os.write(out, b"%d\n" % message.data["n"])

    worker = Worker(
        url,
        {"urn:babel:orders:kill": kill, "urn:babel:orders:created": handle},
        queue=queue,
        policy=Policy(max_attempts=3),
        limits=Limits(until_empty=True, empty_wait_s=float(os.environ["EMPTY_WAIT_S"])),
    )
    print(worker.run().counts, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
