"""The properties beside a body against the body itself: the projection table read backwards."""

from __future__ import annotations

from typing import Final, NamedTuple

from shinar.brokers.projection import facts_of
from shinar.brokers.registry import projected_names
from shinar.redrive.letters.letter import Letter

#: native name of a property -> the fact of the envelope it mirrors
_FACTS: Final = {name: fact for fact, names in projected_names().items() for name in names}
_CONSTANT: Final = frozenset({"app_id", "content_type"})


class Beside(NamedTuple):
    name: str
    said: str
    in_body: str
    agrees: bool


def beside(letter: Letter) -> list[Beside]:
    facts = facts_of(letter.delivery.body)
    found: list[Beside] = []
    for name, value in letter.delivery.properties.items():
        fact = _FACTS.get(name)
        if fact is None or fact in _CONSTANT:
            continue
        said = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        body = getattr(facts, fact)
        in_body = "-" if body is None else str(body)
        # A broker that drops repeated ids gets a mark behind the id of a copy.
        agrees = said == in_body or (fact == "id" and said.partition(":")[0] == in_body)
        found.append(Beside(name, said, in_body, agrees))
    return found
