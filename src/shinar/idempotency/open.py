"""A store by its URL: memory://, sqlite://, postgresql://, mysql://, redis://."""

from __future__ import annotations

import difflib
from typing import Final

from shinar.brokers.registry import ROWS, SYNONYMS
from shinar.brokers.url import BrokerUrl, parse
from shinar.clock import SYSTEM, Clock
from shinar.database.dialects import BY_SCHEME
from shinar.errors import ConfigError, MissingExtra, UnknownScheme
from shinar.idempotency.guard import TTL_S, Store
from shinar.idempotency.memory import MAX_IDS, MemoryStore
from shinar.idempotency.sql import SqlStore

#: Schemes that have a store; their URLs are written as those of the broker.
SCHEMES: Final = ("memory", *BY_SCHEME, "redis", "rediss")
_MEMORY_OPTIONS: Final = frozenset({"ttl_s", "max_ids"})


def open_store(url: str, clock: Clock = SYSTEM) -> Store:
    """For example `sqlite:///var/lib/app/marks.db?ttl_s=86400&scope=billing`. Different consumers of
    the same messages need different scopes; workers of one kind share theirs."""
    scheme, _, rest = url.partition("://")
    scheme = SYNONYMS.get(scheme.lower(), scheme.lower())
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme, SCHEMES, 1)
        raise UnknownScheme(scheme, SCHEMES, near[0] if near else None)
    parsed = parse(f"{scheme}://{rest}", ROWS[scheme].path, ROWS[scheme].port)
    if scheme in BY_SCHEME:
        return SqlStore(parsed, clock)
    return _memory(parsed, clock) if scheme == "memory" else _redis(parsed)


def _memory(url: BrokerUrl, clock: Clock) -> MemoryStore:
    _check(url, _MEMORY_OPTIONS)
    return MemoryStore(
        ttl_s=url.number("ttl_s", TTL_S, least=0.001),
        max_ids=int(url.number("max_ids", MAX_IDS, least=1)),
        clock=clock,
    )


def _redis(url: BrokerUrl) -> Store:
    try:
        from shinar.idempotency import redis
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "redis":
            raise
        raise MissingExtra("redis://", "redis", "redis") from None
    _check(url, redis.OPTIONS)
    return redis.RedisStore(url)


def _check(url: BrokerUrl, known: frozenset[str]) -> None:
    for name in url.options:
        if name not in known:
            text = f"{url.scheme}:// has no such option; known: {', '.join(sorted(known))}"
            raise ConfigError(text, setting=f"?{name}=")
