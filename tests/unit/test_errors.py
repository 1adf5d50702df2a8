"""Errors carry their fields through a pickle, as Spark and multiprocessing send them."""

from __future__ import annotations

import pickle

import pytest

from shinar import errors

EXAMPLES = [
    errors.ContractError("is wrong", pointer="/data/a"),
    errors.ConfigError("is wrong", setting="url", origin="env SHINAR_URL"),
    errors.UnknownScheme("redsi", ("redis",), "redis"),
    errors.MissingExtra("redis://", "redis", "redis"),
    errors.Unsupported("sqs", "browse", "reserve and release"),
    errors.BrokerUnavailable("is away", broker="redis", queue="orders"),
    errors.BodyTooLarge(5, 4, broker="sqs", queue="orders"),
    errors.PublishFailed("lost", total=3, unconfirmed=(1, 2), broker="kafka"),
    errors.HandlerTimeout(2.5),
    errors.Cancelled("stopped"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_pickled_error_keeps_its_text_and_fields(error: errors.ShinarError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_texts_say_where_and_what_to_do() -> None:
    assert str(EXAMPLES[2]) == "the URL scheme redsi:// is unknown; did you mean redis://?"
    assert str(EXAMPLES[4]) == "sqs cannot browse: reserve and release"
    assert str(EXAMPLES[7]) == "kafka: lost (1 of 3 confirmed)"
