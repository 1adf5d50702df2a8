"""URN -> table, and URN -> handlers. Pure: exact names first, then the longest `prefix*`, then the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from shinar.envelope.urn import best_match, check_pattern
from shinar.errors import ConfigError

#: Route target that keeps a URN out of the typed tables; it is in `messages` all the same.
NONE: Final = "-"
#: Route target that gives every URN a table of its own.
OWN: Final = "*"
_COMMON_PREFIX: Final = "urn:babel:"
_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9_-]{0,99}")


class Routes:
    """Which typed table a URN goes to. Unrouted URNs get a table of their own."""

    def __init__(self, routes: Mapping[str, str] | None = None) -> None:
        given = dict(routes or {})
        for pattern, target in given.items():
            check_pattern(pattern)
            if target not in (NONE, OWN) and not (isinstance(target, str) and _NAME.fullmatch(target)):
                raise ConfigError(
                    "a table's name is lower-case letters, digits, _ and -", setting=f"route {pattern}"
                )
        self._patterns = tuple(given)
        self._targets = given

    def table(self, urn: str) -> str | None:
        pattern = best_match(urn, self._patterns)
        target = self._targets[pattern] if pattern else OWN
        if target == NONE:
            return None
        return own_table(urn) if target == OWN else target


def own_table(urn: str) -> str:
    """`urn:babel:orders:created` -> `orders_created`. A name that had to be changed more keeps a hash."""
    short = urn.removeprefix(_COMMON_PREFIX)
    plain = re.sub(r"[^a-z0-9]+", "_", short.lower()).strip("_")[:80]
    if plain.replace("_", ":") == short and urn != short:
        return plain
    return f"{plain or 'urn'}_{sha256(urn.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
