"""Marks as Redis keys with an expiry. Redis forgets them by itself; as durable as its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, RedisError

from shinar.brokers.url import BrokerUrl
from shinar.errors import AccessDenied, BrokerFull, BrokerUnavailable, ConfigError
from shinar.idempotency.guard import TTL_S

OPTIONS: Final = frozenset({"prefix", "scope", "ttl_s", "timeout_s", "ssl_ca"})
DEFAULT_PREFIX: Final = "shinar:done:"
TIMEOUT_S: Final = 10.0


class RedisStore:
    """Safe to share between threads: the client keeps a pool of connections."""

    def __init__(self, url: BrokerUrl) -> None:
        scope = url.option("scope")
        self._prefix = url.option("prefix", DEFAULT_PREFIX) + (f"{scope}:" if scope else "")
        self._ttl_ms = round(url.number("ttl_s", TTL_S, least=0.001) * 1000)
        settings: dict[str, Any] = {
            "host": url.host or "localhost",
            "port": url.port or 6379,
            "db": int(url.path or 0),
            "username": url.user or None,
            "password": url.password or None,
            "socket_timeout": url.number("timeout_s", TIMEOUT_S, least=0.001),
        }
        if url.scheme == "rediss":
            settings |= {"ssl": True, "ssl_ca_certs": url.option("ssl_ca") or None}
        elif "ssl_ca" in url.options:
            raise ConfigError("needs rediss://", setting="?ssl_ca=")
        self._client: Any = redis.Redis(**settings)
        with _errors():
            self._client.ping()

    def seen(self, ids: Iterable[str]) -> set[str]:
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return set()
        with _errors(), self._client.pipeline(transaction=False) as pipe:
            for id_ in wanted:
                pipe.exists(self._key(id_))
            found = pipe.execute()
        return {id_ for id_, there in zip(wanted, found, strict=True) if there}

    def remember(self, ids: Iterable[str]) -> None:
        with _errors(), self._client.pipeline(transaction=False) as pipe:
            for id_ in ids:
                pipe.set(self._key(id_), b"1", px=self._ttl_ms)
            pipe.execute()

    def forget(self, ids: Iterable[str]) -> None:
        keys = [self._key(id_) for id_ in ids]
        if keys:
            with _errors():
                self._client.unlink(*keys)

    def close(self) -> None:
        self._client.close()

    def _key(self, message_id: str) -> bytes:
        return (self._prefix + message_id).encode("utf-8", "surrogatepass")


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (AuthenticationError, NoPermissionError) as exc:
        raise AccessDenied(f"{exc}; check user and password", broker="redis") from exc
    except OutOfMemoryError as exc:
        raise BrokerFull(f"{exc}; raise maxmemory or shorten ttl_s", broker="redis") from exc
    except RedisError as exc:
        raise BrokerUnavailable(f"{exc}; the idempotency store did not answer", broker="redis") from exc
