"""A set that forgets its oldest members: what was settled lately, so that settling twice is harmless."""

from __future__ import annotations

from collections.abc import Iterable


class Recent:
    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._known: dict[str, None] = {}

    def __contains__(self, item: str) -> bool:
        return item in self._known

    def update(self, items: Iterable[str]) -> None:
        self._known.update(dict.fromkeys(items))
        while len(self._known) > self._size:
            del self._known[next(iter(self._known))]
