"""A redrive that kills itself with SIGKILL right after a given step; run by test_redrive_equal.

Its only argument is JSON: url, to, ledger, spec, job (to resume), reserve, step, and at which call of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from shinar.brokers import Broker, Delivery, connect
from shinar.redrive import Ledger, Redrive, Spec
from shinar.redrive.send import route

#: Calls left until the end, by step.
_left: dict[str, int] = {}


def _passed(step: str) -> None:
    if step in _left:
        _left[step] -= 1
        if _left[step] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Ledger):
    """The real ledger; the process dies after a write."""

    def claim(self, *args: Any) -> Any:
        found = super().claim(*args)
        _passed("claim")
        return found

    def record_intent(self, *args: Any) -> None:
        super().record_intent(*args)
        _passed("intent")

    def record_published(self, *args: Any) -> None:
        super().record_published(*args)
        _passed("published")

    def record_acked(self, *args: Any) -> None:
        super().record_acked(*args)
        _passed("acked")


class DeadlyBroker:
    """The real broker; the process dies after a call, with nothing written about it."""

    def __init__(self, inner: Broker) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def publish(self, *args: Any) -> None:
        self._inner.publish(*args)
        _passed("publish")

    def move(self, *args: Any) -> Any:
        found = self._inner.move(*args)
        _passed("publish")
        return found

    def ack(self, deliveries: Sequence[Delivery]) -> Any:
        found = self._inner.ack(deliveries)
        _passed("ack")
        return found


def main(given: dict[str, Any]) -> None:
    if given.get("step"):
        _left[given["step"]] = given.get("at", 1)
    route.connect = lambda url, clock: DeadlyBroker(connect(url, clock))  # type: ignore[assignment,attr-defined,misc]
    ledger = Deadly(given["ledger"])
    redrive = Redrive(given["url"], Spec(**given["spec"]), to=given.get("to", ""), ledger=ledger)
    if given.get("job"):
        receipt = redrive.resume(given["job"])
    else:
        receipt = redrive.run(reserve=given.get("reserve", False))
    print(json.dumps(receipt.as_dict() | {"note": ledger.job(receipt.job).note}))
    ledger.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
