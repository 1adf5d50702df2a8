"""Broker URLs that cannot be read: the text says what to write, and shows nothing of a password."""

from __future__ import annotations

import pytest

from shinar.brokers.registry import parse
from shinar.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "sqs://AKIAKEY:wJalr/K7MD@eu-west-1/orders",
        "servicebus://Root:wJalr/K7MD=@shop/orders",
        "artemis://me:wJalr/K7MD@host:5672/orders",
        "redis://:wJalr/K7MD@host/orders",
        "rabbitmq://me:wJalr#K7MD@host/orders",
        "rabbitmq://me:wJalr?K7MD@host/orders",
        "redis://me:x[wJalr]K7MD@host/orders",
        "redis://host:wJalr/K7MD",
    ],
)
def test_nothing_of_a_password_is_shown(url):
    with pytest.raises(ConfigError, match="percent-encoded") as caught:
        parse(url)
    shown = f"{caught.value} {caught.value.__cause__} {caught.value.__suppress_context__}"
    assert "wJalr" not in shown
    assert "K7MD" not in shown
    assert shown.endswith("True"), "the error below it is not shown either"


def test_a_port_that_is_no_port_says_so():
    for port in ("66000", "-1", "x"):
        with pytest.raises(ConfigError, match="port"):
            parse(f"redis://host:{port}/orders")


def test_encoded_characters_reach_the_password():
    assert parse("sqs://AKIAKEY:wJalr%2FK7MD%40%3A%23@eu-west-1/orders").password == "wJalr/K7MD@:#"
