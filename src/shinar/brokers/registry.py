"""URL scheme -> broker, imported on use. The only module that names brokers.

A new broker is one package and one `Row`: here, or in the entry point group `shinar.brokers` of another
distribution. Whoever needs to know something about all brokers (which extra installs one, which options
lead to other messages, how its URL is written) reads it from the rows.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from shinar.brokers.contract import Broker, Delivery
from shinar.brokers.projection import Table
from shinar.brokers.url import BrokerUrl, PathRule
from shinar.brokers.url import parse as parse_url
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, MissingExtra, UnknownScheme
from shinar.settlement.traits import Traits

log = logging.getLogger(__name__)

#: Entry point group of brokers that other distributions bring; an entry point's name is the scheme.
ENTRY_POINTS: Final = "shinar.brokers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    #: Module with OPTIONS, traits(url) and connect(url, clock).
    module: str
    #: What people call it.
    label: str
    #: A URL with a queue, as help and error texts show it.
    example: str
    path: PathRule
    #: The port and the server's part of the path that a URL means which does not say them.
    port: int = 0
    home: str = ""
    #: Extra that installs the client; "" for what the core brings, and for other distributions.
    extra: str = ""
    #: The client's distribution, and the package whose absence the extra mends.
    distribution: str = ""
    package: str = ""
    #: Module with PROJECTION, importable without the client; "" when the envelope travels alone.
    projection: str = ""
    #: Its page in docs/brokers; "" when it has none of its own.
    page: str = ""
    #: Options that lead to other messages; the rest only say how to get there.
    place_options: frozenset[str] = frozenset()
    #: The host is a name that somebody chose, so its case counts.
    host_is_name: bool = False
    #: Takes the token of the settings when its URL brings none.
    takes_token: bool = False
    #: Ways to use it that differ in their traits: what to call it then -> a URL.
    variants: Mapping[str, str] = field(default_factory=dict)
    #: File that marks this broker's own data folder, where it keeps a log that can be read again.
    log_file: str = ""


_PHPMQ: Final = Row(
    module="shinar.brokers.phpmq",
    label="embedded (PHPMQ)",
    example="phpmq://localhost/orders",
    path="queue",
    port=9100,
    page="../broker.md",
    takes_token=True,
    log_file="broker.sqlite",
)
_SQLITE: Final = Row(
    module="shinar.brokers.sql.broker",
    label="SQLite",
    example="sqlite:///var/lib/app/queue.db?queue=orders",
    path="file",
    page="sql.md",
)
_REDIS: Final = Row(
    module="shinar.brokers.redis.broker",
    label="Redis",
    example="redis://localhost/orders",
    path="number",
    port=6379,
    home="0",
    extra="redis",
    distribution="redis",
    package="redis",
    page="redis.md",
    place_options=frozenset({"layout", "laravel", "prefix", "hash_tags"}),
    variants={"Redis, Laravel layout": "redis://localhost/orders?layout=laravel"},
)
_RABBITMQ: Final = Row(
    module="shinar.brokers.rabbitmq.broker",
    label="RabbitMQ",
    example="amqp://localhost/orders",
    path="optional",
    port=5672,
    home="/",
    extra="rabbitmq",
    distribution="pika",
    package="pika",
    projection="shinar.brokers.rabbitmq.projection",
    page="rabbitmq.md",
    variants={"RabbitMQ, quorum queue": "amqp://localhost/orders?queue_type=quorum"},
)
_PULSAR: Final = Row(
    module="shinar.brokers.pulsar.broker",
    label="Pulsar",
    example="pulsar://localhost/orders",
    path="optional",
    port=6650,
    home="public/default",
    extra="pulsar",
    distribution="pulsar-client",
    package="pulsar",
    projection="shinar.brokers.pulsar.projection",
    page="pulsar.md",
)
_ARTEMIS: Final = Row(
    module="shinar.brokers.artemis.broker",
    label="ActiveMQ Artemis",
    example="artemis://localhost/orders",
    path="queue",
    port=5672,
    extra="artemis",
    distribution="python-qpid-proton",
    package="proton",
    projection="shinar.brokers.artemis.projection",
    page="artemis.md",
)

#: Scheme -> row. Schemes of one broker stand together; the first is the one that docs name.
ROWS: Final[dict[str, Row]] = {
    "memory": Row(
        module="shinar.brokers.memory",
        label="memory",
        example="memory://app/orders",
        path="queue",
        host_is_name=True,
    ),
    "phpmq": _PHPMQ,
    "phpmqs": _PHPMQ,
    "phpmq+unix": replace(_PHPMQ, example="phpmq+unix:///run/shinar.sock?queue=orders", path="file", port=0),
    "sqlite": _SQLITE,
    "postgresql": replace(
        _SQLITE,
        label="PostgreSQL",
        example="postgresql://localhost/shop/orders",
        path="first",
        port=5432,
        extra="postgresql",
        distribution="psycopg",
        package="psycopg",
        place_options=frozenset({"host", "prefix"}),
    ),
    "mysql": replace(
        _SQLITE,
        label="MySQL, MariaDB",
        example="mysql://localhost/shop/orders",
        path="first",
        port=3306,
        extra="mysql",
        distribution="pymysql",
        package="pymysql",
        place_options=frozenset({"unix_socket", "prefix"}),
    ),
    "redis": _REDIS,
    "rediss": _REDIS,
    "amqp": _RABBITMQ,
    "amqps": replace(_RABBITMQ, port=5671),
    "sqs": Row(
        module="shinar.brokers.sqs.broker",
        label="Amazon SQS",
        example="sqs://eu-west-1/orders",
        path="queue",
        extra="sqs",
        distribution="boto3",
        package="boto3",
        projection="shinar.brokers.sqs.projection",
        page="sqs.md",
        place_options=frozenset({"endpoint"}),
        variants={"Amazon SQS, FIFO queue": "sqs://eu-west-1/orders.fifo"},
    ),
    "servicebus": Row(
        module="shinar.brokers.servicebus.broker",
        label="Azure Service Bus",
        example="servicebus://policy:key@name.servicebus.windows.net/orders",
        path="queue",
        extra="servicebus",
        distribution="azure-servicebus",
        package="azure.servicebus",
        projection="shinar.brokers.servicebus.projection",
        page="servicebus.md",
    ),
    "kafka": Row(
        module="shinar.brokers.kafka.broker",
        label="Kafka",
        example="kafka://localhost/orders",
        path="queue",
        port=9092,
        extra="kafka",
        distribution="confluent-kafka",
        package="confluent_kafka",
        projection="shinar.brokers.kafka.projection",
        page="kafka.md",
    ),
    "pulsar": _PULSAR,
    "pulsar+ssl": replace(_PULSAR, port=6651),
    "artemis": _ARTEMIS,
    "artemiss": replace(_ARTEMIS, port=5671),
}

#: What people type first; each is an exact synonym.
SYNONYMS: Final[dict[str, str]] = {
    "rabbitmq": "amqp",
    "postgres": "postgresql",
    "mariadb": "mysql",
    "asb": "servicebus",
    "sb": "servicebus",
}


def rows() -> dict[str, Row]:
    """Every scheme that works: Shinar's own, and those of installed distributions that can be loaded."""
    return ROWS | {scheme: row(scheme) for scheme, problem in plugins().items() if not problem}


