"""Your handlers over a sample of dead letters, here and now, with outside effects bypassed.

Nothing is taken from the broker and nothing is sent; what handlers do without asking
`bypass_external_effects`, they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import Any

import msgspec

from shinar.brokers import Delivery
from shinar.envelope.fingerprint import error_template
from shinar.redrive.job import Redrive
from shinar.redrive.letters.letter import Letter, Nature, copy_of
from shinar.redrive.letters.read import read_letters
from shinar.redrive.send.sender import BYPASS
from shinar.settlement import DEFAULT_POLICY, Event, Traits
from shinar.worker import GiveUp, Handlers, Retry
from shinar.worker.context import leave_context
from shinar.worker.handlers import compile_route
from shinar.worker.process import Target, lookup, process


class Rehearsal(msgspec.Struct):
    ran: int = 0
    passed: int = 0
    failed: int = 0
    #: error template -> how many
    errors: dict[str, int] = {}

    def as_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self)

    def add(self, error: str) -> None:
        self.ran += 1
        if not error:
            self.passed += 1
            return
        self.failed += 1
        self.errors[error] = self.errors.get(error, 0) + 1


def rehearse(
    redrive: Redrive, handlers: Handlers | Mapping[str, Any], *, sample: int = 100, reserve: bool = False
) -> Rehearsal:
    routes = (handlers if isinstance(handlers, Handlers) else Handlers(handlers)).routes
    result = Rehearsal()
    with asyncio.Runner() as runner, redrive.opened() as broker:
        targets = {
            urn: Target(*compile_route(route, (), _run_with(runner)), DEFAULT_POLICY)
            for urn, route in routes.items()
        }
        with closing(read_letters(broker, redrive.queue, reserve=reserve)) as found:
            chosen = (x for x in found if x.nature is Nature.DEAD and redrive.means(x))
            for letter in islice(chosen, sample):
                result.add(_run(targets, broker.traits, letter))
    return result


def _run_with(runner: asyncio.Runner) -> Any:
    def run(awaitable: Any) -> object:
        return runner.run(awaitable)

    return run


def _run(targets: Mapping[str, Target], traits: Traits, letter: Letter) -> str:
    """ "" when the handler is content, else its error without the variable parts."""
    delivery = Delivery(
        copy_of(letter),
        letter.target_name,
        headers={**letter.delivery.headers, **BYPASS},
        key=letter.delivery.key,
        received_ms=letter.delivery.received_ms,
    )
    outcome = process(lookup(targets), DEFAULT_POLICY, traits, delivery)
    leave_context()
    if outcome is None:
        return ""
    error = outcome.error
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {error_template(str(error))}"
    if outcome.event is not Event.FAILED:
        return str(error)
    answer = GiveUp if outcome.final else Retry
    return f"{answer.__name__}: {error_template(str(error))}"
