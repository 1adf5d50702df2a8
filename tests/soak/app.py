"""The handlers the soak's workers run. Every effect is one line in a file, so that it can be counted later.

SOAK_EFFECTS names that file. While SOAK_FIXED does not exist, orders of the `broken` kind fail: they become
dead letters, and a redrive after the "deployment" brings them back.
"""

from __future__ import annotations

import os
from pathlib import Path

from shinar import Handlers

handlers = Handlers()
_effects = os.open(os.environ["SOAK_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_fixed = Path(os.environ["SOAK_FIXED"])


def _record(message) -> None:
    os.write(_effects, b"%d\n" % message.data["n"])


@handlers.handler("urn:babel:soak:good")
def good(message) -> None:
    _record(message)


@handlers.handler("urn:babel:soak:shaky")
def shaky(message) -> None:
    if message.attempts == 0:
        raise ConnectionError(f"first try of {message.data['n']}")
    _record(message)


@handlers.handler("urn:babel:soak:broken")
def broken(message) -> None:
    if not _fixed.exists():
        raise ValueError(f"no price for order {message.data['n']}")
    _record(message)