def plugins() -> dict[str, str]:
    """Schemes of other distributions -> why one cannot be loaded; "" when it can."""
    found = {}
    for scheme in _entry_points():
        try:
            row(scheme)
            found[scheme] = ""
        except ConfigError as exc:
            found[scheme] = str(exc)
    return found


def row(scheme: str) -> Row:
    found = ROWS.get(scheme)
    if found is not None:
        return found
    entry_points = _entry_points()
    if scheme in entry_points:
        return _row_of(entry_points[scheme])
    near = difflib.get_close_matches(scheme, [*ROWS, *entry_points, *SYNONYMS], 1)
    raise UnknownScheme(scheme, (*ROWS, *entry_points), near[0] if near else None)


@functools.cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """By scheme. A scheme of Shinar's own cannot be taken."""
    found = {}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if entry_point.name in ROWS:
            log.warning(
                "the entry point %s declares %s://, which is Shinar's own; it is ignored",
                entry_point.value,
                entry_point.name,
            )
        else:
            found[entry_point.name] = entry_point
    return found


def _row_of(entry_point: importlib.metadata.EntryPoint) -> Row:
    declared = f"the broker of {entry_point.name}:// ({entry_point.value})"
    try:
        found = entry_point.load()
    except (ImportError, AttributeError) as exc:
        raise ConfigError(f"{declared} cannot be loaded: {exc}; reinstall it", setting="url") from exc
    if not isinstance(found, Row):
        raise ConfigError(f"{declared} is not a shinar.brokers.registry.Row", setting="url")
    return found


