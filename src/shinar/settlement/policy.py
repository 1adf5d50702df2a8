"""What the user wants done with messages that fail: frozen values, checked when they are made.

The defaults drop nothing. A drop happens only if it was asked for by name: `on_unknown_urn="delete"`
or `on_exhausted="drop"`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from shinar.errors import ConfigError

Strategy = Literal["fail", "delete", "release", "dead_letter"]
Exhausted = Literal["dead_letter", "drop"]
Jitter = Literal["none", "full"]

#: Total deliveries, the first included.
DEFAULT_MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """d(n) = base * multiplier^(n-1), at most max_s if that is above 0; n is the new attempts value."""

    base_s: float = 0.0
    multiplier: float = 1.0
    max_s: float = 0.0
    jitter: Jitter = "none"

    def __post_init__(self) -> None:
        for name in ("base_s", "multiplier", "max_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{value} is not a number of at least 0", setting=f"backoff.{name}")
        _one_of("backoff.jitter", self.jitter, get_args(Jitter))

    def delay_s(self, n: int, draw: Callable[[], float] = random.random) -> float:
        try:
            delay = self.base_s * self.multiplier ** (n - 1)
        except OverflowError:
            delay = math.inf
        if self.max_s > 0:
            delay = min(self.max_s, delay)
        return draw() * delay if self.jitter == "full" and math.isfinite(delay) else delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    on_unknown_urn: Strategy = "fail"
    on_exhausted: Exhausted = "dead_letter"
    backoff: Backoff = field(default_factory=Backoff)
    #: How long a message with an unknown URN waits under the `release` strategy.
    unknown_urn_release_delay_s: float = 5.0
    #: Name of the dead-letter queue; "" for the broker's usual name.
    dead_letter_queue: str = ""

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError("must be at least 1: the first delivery counts", setting="max_attempts")
        _one_of("on_unknown_urn", self.on_unknown_urn, get_args(Strategy))
        _one_of("on_exhausted", self.on_exhausted, get_args(Exhausted))


def _one_of(setting: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{value!r} is not one of {', '.join(allowed)}", setting=setting)


#: What a worker does unless told otherwise: three deliveries about 1 s and 2 s apart, spread by
#: jitter so that a thousand failures do not come back at the same moment.
DEFAULT_POLICY: Final = Policy(backoff=Backoff(base_s=1.0, multiplier=2.0, max_s=60.0, jitter="full"))
