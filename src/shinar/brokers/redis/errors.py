"""What the Redis client raises, as Shinar's own errors. Nothing else reads the server's error texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis

from shinar.errors import (
    AccessDenied,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    ConfigError,
    ProtocolViolation,
)

#: Answers of a server that will take the same command later: replicas missing, a failover, a long script.
_PASSING: Final = re.compile(r"\b(NOREPLICAS|MASTERDOWN|BUSY|TRYAGAIN)\b")


@contextmanager
def translated(queue: str) -> Iterator[None]:
    try:
        yield
    except redis.exceptions.RedisClusterException as exc:
        if "Cluster mode is not enabled" in str(exc):
            raise ConfigError(
                "this server does not run as a cluster; remove the option", setting="?cluster="
            ) from exc
        if isinstance(exc.__cause__, redis.RedisError):  # a wrong password, for one
            raise _error(exc.__cause__, queue) from exc
        raise BrokerUnavailable(f"the cluster does not answer: {exc}", broker="redis", queue=queue) from exc
    except redis.RedisError as exc:
        raise _error(exc, queue) from exc


def _error(exc: redis.RedisError, queue: str) -> BrokerError:
    text = str(exc)
    where = {"broker": "redis", "queue": queue}
    match exc:
        case redis.AuthenticationError() | redis.exceptions.AuthorizationError():
            return AccessDenied("user or password is wrong; check the URL", **where)
        case redis.exceptions.NoPermissionError():
            return AccessDenied(f"the user lacks a right: {text}", **where)
        case redis.exceptions.OutOfMemoryError():
            return BrokerFull("out of memory; consume, or raise maxmemory", **where)
        case redis.exceptions.ReadOnlyError() | redis.exceptions.ClusterDownError():
            return BrokerUnavailable(f"takes no writes now: {text}", **where)
        case redis.ConnectionError() | redis.TimeoutError():
            return BrokerUnavailable(f"cannot be reached: {text}", **where)
        case redis.exceptions.MovedError() | redis.exceptions.ClusterCrossSlotError():
            return BrokerError(f"this server is part of a cluster: add ?cluster=1 (slot: {text})", **where)
    return _refusal(text, where)


def _refusal(text: str, where: dict[str, str]) -> BrokerError:
    """What the client has no class for: the server's own words say it."""
    if _PASSING.search(text):
        return BrokerUnavailable(f"takes no writes now: {text}", **where)
    if "MISCONF" in text:
        return BrokerFull("cannot write its snapshot to disk; free space there", **where)
    if "WRONGTYPE" in text:
        return ProtocolViolation("a key of this queue holds another type; choose another name", **where)
    if "OOM" in text:
        return BrokerFull("out of memory; consume, or raise maxmemory", **where)
    if "invalid bulk length" in text:
        text = "a body is over its proto-max-bulk-len; raise that, or send a reference"
    return BrokerError(f"refused: {text}", **where)
