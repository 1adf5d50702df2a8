"""A worker that stays when its broker goes: writes each number it handled to a file, until SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

from shinar import Worker


def main(url: str, queue: str, path: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stdout)
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(message) -> None:
        os.write(out, b"%d\n" % message.data["n"])
        time.sleep(0.005)

    worker = Worker(url, {"urn:babel:orders:created": handle}, queue=queue, prefetch=50)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:4])
