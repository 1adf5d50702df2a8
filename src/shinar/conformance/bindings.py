"""Which broker of ours a suite's binding name means. Traits come from the broker modules themselves."""

from __future__ import annotations

import functools
from typing import Any, Final

from shinar.brokers import registry
from shinar.brokers.projection import Table
from shinar.settlement import Traits

_URLS: Final = {
    "sqs": "sqs://region/queue",
    "asb": "servicebus://name:key@host/queue",
    "pulsar": "pulsar://host/queue",
    "kafka": "kafka://host/queue",
    "artemis": "artemis://host/queue",
    "rabbitmq": "amqp://host/queue",
}


class UnknownBinding(LookupError):
    pass


@functools.cache
def traits(binding: str) -> Traits:
    return registry.traits(_url(binding))


def projection(binding: str) -> Table:
    return registry.projection(_url(binding).partition("://")[0])


def _url(binding: str) -> str:
    if binding not in _URLS:
        raise UnknownBinding(binding)
    return _URLS[binding]


def native_count(binding: str, count: Any) -> Any:
    """The suite counts Service Bus deliveries from 1, as .NET does; Python's client from 0."""
    if binding == "asb" and isinstance(count, int):
        return count - 1 + (traits(binding).count_base or 0)
    return count
