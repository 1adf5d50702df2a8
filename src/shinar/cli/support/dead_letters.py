"""What the views of `shinar dlq` share: where the dead letters come from, times, plain values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from shinar.cli.support.output import address, settings_of
from shinar.errors import ConfigError

if TYPE_CHECKING:
    from shinar.brokers import Broker, BrokerUrl, Delivery
    from shinar.redrive import Ledger, Letter
    from shinar.settlement import Traits

#: Records the ledger is asked about at once.
PAGE: Final = 500
One = TypeVar("One")


def from_lake(args: argparse.Namespace) -> bool:
    """A lake that is named here wins; one from the settings only where no queue is named."""
    return bool(args.lake or (settings_of(args)["lake"] and not settings_of(args)["url"]))


def choice_of(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Chosen`."""
    return {
        "where": args.where,
        "fingerprint": args.fingerprint,
        "since_ms": since_ms(args.since),
        "ids": ids_of(args.ids),
    }


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[tuple[Broker, str]]:
    from shinar.brokers import connect
    from shinar.redrive.letters.read import side_effect

    url, queue = address(args, settings_of(args))
    broker = connect(url)
    try:
        if args.reserve and not args.quiet and (text := side_effect(broker)):
            print(f"note: {text}", file=sys.stderr)
        yield broker, queue
    finally:
        broker.close()


@contextmanager
def looked_at(args: argparse.Namespace, limit: int | None) -> Iterator[tuple[Iterator[Letter], int | None]]:
    """(the chosen ones, how many there are at most as far as anybody knows), of a queue or of a lake."""
    if from_lake(args):
        from shinar.cli.support.lake import lake_store, spark_session
        from shinar.redrive import Chosen

        store = lake_store(settings_of(args))
        choice = choice_of(args)
        Chosen(**choice)  # a mistake is told here, not by a task
        from shinar.redrive.spark import letters_of_lake

        yield letters_of_lake(spark_session(args.master), store, limit=limit, **choice), limit
        return
    with opened(args) as (broker, queue):
        yield chosen_of(args, broker, queue, limit), total(broker, queue)


def chosen_of(
    args: argparse.Namespace, broker: Broker, queue: str, limit: int | None = None
) -> Iterator[Letter]:
    from shinar.redrive import Chosen, read_letters

    chosen = Chosen(**choice_of(args))
    with closing(read_letters(broker, queue, reserve=args.reserve)) as found:
        shown = 0
        for letter in found:
            if limit is not None and shown >= limit:
                return
            if chosen(letter):
                shown += 1
                yield letter


def total(broker: Broker, queue: str) -> int | None:
    return broker.depth(queue).ready if broker.traits.depth else None


class SentBack:
    """For a log, which keeps what was sent back: which of its records the ledger says are done with."""

    def __init__(self, url: BrokerUrl, queue: str, known: Traits, ledger: Ledger | None) -> None:
        self._ledger = ledger if known.replayable else None
        self._traits = known
        from shinar.redrive.model import endpoint

        self._place = (endpoint(url), queue)
        #: Records left out so far.
        self.count = 0

    def by(self, deliveries: Sequence[Delivery]) -> list[str]:
        """The job that sent each of them back, or ""."""
        if self._ledger is None:
            return [""] * len(deliveries)
        from shinar.redrive.letters.letter import name_of

        names = [name_of(delivery, self._traits) for delivery in deliveries]
        found = self._ledger.sent_before(*self._place, names)
        return [found.get(name, "") for name in names]

    def others(self, found: Iterator[One], delivery_of: Callable[[One], Delivery]) -> Iterator[One]:
        """Only those that were not sent back."""
        if self._ledger is None:
            yield from found
            return
        while page := list(islice(found, PAGE)):
            jobs = self.by([delivery_of(one) for one in page])
            left = [one for one, job in zip(page, jobs, strict=True) if not job]
            self.count += len(page) - len(left)
            yield from left


def ledger_of(args: argparse.Namespace) -> Ledger | None:
    from shinar.redrive import Ledger

    place = ledger_place(args)
    return Ledger(place) if place else None


def ledger_place(args: argparse.Namespace) -> str:
    """ "" if there is none yet: a look must not create it."""
    from shinar.redrive.ledger.ledger import default_path

    place: str = settings_of(args)["ledger"]
    if "://" in place:
        return place
    path = Path(place).expanduser() if place else default_path()
    return str(path.absolute()) if path.exists() else ""


def without_secrets(text: str | None) -> str:
    """A store's URL as the ledger may keep it; a folder, or a URL without a password, as it is."""
    from shinar.brokers import parse
    from shinar.brokers.url import MASK

    masked = parse(text).masked if text and "://" in text else ""
    return masked if MASK in masked else text or ""


def plain(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def since_ms(text: str) -> int | None:
    from shinar.cli.support.lake import moment

    found = moment(text)
    return None if found is None else round(found.timestamp() * 1000)


def ids_of(file: str | None) -> tuple[str, ...]:
    if not file:
        return ()
    try:
        return tuple(line.strip() for line in Path(file).read_text("utf-8").splitlines() if line.strip())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", setting="--ids") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8: write one id a line", setting="--ids") from None
