"""Every broker there is, as one parameter: a row here is all a new broker adds to the suites that run
against all of them (contract, outcomes, crashes)."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from servers import Server
from shinar.brokers import Broker, Delivery, connect, traits
from shinar.settlement import Traits

#: A distribution beside Shinar that brings a broker of its own: here as if it were installed, for this
#: process and for those it starts.
FILE_BROKER = Path(__file__).parent / "contract" / "file_broker"
sys.path.insert(0, str(FILE_BROKER))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FILE_BROKER), os.environ.get("PYTHONPATH"))))

#: row -> (server it needs, query options of its own)
ROWS: dict[str, tuple[str | None, str]] = {
    "memory": (None, ""),
    "file": (None, ""),
    "sqlite": (None, ""),
    "phpmq": (None, ""),
    "postgresql": ("postgresql", ""),
    "mysql": ("mariadb", ""),
    "redis": ("redis", ""),
    "redis-laravel": ("redis", "layout=laravel"),
    "rabbitmq": ("rabbitmq", ""),
    "rabbitmq-quorum": ("rabbitmq", "queue_type=quorum"),
    "sqs": ("elasticmq", ""),
    "servicebus": ("servicebus", ""),
    "kafka": ("kafka", ""),
    "pulsar": ("pulsar", ""),
    "artemis": ("artemis", ""),
}


def with_options(url: str, *options: str) -> str:
    # By hand: urlunsplit would write sqlite:///file as sqlite:/file.
    added = "&".join(option for option in options if option)
    return f"{url}{'&' if '?' in url else '?'}{added}" if added else url


@dataclass
class Case:
    """One broker under test, with a queue nobody else uses."""

    url: str
    #: The server behind it, to stop and start; None when there is none.
    server: Server | None = None
    queue: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:12]}")
    _open: list[Broker] = field(default_factory=list)

    def connect(self, *options: str) -> Broker:
        broker = connect(with_options(self.url, *options))
        self._open.append(broker)
        return broker

    @property
    def traits(self) -> Traits:
        return traits(self.url)

    def close(self) -> None:
        for broker in self._open:
            with contextlib.suppress(Exception):
                broker.close()


def take(broker: Broker, queue: str, count: int, *, timeout_s: float = 30.0) -> list[Delivery]:
    """Reserve until `count` came or time is up; what came."""
    import time

    found: list[Delivery] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and (left := deadline - time.monotonic()) > 0:
        found += broker.reserve(queue, count - len(found), min(left, 2.0))
    return found


def nothing_left(broker: Broker, queue: str, *, wait_s: float = 0.5) -> bool:
    return broker.reserve(queue, 10, wait_s) == []


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from shinar.phpmq.server import serve_in_thread

    with serve_in_thread(tmp_path_factory.mktemp("phpmq")) as server:
        yield server.url


@pytest.fixture(params=list(ROWS))
def case(
    request: pytest.FixtureRequest, tmp_path: Path, live_server: Callable[..., Server]
) -> Iterator[Case]:
    name = request.param
    needs, options = ROWS[name]
    server = live_server(needs) if needs is not None else None
    if server is not None:
        url = server.url
    elif name == "sqlite":
        url = f"sqlite://{tmp_path}/queue.db"
    elif name == "file":
        url = f"file://{tmp_path}/spool"
    elif name == "phpmq":
        url = request.getfixturevalue("embedded")
    else:
        url = f"memory://{uuid.uuid4().hex}"
    opened = Case(with_options(url, options), server)
    yield opened
    opened.close()