def parse(text: str) -> BrokerUrl:
    """A URL as a value; refuses an unknown scheme, but imports no broker."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        # Whatever stands before an @ may be a password.
        _, at, place = text.rpartition("@")
        shown = f"***@{place}" if at else text
        raise ConfigError(
            f"{shown.partition('?')[0]!r} is not a URL; write scheme://host:port/queue", setting="url"
        )
    scheme = SYNONYMS.get(scheme.lower(), scheme.lower())
    found = row(scheme)
    return parse_url(f"{scheme}://{rest}", found.path, found.port)


def traits(url: str | BrokerUrl) -> Traits:
    """What the broker of this URL can do, without connecting to it."""
    parsed = parse(url) if isinstance(url, str) else url
    found = _load(row(parsed.scheme)).traits(parsed)
    assert isinstance(found, Traits)
    return found


def connect(url: str | BrokerUrl, clock: Clock = SYSTEM) -> Broker:
    """Open the broker of this URL. The only way in: nothing else names a broker module."""
    parsed = parse(url) if isinstance(url, str) else url
    module = _load(row(parsed.scheme))
    known: frozenset[str] = module.OPTIONS
    for name in parsed.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"{parsed.scheme}:// has no such option; {hint}", setting=f"?{name}=")
    opened: Broker = module.connect(parsed, clock)
    return opened


def known_options(url: BrokerUrl) -> frozenset[str]:
    """Names the broker of this URL takes behind the question mark."""
    return _load(row(url.scheme)).OPTIONS


def projection(scheme: str) -> Table:
    """Which native properties repeat which facts of the envelope; needs no client."""
    module = row(scheme).projection
    table: Table = importlib.import_module(module).PROJECTION if module else {}
    return table


@functools.cache
def projected_names() -> Mapping[str, frozenset[str]]:
    """Fact of the envelope -> every native name that carries it, on any broker."""
    found: dict[str, set[str]] = {}
    for scheme in rows():
        for name, (_, fact, _) in projection(scheme).items():
            found.setdefault(fact, set()).add(name)
    return {fact: frozenset(names) for fact, names in found.items()}


def receipt_type(url: BrokerUrl) -> Any:
    """What a receipt of this broker is, so that another process can read it back; ask `traits` first whether
    receipts are portable."""
    return _load(row(url.scheme)).RECEIPT


@dataclass(frozen=True, slots=True)
class Replay:
    """The log behind a broker whose Traits say `replayable`, read by offsets and outside any group."""

    #: (url, queue) -> partition: (oldest offset, offset the next message will get)
    offsets: Callable[[BrokerUrl, str], dict[int, tuple[int, int]]]
    #: (url, queue, partition, start, end) -> the messages of [start, end), the same again each time
    read_range: Callable[[BrokerUrl, str, int, int, int], Iterator[list[Delivery]]]
    #: (url, queue, partition: next offset) shows lag tools how far we are
    commit_group: Callable[[BrokerUrl, str, Mapping[int, int]], None]


def replay(url: str | BrokerUrl) -> Replay:
    """The offsets of a replayable broker; ask `traits` first."""
    module = _load(row((parse(url) if isinstance(url, str) else url).scheme))
    return Replay(module.offsets, module.read_range, module.commit_group)


@dataclass(frozen=True, slots=True)
class FolderLog:
    """Acknowledged messages that a broker keeps in its own folder. A range of positions is always the same
    messages."""

    #: Name of the broker.
    broker: str
    #: folder -> (first position still kept, position that the next message will get)
    bounds: Callable[[Path], tuple[int, int]]
    #: (folder, start, end, queues or none for all) -> the messages at start <= position < end
    read: Callable[[Path, int, int, Collection[str]], Iterator[Delivery]]


def folder_log(folder: str | Path) -> FolderLog | None:
    """The log in this folder, without a connection; None where it is not a broker's folder."""
    for found in rows().values():
        if found.log_file and Path(folder, found.log_file).is_file():
            module = _load(found)
            return FolderLog(module.NAME, module.log_bounds, module.read_log)
    return None


def _load(found: Row) -> _Module:
    try:
        return importlib.import_module(found.module)  # type: ignore[return-value]  # a module
    except ModuleNotFoundError as exc:
        if found.extra and (exc.name or "").split(".")[0] == found.package.split(".")[0]:
            raise MissingExtra(found.label, found.distribution, found.extra) from None
        raise


class _Module:
    """Shape of a broker module, for the type checker."""

    OPTIONS: frozenset[str]
    #: Only where Traits.portable_receipts: plain values, or a msgspec Struct of them.
    RECEIPT: Any

    @staticmethod
    def traits(url: BrokerUrl) -> Traits: ...  # type: ignore[empty-body]  # shape only

    @staticmethod
    def connect(url: BrokerUrl, clock: Clock) -> Broker: ...  # type: ignore[empty-body]  # shape only

    # Only where Traits.replayable.
    offsets: Callable[[BrokerUrl, str], dict[int, tuple[int, int]]]
    read_range: Callable[[BrokerUrl, str, int, int, int], Iterator[list[Delivery]]]
    commit_group: Callable[[BrokerUrl, str, Mapping[int, int]], None]

    # Only where Row.log_file.
    NAME: str
    log_bounds: Callable[[Path], tuple[int, int]]
    read_log: Callable[[Path, int, int, Collection[str]], Iterator[Delivery]]
