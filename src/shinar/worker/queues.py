"""Which queue a worker asks next: weighted round robin. Knows names and weights, no broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from shinar.errors import ConfigError

#: Longest wait on one of several queues: a message in another is not found sooner.
SHARED_WAIT_S: Final = 0.1
#: Weights are small whole numbers: a queue of weight 3 is asked first three times as often as one of 1.
MAX_WEIGHT: Final = 100

Queues = str | Sequence[str] | Mapping[str, int]


def weights_of(queues: Queues) -> dict[str, int]:
    """Names and weights, checked; {} for ""."""
    if isinstance(queues, str):
        return {queues: 1} if queues else {}
    if not isinstance(queues, Mapping):
        names = list(queues)
        if len(set(names)) != len(names):
            raise ConfigError("name each queue once; a weight says how often it is asked", setting="queue")
        queues = dict.fromkeys(names, 1)
    for name, weight in queues.items():
        if not (isinstance(name, str) and name):
            raise ConfigError("a queue needs a name", setting="queue")
        if not (isinstance(weight, int) and 1 <= weight <= MAX_WEIGHT):
            raise ConfigError(
                f"the weight of {name} must be a whole number from 1 to {MAX_WEIGHT}", setting="queue"
            )
    return dict(queues)


class Rotation:
    """Each call of `order` gives every queue once; which comes first follows the weights."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)

    def __len__(self) -> int:
        return len(self._weights)

    def order(self) -> Iterator[str]:
        for name, weight in self._weights.items():
            self._credit[name] += weight
        first = max(self._credit, key=lambda name: self._credit[name])
        self._credit[first] -= sum(self._weights.values())
        yield first
        yield from sorted((n for n in self._weights if n != first), key=lambda n: -self._credit[n])
