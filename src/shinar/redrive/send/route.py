"""The two brokers of a redrive: which they are, what cannot be between them, and their connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import msgspec

from shinar.brokers import Broker, connect, parse, traits
from shinar.brokers.url import BrokerUrl
from shinar.clock import Clock
from shinar.errors import Unsupported
from shinar.redrive.model import Spec
from shinar.settlement.traits import Traits


class RedriveRoute(msgspec.Struct, frozen=True):
    """How a letter gets from one broker to the other."""

    source: Broker
    target: Broker
    #: Both ends are one broker: copy and settlement are one move.
    moves: bool
    #: The source keeps what was read: nothing is settled there.
    log: bool

    @property
    def atomic(self) -> bool:
        return self.moves and self.source.traits.atomic_move


def target_of(source: BrokerUrl, to: str) -> tuple[BrokerUrl, str]:
    """(broker, queue) of `--to`: a URL, or a queue of the same broker."""
    if "://" not in to:
        return replace(source, queue=to or source.queue), to
    url = parse(to)
    return url, url.queue


def one_broker(source: BrokerUrl, target: BrokerUrl) -> bool:
    return target == replace(source, queue=target.queue)


def acks_are_certain(known: Traits, source: BrokerUrl, target: BrokerUrl) -> bool:
    """Whether nothing is acknowledged on its own: a log keeps its records, an atomic move is one step.
    `known` is about the source."""
    return known.replayable or (one_broker(source, target) and known.atomic_move)


def refuse_impossible(known: Traits, target: BrokerUrl, spec: Spec) -> None:
    """`known` is about the source."""
    carrier, rate = traits(target), spec.rate_per_s
    if spec.bypass and not carrier.headers:
        raise Unsupported(
            carrier.name,
            "carry bq-replay-bypass, so effects would be repeated",
            "redrive without --bypass, or to a broker that carries headers",
        )
    if rate and known.lease_s and 2 / rate > known.lease_s:
        raise Unsupported(
            known.name,
            f"wait {1 / rate:.0f} s with one in hand: a lease is {known.lease_s:g} s",
            "redrive at a higher --rate, or take a longer lease (?lease_s=)",
        )


@contextmanager
def open_source(url: BrokerUrl, given: Broker | None, clock: Clock) -> Iterator[Broker]:
    """A broker that was given is its owner's to close."""
    if given is not None:
        yield given
        return
    with closing(connect(url, clock)) as source:
        yield source


@contextmanager
def open_route(
    source: Broker, source_url: BrokerUrl, target_url: BrokerUrl, clock: Clock
) -> Iterator[RedriveRoute]:
    log, same = source.traits.replayable, one_broker(source_url, target_url)
    target = source if same else connect(target_url, clock)
    try:
        yield RedriveRoute(source, target, same and not log, log)
    finally:
        if target is not source:
            target.close()
