"""A broker's name stands in its own room and in the registry, and nowhere else: not in code, not in comments.

Otherwise a new broker would need more than one package and one row. URLs in examples (`redis://…`) may
name a scheme, because an example has to be something one can type.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shinar
from shinar.brokers.registry import ROWS, SYNONYMS

SOURCE = Path(shinar.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

#: Words of a label that are not a name by themselves.
COMMON = frozenset({"embedded", "memory", "amazon", "azure", "service", "bus", "activemq", "apache"})
#: Names that are also something else than a broker: a protocol, a place to put things, an embedded database.
NOT_BROKERS = frozenset({"memory", "amqp", "amqps"})

#: Modules that may name some or all: why, and which ("*": all).
ALLOWED: dict[str, tuple[str, frozenset[str]]] = {
    "brokers.registry": ("the rows", frozenset({"*"})),
    "conformance": ("maps the suite's names", frozenset({"*"})),
    "phpmq": ("the embedded broker's server and protocol", frozenset({"phpmq", "sqlite"})),
    "cli.commands.broker": ("the embedded broker's own command", frozenset({"phpmq", "sqlite"})),
    "pipeline.source.archive": ("reads the embedded broker's log", frozenset({"phpmq"})),
    "pipeline.source.broker_log": ("reads the embedded broker's log", frozenset({"phpmq"})),
    "database": ("SQL dialects", frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb"})),
    "idempotency": (
        "stores in databases and Redis",
        frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb", "redis", "rediss"}),
    ),
    "outbox": (
        "a table of the user's database",
        frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb"}),
    ),
    "redrive": ("the ledger and the filter run on SQLite", frozenset({"sqlite", "postgresql"})),
    "cli.support": ("settings name the ledger's database", frozenset({"sqlite", "postgresql"})),
    "brokers.sql": ("one room, three databases", frozenset({"sqlite", "postgresql", "mysql", "mariadb"})),
    "console": ("its state is a SQLite file", frozenset({"sqlite"})),
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names() -> frozenset[str]:
    words = {*ROWS, *SYNONYMS}
    for row in ROWS.values():
        words |= {word for word in re.findall(r"[a-z]+", row.label.lower()) if word not in COMMON}
    return frozenset(words - NOT_BROKERS) | {"service bus"}


def rooms() -> dict[str, set[str]]:
    """Package of a broker -> its schemes, synonyms and labels."""
    found: dict[str, set[str]] = {}
    for scheme, row in ROWS.items():
        room = ".".join(row.module.removeprefix("shinar.").split(".")[:2])
        words = found.setdefault(room, set())
        words |= {scheme, *(name for name, of in SYNONYMS.items() if of == scheme)}
        words |= set(re.findall(r"[a-z]+", row.label.lower())) | {"service bus"}
    return found


def allowed(module: str) -> frozenset[str]:
    mine: set[str] = set()
    for prefix, words in (
        *rooms().items(),
        *((prefix, words) for prefix, (_, words) in ALLOWED.items()),
    ):
        if module == prefix or module.startswith(prefix + "."):
            mine |= words
    return frozenset(mine)


NAME = re.compile(
    rf"(?<![A-Za-z0-9])({'|'.join(sorted(map(re.escape, names()), key=len, reverse=True))})(?![a-z0-9]|://|\+)",
    re.IGNORECASE,
)


def named_in(text: str, permitted: frozenset[str]) -> list[str]:
    if "*" in permitted:
        return []
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        # `shinar.phpmq` is a package of ours; importing it is the layer test's business.
        spoken = re.sub(r"shinar\.[\w.]+", "", line)
        found += [f"{number}: {m[1]}" for m in NAME.finditer(spoken) if m[1].lower() not in permitted]
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_only_a_brokers_room_and_the_registry_name_it(path: Path) -> None:
    found = named_in(path.read_text(), allowed(module_of(path)))
    assert not found, f"{module_of(path)} names brokers ({', '.join(found)}); use Traits or the registry"


def test_the_check_sees_names_in_code_comments_and_texts() -> None:
    for line in (
        'if broker == "redis":',
        "# as SQS does",
        '"""Kafka only."""',
        "url.scheme.startswith('phpmq')",
        "rabbitmq_delay = 3",
        "the Service Bus way",
    ):
        assert named_in(line, frozenset()), line
    for line in ('"try redis://localhost/orders"', "from shinar.phpmq import store", "predisposed"):
        assert not named_in(line, frozenset()), line
