"""URNs as the contract recommends them (urn:babel:<context>:<event>; advice only, never a refusal), and the
patterns that worker and pipeline route by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from shinar.errors import ConfigError

_RECOMMENDED: Final = re.compile(
    r"urn:(?P<nid>[a-z0-9][a-z0-9-]{1,31}):(?P<context>[^:\s]+):(?P<event>[^\s]+)"
)


class Urn(NamedTuple):
    nid: str
    context: str
    event: str


def parse_urn(text: str) -> Urn | None:
    """The parts of a URN of the recommended shape; None for any other, which is as legal."""
    match = _RECOMMENDED.fullmatch(text)
    return Urn(match["nid"], match["context"], match["event"]) if match else None


def advise(text: str) -> str | None:
    """What a reviewer would say about this URN; None when there is nothing to say."""
    found = parse_urn(text)
    if found is None:
        return "write it as urn:babel:<context>:<event>, such as urn:babel:orders:created"
    if text != text.lower():
        return "keep it lower case: routing compares it letter by letter"
    return None


def check_pattern(pattern: str) -> None:
    if not pattern or "*" in pattern[:-1]:
        raise ConfigError("write an exact URN, prefix* or * alone", setting=f"pattern {pattern!r}")


def is_pattern(text: str) -> bool:
    return text.endswith("*")


def matches(pattern: str, urn: str) -> bool:
    """Does a route pattern take this URN? A pattern is a URN, or a prefix ending in `*`."""
    return urn.startswith(pattern[:-1]) if is_pattern(pattern) else urn == pattern


def best_match(urn: str, patterns: Iterable[str]) -> str | None:
    """An exact pattern wins, then the longest prefix; `*` matches the rest."""
    found = [pattern for pattern in patterns if matches(pattern, urn)]
    return max(found, key=lambda pattern: (not is_pattern(pattern), len(pattern))) if found else None
