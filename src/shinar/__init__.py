"""Shinar: polyglot queues in Python, and on Spark.

The names below are the public surface; they are imported when first used, so that a program that
only decodes messages does not pay for a worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shinar.brokers import connect
    from shinar.envelope import Message, build, encode, judge
    from shinar.producer import Producer
    from shinar.settlement import Backoff, Policy
    from shinar.worker import Handlers, Limits, Worker

__version__ = "0.1.0"

_HOMES = {
    "Backoff": "shinar.settlement",
    "Handlers": "shinar.worker",
    "Limits": "shinar.worker",
    "Message": "shinar.envelope",
    "Policy": "shinar.settlement",
    "Producer": "shinar.producer",
    "Worker": "shinar.worker",
    "build": "shinar.envelope",
    "connect": "shinar.brokers",
    "encode": "shinar.envelope",
    "judge": "shinar.envelope",
}

__all__ = [
    "Backoff",
    "Handlers",
    "Limits",
    "Message",
    "Policy",
    "Producer",
    "Worker",
    "build",
    "connect",
    "encode",
    "judge",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'shinar' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
