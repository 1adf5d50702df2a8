"""A dead-letter queue read once into small files, so that several processes can count it. No Spark here.

The files hold message bodies: their folder is for this user only, and the caller removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from shinar.brokers import Delivery
from shinar.settlement.traits import Traits

#: Dead letters per file: some megabytes, a fraction of a second to count.
ROWS: Final = 10_000
_LENGTH_BYTES: Final = 4


def files(folder: Path, deliveries: Iterable[Delivery], traits: Traits) -> Iterator[Path]:
    """Each file as soon as it is complete; the caller may remove it once it was counted."""
    found = iter(deliveries)
    number = 0
    while page := list(islice(found, ROWS)):
        path = folder / f"{number:06d}.letters"
        with path.open("wb") as out:
            for delivery in page:
                record = msgspec.msgpack.encode(_slim(delivery, traits))
                out.write(len(record).to_bytes(_LENGTH_BYTES, "big") + record)
        number += 1
        yield path


def spooled(path: str | Path) -> Iterator[Delivery]:
    decoder = msgspec.msgpack.Decoder(Delivery)
    with Path(path).open("rb") as source:
        while head := source.read(_LENGTH_BYTES):
            yield decoder.decode(source.read(int.from_bytes(head, "big")))


def _slim(delivery: Delivery, traits: Traits) -> Delivery:
    """What reading a letter needs: the body, its place and time, and the property of the version gate."""
    properties = {}
    if traits.gate_property is not None and traits.gate_property in delivery.properties:
        value = delivery.properties[traits.gate_property]
        properties[traits.gate_property] = value if isinstance(value, (str, int, bytes)) else str(value)
    return Delivery(
        delivery.body,
        delivery.queue,
        properties=properties,
        received_ms=delivery.received_ms,
        position=delivery.position,
    )
