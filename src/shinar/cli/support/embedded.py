"""Questions to the embedded broker that several commands ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shinar.printable import printable


@contextmanager
def connected(url: Any) -> Iterator[Any]:
    from shinar.brokers.phpmq import address
    from shinar.phpmq.client import Client

    client = Client(address(url), name="shinar broker")
    try:
        yield client
    finally:
        client.close()


def queue_exists(url: Any, queue: str) -> bool:
    from shinar.phpmq.protocol import extension as ext

    with connected(url) as client:
        return bool(client.call(ext.Depth(client.tag(), queue), list[ext.DepthReply]))


def say_missing(url: Any, queue: str) -> None:
    """An empty queue and a slip in its name look the same to a reader; the embedded broker can tell."""
    from shinar.brokers.phpmq import SCHEMES

    if url.scheme in SCHEMES and not queue_exists(url, queue):
        print(f"note: no such queue: '{printable(queue)}'; see `shinar broker queues`", file=sys.stderr)
