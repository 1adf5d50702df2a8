"""Steps around handlers: each takes a call and gives back a call. None of them knows a broker.

    Worker(url, handlers, steps=[log_step(), metrics_step(metrics), timeout(30), idempotent(store)])

The first in the list is the outermost. A step of your own is a function of the same shape.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from shinar.clock import SYSTEM, Clock
from shinar.delivery.throttle import Throttle
from shinar.envelope import Message
from shinar.errors import ConfigError, HandlerTimeout
from shinar.observe import Metrics
from shinar.worker.context import Context, GiveUp, Retry, enter_context
from shinar.worker.handlers import Call, Step

if TYPE_CHECKING:
    from shinar.idempotency import Store

log = logging.getLogger("shinar.worker")


def log_step(*, slow_s: float | None = None, clock: Clock = SYSTEM) -> Step:
    """A line per handled message, at info; at warning when it took longer than `slow_s`."""

    def step(call: Call) -> Call:
        def logged(message: Message, context: Context) -> object:
            started_s = clock.monotonic_s()
            result = call(message, context)
            spent_s = clock.monotonic_s() - started_s
            slow = slow_s is not None and spent_s > slow_s
            log.log(
                logging.WARNING if slow else logging.INFO,
                "slow handler" if slow else "handled",
                extra={
                    "urn": message.urn,
                    "id": message.id,
                    "trace_id": message.trace_id,
                    "queue": context.queue,
                    "attempt": context.attempt,
                    "duration_ms": round(spent_s * 1000, 3),
                },
            )
            return result

        return logged

    return step


def metrics_step(metrics: Metrics, *, clock: Clock = SYSTEM) -> Step:
    """How long handlers take, and how old messages are when they are handled, by URN."""

    def step(call: Call) -> Call:
        def measured(message: Message, context: Context) -> object:
            started_s = clock.monotonic_s()
            try:
                return call(message, context)
            finally:
                metrics.observe("shinar_handler_seconds", clock.monotonic_s() - started_s, urn=message.urn)
                if message.meta.created_at:
                    age_s = max(0.0, (context.delivery.received_ms - message.meta.created_at) / 1000)
                    metrics.observe("shinar_message_age_seconds", age_s, urn=message.urn)

        return measured

    return step


def timeout(limit_s: float) -> Step:
    """Fail a handler that runs longer. Python cannot stop a thread: a handler that hangs is left
    behind in its own, and its message is settled as failed."""
    if limit_s <= 0:
        raise ConfigError("must be above 0", setting="timeout")

    def step(call: Call) -> Call:
        def limited(message: Message, context: Context) -> object:
            result: list[object] = []
            errors: list[BaseException] = []

            def run() -> None:
                enter_context((message, context.delivery))
                try:
                    result.append(call(message, context))
                except BaseException as exc:  # carried over to the thread that waits, and raised there
                    errors.append(exc)

            thread = threading.Thread(target=run, name="shinar-timeout", daemon=True)
            thread.start()
            thread.join(limit_s)
            if thread.is_alive():
                raise HandlerTimeout(limit_s)
            if errors:
                raise errors[0]
            return result[0]

        return limited

    return step


def rate_limit(per_s: float, *, burst: int = 1, clock: Clock = SYSTEM) -> Step:
    """At most so many handler calls a second in this process, shared by all its threads."""
    if per_s <= 0 or burst < 1:
        raise ConfigError("needs a rate above 0 and a burst of at least 1", setting="rate_limit")
    throttle = Throttle(per_s, clock, burst=burst)

    def step(call: Call) -> Call:
        def limited(message: Message, context: Context) -> object:
            wait_s = throttle.take()
            if wait_s > 0:
                clock.sleep(wait_s)
            return call(message, context)

        return limited

    return step


def idempotent(store: Store) -> Step:
    """Handle each `meta.id` once: marked after the handler returned, skipped when it is delivered again.
    See shinar.idempotency for the rule and the stores."""
    from shinar.idempotency import guard  # late: its stores bring their database drivers

    def step(call: Call) -> Call:
        def guarded(message: Message, context: Context) -> object:
            def run() -> None:
                answer = call(message, context)
                if isinstance(answer, Retry | GiveUp):
                    raise _NotDone(answer)

            try:
                if not guard(store, message.id, run):
                    log.info("skipped: handled before", extra={"id": message.id, "urn": message.urn})
            except _NotDone as exc:
                return exc.answer
            return None

        return guarded

    return step


class _NotDone(Exception):
    """Carries a handler's answer past the guard, which marks whatever returns."""

    def __init__(self, answer: Retry | GiveUp) -> None:
        super().__init__()
        self.answer = answer


__all__ = ["idempotent", "log_step", "metrics_step", "rate_limit", "timeout"]
