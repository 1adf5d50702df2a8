"""URL scheme -> broker module, imported on use. A new broker is one module and one row here."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shinar.brokers.contract import Broker, Delivery
from shinar.brokers.url import BrokerUrl, PathRule
from shinar.brokers.url import parse as parse_url
from shinar.clock import SYSTEM, Clock
from shinar.errors import ConfigError, MissingExtra, UnknownScheme
from shinar.settlement.traits import Traits


@dataclass(frozen=True, slots=True)
class Row:
    #: Module under shinar.brokers with TRAITS, OPTIONS and connect(url, clock).
    module: str
    #: Extra that installs the client; "" for what the core brings.
    extra: str
    #: Package whose absence the extra mends.
    package: str
    path: PathRule
    #: The port and the server's part of the path that a URL means which does not say them.
    port: int = 0
    home: str = ""
    #: File that marks this broker's own data folder, where it keeps a log that can be read again.
    log_file: str = ""


ROWS: Final[dict[str, Row]] = {
    "memory": Row("memory", "", "", "queue"),
    "phpmq": Row("phpmq", "", "", "queue", 9100, log_file="broker.sqlite"),
    "phpmqs": Row("phpmq", "", "", "queue", 9100),
    "phpmq+unix": Row("phpmq", "", "", "file"),
    "sqlite": Row("sql.broker", "", "", "file"),
    "postgresql": Row("sql.broker", "postgresql", "psycopg", "first", 5432),
    "mysql": Row("sql.broker", "mysql", "pymysql", "first", 3306),
    "redis": Row("redis.broker", "redis", "redis", "number", 6379, "0"),
    "rediss": Row("redis.broker", "redis", "redis", "number", 6379, "0"),
    "amqp": Row("rabbitmq.broker", "rabbitmq", "pika", "optional", 5672, "/"),
    "amqps": Row("rabbitmq.broker", "rabbitmq", "pika", "optional", 5671, "/"),
    "sqs": Row("sqs.broker", "sqs", "boto3", "queue"),
    "servicebus": Row("servicebus.broker", "servicebus", "azure.servicebus", "queue"),
    "pulsar": Row("pulsar.broker", "pulsar", "pulsar", "optional", 6650, "public/default"),
    "pulsar+ssl": Row("pulsar.broker", "pulsar", "pulsar", "optional", 6651, "public/default"),
    "kafka": Row("kafka.broker", "kafka", "confluent_kafka", "queue", 9092),
    "artemis": Row("artemis.broker", "artemis", "proton", "queue", 5672),
    "artemiss": Row("artemis.broker", "artemis", "proton", "queue", 5671),
}

#: What people type first; each is an exact synonym.
SYNONYMS: Final[dict[str, str]] = {
    "rabbitmq": "amqp",
    "postgres": "postgresql",
    "mariadb": "mysql",
    "asb": "servicebus",
    "sb": "servicebus",
}


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
    row = _row(scheme)
    return parse_url(f"{scheme}://{rest}", row.path, row.port)


def traits(url: str | BrokerUrl) -> Traits:
    """What the broker of this URL can do, without connecting to it."""
    parsed = parse(url) if isinstance(url, str) else url
    found = _load(_row(parsed.scheme)).traits(parsed)
    assert isinstance(found, Traits)
    return found


def connect(url: str | BrokerUrl, clock: Clock = SYSTEM) -> Broker:
    """Open the broker of this URL. The only way in: nothing else names a broker module."""
    parsed = parse(url) if isinstance(url, str) else url
    module = _load(_row(parsed.scheme))
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
    return _load(_row(url.scheme)).OPTIONS


def receipt_type(url: BrokerUrl) -> Any:
    """What a receipt of this broker is, so that another process can read it back; ask `traits` first whether
    receipts are portable."""
    return _load(_row(url.scheme)).RECEIPT


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
    module = _load(_row((parse(url) if isinstance(url, str) else url).scheme))
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
    for row in ROWS.values():
        if row.log_file and Path(folder, row.log_file).is_file():
            module = _load(row)
            return FolderLog(module.NAME, module.log_bounds, module.read_log)
    return None


def _row(scheme: str) -> Row:
    try:
        return ROWS[scheme]
    except KeyError:
        near = difflib.get_close_matches(scheme, [*ROWS, *SYNONYMS], 1)
        raise UnknownScheme(scheme, tuple(ROWS), near[0] if near else None) from None


def _load(row: Row) -> _Module:
    try:
        return importlib.import_module(f"shinar.brokers.{row.module}")  # type: ignore[return-value]  # a module
    except ModuleNotFoundError as exc:
        if row.package and (exc.name or "").split(".")[0] == row.package.split(".")[0]:
            raise MissingExtra(f"{row.module.partition('.')[0]}://", row.package, row.extra) from None
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
