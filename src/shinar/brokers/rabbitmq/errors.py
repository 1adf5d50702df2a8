"""What pika's errors mean in our own tree. The only place that maps them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pika import exceptions

from shinar.brokers.rabbitmq.publisher import Incomplete
from shinar.errors import (
    AccessDenied,
    BodyTooLarge,
    BrokerError,
    BrokerFull,
    BrokerUnavailable,
    PublishFailed,
    QueueMissing,
)


def incomplete(exc: Incomplete, queue: str, total: int, missing: tuple[int, ...]) -> BrokerError:
    where = {"broker": "rabbitmq", "queue": queue}
    cause = _error(exc.cause, queue) if exc.cause is not None else None
    if len(missing) == total:
        if cause is not None:
            return cause
        if len(exc.returned) == total:
            return QueueMissing("there is no such queue; declare it, or allow ?declare=true", **where)
        if len(exc.refused) == total:
            return BrokerFull("the queue takes no more (its length limit); consume first", **where)
    text = str(cause) if cause is not None else "the broker did not take some messages"
    return PublishFailed(text, total=total, unconfirmed=missing, **where)


@contextmanager
def translated(queue: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.AMQPError, OSError) as exc:
        raise _error(exc, queue) from exc


def _error(exc: BaseException, queue: str) -> BrokerError:
    where = {"broker": "rabbitmq", "queue": queue}
    reason = _reason(exc)
    code = getattr(exc, "reply_code", 0)
    match exc:
        case exceptions.ProbableAuthenticationError() | exceptions.AuthenticationError():
            return AccessDenied("user or password is wrong; check the URL", **where)
        case exceptions.ProbableAccessDeniedError():
            return AccessDenied("no access to this virtual host; check the path of the URL", **where)
        case exceptions.ConnectionBlockedTimeout():
            return BrokerFull("takes no messages: out of disk or memory there", **where)
        case exceptions.ConsumerCancelled():
            return BrokerUnavailable("the server ended the consumer: the queue moved or was deleted", **where)
    if code == 404:
        return QueueMissing("there is no such queue; declare it, or allow ?declare=true", **where)
    if code == 403:
        return AccessDenied(f"refused: {reason}", **where)
    too_large = re.search(r"message size (\d+) (?:is )?larger than (?:configured )?max size (\d+)", reason)
    if too_large:
        return BodyTooLarge(int(too_large[1]), int(too_large[2]), **where)
    if isinstance(exc, exceptions.AMQPConnectionError | OSError):
        return BrokerUnavailable(f"cannot be reached: {reason}", **where)
    return BrokerError(f"refused: {reason}", **where)


def _reason(exc: BaseException) -> str:
    """pika wraps what went wrong while connecting; the innermost says it."""
    inner: Any = exc
    while True:
        wrapped = getattr(inner, "exceptions", None) or [getattr(inner, "exception", None), *inner.args]
        below = [error for error in wrapped if isinstance(error, BaseException)]
        if not below:
            break
        inner = below[-1]
    return getattr(inner, "reply_text", "") or str(inner) or type(inner).__name__
