"""Marks as Redis keys with an expiry. Redis forgets them by itself; as durable as its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
)
from redis.retry import Retry

from shinar.brokers.url import BrokerUrl
from shinar.errors import AccessDenied, BrokerFull, BrokerUnavailable, ConfigError
from shinar.idempotency.guard import TTL_S, each

#: File options of rediss://, as the brokers call them, and what the client calls them.
FILES: Final = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
#: `ssl_ca` is the older name of `tls_ca`.
TLS: Final = frozenset({"ssl_ca", "tls_verify", *FILES})
OPTIONS: Final = frozenset({"prefix", "scope", "ttl_s", "timeout_s", "cluster"}) | TLS
DEFAULT_PREFIX: Final = "shinar:done:"
TIMEOUT_S: Final = 10.0


class RedisStore:
    """Safe to share between threads: the client keeps a pool of connections."""

    def __init__(self, url: BrokerUrl) -> None:
        scope = url.option("scope")
        self._prefix = url.option("prefix", DEFAULT_PREFIX) + (f"{scope}:" if scope else "")
        self._ttl_ms = round(url.number("ttl_s", TTL_S, least=0.001) * 1000)
        with _errors():
            self._client: Any = _client(url)
            self._client.ping()

    def seen(self, ids: Iterable[str]) -> set[str]:
        wanted = each(ids)
        if not wanted:
            return set()
        with _errors(), self._client.pipeline(transaction=False) as pipe:
            for id_ in wanted:
                pipe.exists(self._key(id_))
            found = pipe.execute()
        return {id_ for id_, there in zip(wanted, found, strict=True) if there}

    def remember(self, ids: Iterable[str]) -> None:
        wanted = each(ids)
        with _errors(), self._client.pipeline(transaction=False) as pipe:
            for id_ in wanted:
                pipe.set(self._key(id_), b"1", px=self._ttl_ms)
            pipe.execute()

    def forget(self, ids: Iterable[str]) -> None:
        wanted = each(ids)
        with _errors(), self._client.pipeline(transaction=False) as pipe:
            for id_ in wanted:
                pipe.unlink(self._key(id_))
            pipe.execute()

    def close(self) -> None:
        self._client.close()

    def _key(self, message_id: str) -> bytes:
        return (self._prefix + message_id).encode("utf-8", "surrogatepass")


def _client(url: BrokerUrl) -> Any:
    timeout_s = url.number("timeout_s", TIMEOUT_S, least=0.001)
    settings: dict[str, Any] = {
        "host": url.host or "localhost",
        "port": url.port or url.usual_port,
        "username": url.user or None,
        "password": url.password or None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        # Marks may be written twice, so a connection that had gone stale is tried again; a server that
        # is silent is not, or timeout_s would not be the limit.
        "retry": Retry(NoBackoff(), 1, (redis.ConnectionError,)),
        **_tls(url),
    }
    if not url.flag("cluster"):
        return redis.Redis(db=int(url.path or 0), **settings)
    if int(url.path or 0):
        raise ConfigError(f"a cluster has database 0 only; leave /{url.path} out", setting="?cluster=")
    return redis.RedisCluster(**settings)


def _tls(url: BrokerUrl) -> dict[str, Any]:
    given = [name for name in sorted(TLS) if name in url.options]
    if url.scheme != "rediss":
        if given:
            raise ConfigError("needs rediss://", setting=f"?{given[0]}=")
        return {}
    files = {name: url.option(name) for name in FILES}
    files["tls_ca"] = files["tls_ca"] or url.option("ssl_ca")
    for name, file in files.items():
        if file and not Path(file).is_file():
            raise ConfigError(f"there is no file {file}", setting=f"?{name}=")
    verify = url.flag("tls_verify", True)
    return {
        "ssl": True,
        "ssl_cert_reqs": "required" if verify else "none",
        "ssl_check_hostname": verify,
        **{FILES[name]: file or None for name, file in files.items()},
    }


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except MovedError as exc:
        raise ConfigError(f"this server is part of a cluster: add ?cluster=1 ({exc})", setting="url") from exc
    except RedisClusterException as exc:
        if isinstance(exc.__cause__, AuthenticationError):
            raise AccessDenied("user or password is wrong; check the URL", broker="redis") from exc
        raise BrokerUnavailable(f"{exc}; the idempotency store did not answer", broker="redis") from exc
    except (AuthenticationError, NoPermissionError) as exc:
        raise AccessDenied(f"{exc}; check user and password", broker="redis") from exc
    except OutOfMemoryError as exc:
        raise BrokerFull(f"{exc}; raise maxmemory or shorten ttl_s", broker="redis") from exc
    except RedisError as exc:
        raise BrokerUnavailable(f"{exc}; the idempotency store did not answer", broker="redis") from exc
