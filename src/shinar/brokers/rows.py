"""One row for each broker: where its module is, what installs it, how its URLs are read. Data only.

A new broker is one package and one row here (or an entry point of another distribution, see
docs/brokers/custom.md). Imports no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from shinar.brokers.url import PathRule


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
    place_options=frozenset({"prefix"}),
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
