"""Which function handles which URN. Signatures are looked at once, here, never per message."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from shinar.envelope import Message, advise
from shinar.envelope.urn import check_pattern, is_pattern
from shinar.errors import ConfigError
from shinar.settlement import Policy
from shinar.worker.context import Context

#: What a handler looks like to everything that wraps it: the step around it, the thread that runs it.
Call = Callable[[Message, Context], object]
Step = Callable[[Call], Call]
Validate = Callable[[str, dict[str, Any]], None]
#: A handler may return anything; only Retry and GiveUp mean something.
Handler = Callable[..., object]
#: Runs a coroutine to its end; given by the worker that owns the event loop.
RunAsync = Callable[[Awaitable[object]], object]


class HandlerRoute(msgspec.Struct, frozen=True):
    urn: str
    handler: Handler
    #: None: the worker's own.
    policy: Policy | None = None
    steps: tuple[Step, ...] = ()
    validate: Validate | None = None


class Handlers:
    """Handlers by URN; a module fills one and a worker runs it (`shinar worker module:name`)."""

    def __init__(self, handlers: Mapping[str, Handler] | None = None) -> None:
        self.routes: dict[str, HandlerRoute] = {}
        for urn, handler in (handlers or {}).items():
            self.add(urn, handler)

    def add(
        self,
        urn: str,
        handler: Handler,
        *,
        policy: Policy | None = None,
        steps: Iterable[Step] = (),
        validate: Validate | None = None,
    ) -> None:
        """`urn` is a URN, or a pattern: `urn:babel:orders:*`, or `*` for all that have no handler. An exact
        URN wins, then the longest pattern."""
        if not urn.strip():
            raise ConfigError("a handler needs the URN it handles", setting="urn")
        check_pattern(urn)
        if urn in self.routes:
            raise ConfigError(f"{urn} has a handler already; one URN, one handler", setting="urn")
        if not callable(handler):
            raise ConfigError(f"the handler of {urn} is not callable", setting="handlers")
        self.routes[urn] = HandlerRoute(urn, handler, policy, tuple(steps), validate)

    def handler(
        self,
        urn: str,
        *,
        policy: Policy | None = None,
        steps: Iterable[Step] = (),
        validate: Validate | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorates a function of (message) or (message, context); `urn` as for `add`."""

        def register(function: Handler) -> Handler:
            self.add(urn, function, policy=policy, steps=steps, validate=validate)
            return function

        return register

    def advice(self) -> list[str]:
        """What a reviewer would say about the URNs; never a refusal."""
        return [f"{urn}: {text}" for urn in self.routes if not is_pattern(urn) and (text := advise(urn))]


def compile_route(route: HandlerRoute, steps: Iterable[Step], run_async: RunAsync) -> tuple[Handler, bool]:
    """The route as one call, and whether it takes the context: validation, then the worker's steps
    outside the route's own. A bare handler stays itself; nothing stands around it."""
    around = [*steps, *route.steps]
    if route.validate is not None:
        around.append(validated(route.validate))
    call, with_context = _awaited(route.handler, run_async), _takes_context(route.handler)
    if not around:
        return call, with_context
    wrapped = call if with_context else _without_context(call)
    for step in reversed(around):
        wrapped = step(wrapped)
    return wrapped, True


def _awaited(handler: Handler, run_async: RunAsync) -> Handler:
    if not inspect.iscoroutinefunction(handler):
        return handler
    target: Any = handler
    return lambda *given: run_async(target(*given))


def _without_context(handler: Handler) -> Call:
    return lambda message, _context: handler(message)


def validated(validate: Validate) -> Step:
    """Check the payload before the handler sees it; a refusal is a failure like any other."""

    def step(call: Call) -> Call:
        def checked(message: Message, context: Context) -> object:
            validate(message.urn, message.data)
            return call(message, context)

        return checked

    return step


def _takes_context(handler: Handler) -> bool:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(places) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
